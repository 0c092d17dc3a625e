from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.errors import TurnFailure
from molecule_hermes.plugin.turn import Turn
from molecule_hermes.plugin.verdict import final_of, provider_failure
from molecule_hermes.wire import Callback, Final, Inbound


def turn() -> Turn:
    return Turn(Inbound("chat", "peer", "m", "http://127.0.0.1:1/", "hello"))


def verdict(turn: Turn) -> tuple[str, str, str]:
    callback = final_of(turn)
    assert isinstance(callback.body, Final)
    problem = callback.body.error
    return callback.body.status, problem.kind if problem else "", callback.content


def test_a_canceled_turn_is_canceled_whatever_else_happened() -> None:
    one = turn()
    one.canceled = one.interrupted = True
    assert final_of(one).body == Final("canceled")


@pytest.mark.parametrize(("text", "expected"), [("", "completed"), ("(empty)", "failed")])
def test_an_answer_with_files_may_have_no_text(text: str, expected: str) -> None:
    one = turn()
    one.has_files = True
    one.answered(text)
    assert verdict(one)[0] == expected


@pytest.mark.parametrize("body", ["{[]: 1}", "{{'error': 1}: 2}", "{{'error': 'x'}}", "{1: " * 500])
def test_an_error_that_resembles_a_mapping_is_a_failure(body: str) -> None:
    failure = provider_failure(f"Error code: 400 - {body}", 400)
    assert failure.kind == "bad_request"


@given(st.text(), st.none() | st.integers(100, 599))
def test_any_error_of_a_provider_is_a_failure(error: str, status: int | None) -> None:
    assert isinstance(provider_failure(error, status), TurnFailure)
    assert isinstance(provider_failure(f"Error code: 400 - {{{error}", status), TurnFailure)


@given(st.text(), st.booleans(), st.booleans())
def test_any_answer_or_reply_has_a_verdict(text: str, ran: bool, has_files: bool) -> None:
    one = turn()
    one.reply, one.agent_ran, one.has_files = text, ran, has_files
    assert verdict(one)[0] in ("completed", "failed")
    one.answered(text)
    assert verdict(one)[0] in ("completed", "failed")


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
    error = "Error code: 401 - {'error': {'message': 'No.', 'code': 'bad_key'}}"
    one.model_failed(provider_failure(error, 401))
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
def test_special_answers_are_recognised(text: str, expected: tuple[str, str, str]) -> None:
    one = turn()
    one.answered(text)
    assert verdict(one) == expected


@pytest.mark.parametrize("text", ["⚠️ No reply: closed. Try.", "It says:\n\n⚠️ No reply: closed."])
def test_what_the_model_itself_wrote_is_an_answer(text: str) -> None:
    one = turn()
    one.answered(text, written=True)
    assert verdict(one) == ("completed", "", text)


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
def test_a_reply_counts_as_the_answer_only_if_the_agent_ran(
    reply: str | None, ran: bool, expected: str
) -> None:
    one = turn()
    one.reply, one.agent_ran = reply, ran
    assert verdict(one)[1] == expected


@pytest.mark.parametrize(("streamed", "expected"), [("\ud83d" + "\ude00", "😀"), ("a\ud83d", "a�")])
def test_text_with_surrogates_reaches_the_bridge(streamed: str, expected: str) -> None:
    """A callback that is not Unicode would be refused, and the final with it."""
    one = turn()
    one.answered(streamed)
    assert Callback.parse(final_of(one).to_json()).content == expected
