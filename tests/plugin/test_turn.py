from __future__ import annotations

from molecule_hermes.plugin.turn import Turn
from molecule_hermes.wire import Callback, Delta, Inbound, Usage


def turn() -> Turn:
    return Turn(Inbound("chat", "peer", "m", "http://127.0.0.1:1/", "hello"))


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


def test_a_text_counts_as_heard_only_if_the_agent_read_all_of_it() -> None:
    one = turn()
    one.steered("use blue")
    one.steered("and red")
    one.heard("…\nuse blue\n…")
    assert one.unheard == ["and red"]
    assert not one.runs_again("and red")  # there is no answer yet
    one.answered("x")
    assert one.runs_again("and red")
    assert (one.unheard, one.interim, one.answer) == ([], ["x"], None)


def test_the_text_of_a_second_run_replaces_that_of_the_first() -> None:
    one = turn()
    one.draft(1, "first")
    one.steered("more")
    assert not one.continues("first", "first")
    one.answered("first")
    assert one.runs_again("more")
    callback = one.draft(1, "first and second")
    assert callback is not None
    assert (callback.body, callback.content) == (Delta(replace=True), "first and second")
    assert one.continues("first and second.", "")
    assert one.continues("the answer\n", "the answer")
    assert not one.continues("a notice", "the answer")
