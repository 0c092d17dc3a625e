from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.errors import Busy
from molecule_hermes.plugin.ledger import Ledger, Turn
from molecule_hermes.wire import Callback, Delta, Final, Inbound, Usage


def inbound(message_id: str, chat_id: str = "chat") -> Inbound:
    return Inbound(chat_id, "peer", message_id, "http://127.0.0.1:1/", "hello")


def turn() -> Turn:
    return Turn(inbound("m"))


def verdict(turn: Turn) -> tuple[str, str, str]:
    callback = turn.final()
    assert isinstance(callback.body, Final)
    problem = callback.body.error
    return callback.body.status, problem.kind if problem else "", callback.content


def test_messages_of_a_chat_run_one_after_another() -> None:
    ledger = Ledger()
    first, second = ledger.accept(inbound("1")), ledger.accept(inbound("2"))
    assert first is not None
    assert ledger.begin("chat") is first
    assert ledger.begin("chat") is None
    ledger.finish(first)
    assert ledger.begin("chat") is second
    assert len(ledger) == 1


def test_a_message_has_one_final() -> None:
    ledger = Ledger()
    one = ledger.accept(inbound("1"))
    assert one is not None
    ledger.begin("chat")
    assert ledger.finish(one) is not None
    assert one.ended.is_set()
    assert ledger.finish(one) is None


def test_a_message_is_taken_once_also_after_its_end() -> None:
    ledger = Ledger(remember=2)
    for name in ("1", "2", "3"):
        one = ledger.accept(inbound(name))
        assert one is not None
        assert ledger.accept(inbound(name)) is None
        ledger.begin("chat")
        ledger.finish(one)
        assert ledger.accept(inbound(name)) is None
    # The memory is bounded: the oldest is forgotten.
    assert ledger.accept(inbound("1")) is not None


def test_a_waiting_message_can_leave() -> None:
    ledger = Ledger()
    turns = [ledger.accept(inbound(name)) for name in "123"]
    ledger.begin("chat")
    assert turns[1] is not None
    turns[1].canceled = True
    callback = ledger.finish(turns[1])
    assert callback is not None
    assert callback.body == Final("canceled")
    assert ledger.waiting("chat") == [turns[2]]
    assert ledger.running("chat") is turns[0]


def test_too_many_waiting_or_too_many_chats_are_refused() -> None:
    ledger = Ledger(max_chats=2, max_waiting=2)
    for name in "12":
        ledger.accept(inbound(name))
    with pytest.raises(Busy):
        ledger.accept(inbound("3"))
    ledger.accept(inbound("4", "other"))
    with pytest.raises(Busy):
        ledger.accept(inbound("5", "third"))
    other = ledger.begin("other")
    assert other is not None
    ledger.finish(other)
    assert ledger.accept(inbound("6", "third")) is not None
    assert ledger.last("other") is None


def test_the_bytes_that_wait_are_bounded_and_freed() -> None:
    ledger = Ledger(max_bytes=8)
    one = ledger.accept(inbound("1"))
    assert one is not None
    with pytest.raises(Busy):
        ledger.accept(inbound("2"))
    ledger.begin("chat")
    ledger.finish(one)
    assert one.inbound.content == ""
    assert ledger.accept(inbound("2")) is not None


@given(st.lists(st.sampled_from("abc"), max_size=30), st.randoms())
def test_whatever_the_order_every_message_ends_once_and_in_its_chats_order(
    chats: list[str], random: object
) -> None:
    ledger, ended = Ledger(), []
    for number, chat in enumerate(chats):
        ledger.accept(inbound(str(number), chat))
    while len(ledger):
        chat = random.choice("abc")  # type: ignore[attr-defined]
        if (running := ledger.running(chat) or ledger.begin(chat)) is None:
            continue
        assert ledger.finish(running) is not None
        ended.append((chat, int(running.message_id)))
    assert len(ended) == len(chats)
    for chat in "abc":
        mine = [number for name, number in ended if name == chat]
        assert mine == sorted(mine)


def test_the_answer_is_what_the_agent_ended_with() -> None:
    one = turn()
    one.reply = "a notice that looks like a reply"
    one.answered("the answer")
    assert verdict(one) == ("completed", "", "the answer")
    one.interrupted = True
    assert verdict(one)[0] == "completed"
    one.canceled = True
    assert verdict(one) == ("canceled", "", "")


def test_a_failed_call_of_the_model_fails_the_turn_unless_a_later_one_succeeds() -> None:
    one = turn()
    one.model_failed("Error code: 401 - {'error': {'message': 'No.', 'code': 'bad_key'}}", 401)
    one.reply = "⚠️ Provider authentication failed."
    assert verdict(one)[:2] == ("failed", "auth")
    assert one.failure is not None
    assert one.failure.message == "the model provider answered: No. (bad_key)"
    one.model_called(None)
    one.answered("fine")
    assert verdict(one)[0] == "completed"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[SILENT]", ("completed", "", "")),
        (" *no_reply*. ", ("completed", "", "")),
        ("", ("failed", "empty_reply", "")),
        ("(empty)", ("failed", "empty_reply", "")),
        ("⚠️ No reply: nothing came. Try `continue`.", ("failed", "empty_reply", "")),
        ("The\n\n⚠️ No reply: the stream stopped. Try.", ("failed", "interrupted", "")),
        ("I say [SILENT] aloud", ("completed", "", "I say [SILENT] aloud")),
    ],
)
def test_what_an_answer_means(text: str, expected: tuple[str, str, str]) -> None:
    one = turn()
    one.answered(text)
    assert verdict(one) == expected


@pytest.mark.parametrize(
    ("reply", "ran", "expected"),
    [
        ("a runtime without hooks says this", True, ""),
        ("⏳ Gateway is draining and is not accepting new work.", False, "draining"),
        ("Too many active sessions", False, "busy"),
        ("Something else", False, "internal"),
        ("API call failed after 3 retries: timeout", True, "timeout"),
        (None, True, "interrupted"),
    ],
)
def test_a_reply_without_an_end_of_the_agent_counts_only_if_it_ran(
    reply: str | None, ran: bool, expected: str
) -> None:
    one = turn()
    one.reply, one.agent_ran = reply, ran
    assert verdict(one)[1] == expected


def test_usage_adds_up() -> None:
    one = turn()
    one.model_called(Usage(1, 2, 3, "m"))
    one.model_called(Usage(10, 20, 30, "m"))
    assert one.usage == Usage(11, 22, 33, "m")


def test_drafts_become_deltas() -> None:
    one = turn()
    callbacks = [
        one.draft(1, "Let"),
        one.draft(1, "Let me"),
        one.draft(1, "Let me"),
        one.segment("Let me see."),
        one.draft(2, "\n\nIt"),
        one.draft(2, "\n\nIt is"),
        one.draft(2, "They are"),
    ]
    seen = [(c.content, c.body) for c in callbacks if isinstance(c, Callback)]
    assert seen == [
        ("Let", Delta()),
        (" me", Delta()),
        (" see.", Delta()),
        ("It", Delta(replace=True)),
        (" is", Delta()),
        ("They are", Delta(replace=True)),
    ]


@pytest.mark.parametrize(("said", "told"), [("\ud83d" + "\ude00", "😀"), ("a\ud83d", "a�")])
def test_half_a_character_reaches_the_bridge(said: str, told: str) -> None:
    """A callback that is not Unicode would be refused, and the final with it."""
    one = turn()
    one.answered(said)
    assert Callback.parse(one.final().to_json()).content == told
