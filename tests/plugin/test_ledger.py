"""The plugin's ledger of turns, without I/O."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.errors import Busy
from molecule_hermes.plugin.ledger import Ledger
from molecule_hermes.wire import Inbound


def inbound(message_id: str, chat_id: str = "chat") -> Inbound:
    return Inbound(chat_id, "peer", message_id, "http://127.0.0.1:1/", "hello")


def test_messages_of_a_chat_run_one_after_another() -> None:
    ledger = Ledger()
    first, second = ledger.accept(inbound("1")), ledger.accept(inbound("2"))
    assert first is not None
    assert ledger.begin("chat") is first
    assert ledger.begin("chat") is None
    ledger.finish(first)
    assert ledger.begin("chat") is second
    assert len(ledger) == 1


def test_a_message_ends_once() -> None:
    ledger = Ledger()
    one = ledger.accept(inbound("1"))
    assert one is not None
    ledger.begin("chat")
    assert ledger.finish(one)
    assert one.ended.is_set()
    assert not ledger.finish(one)


def test_a_message_is_accepted_only_once_even_after_its_end() -> None:
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


def test_a_waiting_message_can_be_ended() -> None:
    ledger = Ledger()
    turns = [ledger.accept(inbound(name)) for name in "123"]
    ledger.begin("chat")
    assert turns[1] is not None
    assert ledger.finish(turns[1])
    assert ledger.waiting("chat") == [turns[2]]
    assert ledger.running("chat") is turns[0]


def test_too_many_waiting_messages_or_chats_are_refused() -> None:
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


def test_the_bytes_of_waiting_messages_are_bounded_and_freed() -> None:
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
def test_every_message_ends_once_and_in_the_order_of_its_chat(
    chats: list[str], random: object
) -> None:
    ledger, ended = Ledger(), []
    for number, chat in enumerate(chats):
        ledger.accept(inbound(str(number), chat))
    while len(ledger):
        chat = random.choice("abc")  # type: ignore[attr-defined]
        if (running := ledger.running(chat) or ledger.begin(chat)) is None:
            continue
        assert ledger.finish(running)
        ended.append((chat, int(running.message_id)))
    assert len(ended) == len(chats)
    for chat in "abc":
        mine = [number for name, number in ended if name == chat]
        assert mine == sorted(mine)
