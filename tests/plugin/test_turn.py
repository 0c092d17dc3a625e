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
