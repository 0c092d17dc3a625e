from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.plugin.reasoning import ReasoningText, reasoning_in
from molecule_hermes.text import redact

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


def test_a_history_that_is_none_holds_no_reasoning() -> None:
    for history in (None, "x", [], ["x"], [{"role": "assistant", "reasoning": 1}]):
        assert reasoning_in(history) == ""
