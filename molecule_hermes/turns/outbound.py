"""The seam between a turn and the other agents that its agent may ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from molecule_hermes.wire import Called, PeerCall

__all__ = ["Outbound", "Progress", "TurnCalls"]

Progress: TypeAlias = Callable[[str], None]
"""Shows the peer a line about what another agent does for the turn."""


class TurnCalls(Protocol):
    """The calls of one turn."""

    async def call(self, call: PeerCall) -> Called:
        """Never raises: a failure is a result, too."""

    async def close(self, *, completed: bool) -> None:
        """The turn is over. Calls that still wait end, and their tasks are canceled. A task that
        asked something stays if the turn was completed, for a later turn to answer."""


class Outbound(Protocol):
    """What an agent may ask, for one message of a peer after another."""

    def begin(self, conversation: str, progress: Progress) -> TurnCalls:
        """The calls of a turn in this conversation."""
