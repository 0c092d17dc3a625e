"""What a turn took: the metadata of its end."""

from __future__ import annotations

import time
from typing import Any

from molecule_hermes.protocol import status as updates
from molecule_hermes.protocol.active_turn import ActiveTurn
from molecule_hermes.turns.model import Completed, Context, End, Usage

__all__ = ["figures_of", "spent_by"]


def figures_of(active: ActiveTurn, last: End) -> dict[str, Any]:
    now = time.monotonic()
    figures: dict[str, Any] = {"durationSeconds": round(now - active.began, 3)}
    if active.first_text is not None:
        figures["firstTextSeconds"] = round(active.first_text - active.began, 3)
    usage, context = spent_by(active, last)
    if usage is not None or isinstance(last, Completed):
        figures["usage"] = updates.usage(usage or Usage())
    if context is not None:
        figures["context"] = updates.context(context)
    if isinstance(last, Completed) and last.incomplete:
        figures["incomplete"] = True
    return figures


def spent_by(active: ActiveTurn, last: End) -> tuple[Usage | None, Context | None]:
    """The figures of the end, else the last ones that Hermes reported: a turn that the bridge
    ended, or whose Hermes died, has used its tokens all the same."""
    if last.usage is None and active.spent is not None:
        return active.spent.usage, active.spent.context
    return last.usage, last.context
