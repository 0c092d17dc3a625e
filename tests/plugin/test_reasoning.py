from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.plugin import PLATFORM
from molecule_hermes.plugin.reasoning import ReasoningText, reasoning_in
from molecule_hermes.text import redact
from molecule_hermes.wire import Reasoning
from tests.support.gateway import callback_server, running_hermes

WORDS = st.sampled_from(["I ", "think\n", "that ", "therefore, ", "世界", " " * 50, "x" * 300])


@given(st.lists(WORDS, max_size=200))
def test_all_that_is_thought_arrives_in_order(deltas: list[str]) -> None:
    text = ReasoningText()
    pieces = [text.add(delta) for delta in deltas]
    assert "".join([*pieces, text.rest()]) == "".join(deltas)
    assert text.seen is bool(deltas)


@given(
    st.text("ab \n", max_size=400),
    st.sampled_from(
        ["Bearer abcdefghijkl", "the API key is: abcd1234efgh", "password = hunter2hunter2"]
    ),
    st.text("ab \n", max_size=400),
    st.integers(1, 50),
)
def test_a_secret_in_many_small_pieces_does_not_get_through(
    before: str, secret: str, after: str, size: int
) -> None:
    whole = f"{before} {secret} {after}"
    text = ReasoningText()
    pieces = [text.add(whole[at : at + size]) for at in range(0, len(whole), size)]
    shown = "".join([*pieces, text.rest()])
    assert shown == redact(whole)
    assert secret not in shown


def test_text_is_shown_before_the_thought_is_over() -> None:
    text = ReasoningText()
    shown = "".join(text.add("word ") for _ in range(100))
    assert 300 < len(shown) < 500


def test_endless_thoughts_are_cut() -> None:
    text = ReasoningText(most=1000)
    shown = "".join(text.add("word ") for _ in range(10_000)) + text.rest()
    assert shown.startswith("word word")
    assert shown.endswith("[…]")
    assert len(shown) < 1010


def test_what_hermes_repeats_after_a_call_is_not_shown_again() -> None:
    text = ReasoningText()
    shown = ""
    for _ in range(2):
        text.begin_call()
        shown += text.add("hm") + text.add(" so") + text.end_call()
        shown += text.add("hm so") + text.rest()
    # A call that begins with the same word as the last one is another thought.
    text.begin_call()
    shown += text.add("hm so") + text.end_call()
    assert shown == "hm so\n\nhm so\n\nhm so"


def test_a_history_that_is_none_holds_no_reasoning() -> None:
    for history in (None, "x", [], ["x"], [{"role": "assistant", "reasoning": 1}]):
        assert reasoning_in(history) == ""


@pytest.mark.hermes
async def test_a_hermes_that_does_not_stream_its_answers_thinks_everything_once(
    tmp_path: Path,
) -> None:
    over = {
        "streaming": {"enabled": False},
        "display": {"platforms": {PLATFORM: {"streaming": False}}},
    }
    async with running_hermes(tmp_path, over=over) as hermes, callback_server() as callbacks:
        said = "demo:think first this, then that\ndemo:run echo hi"
        message = await hermes.say(callbacks, said, wants=("reasoning",))
        await callbacks.final(message)
    thought = [c.content for c in callbacks.of(message) if isinstance(c.body, Reasoning)]
    # The model thinks before the tool call and before the answer.
    assert "".join(thought) == "first this, then that\n\nfirst this, then that"
