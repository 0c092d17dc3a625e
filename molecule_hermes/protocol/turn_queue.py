"""The queue through which a turn speaks: each event goes out with how far the turn has come."""

from __future__ import annotations

from collections.abc import Callable

from a2a.server.events import Event, EventQueue

from molecule_hermes.protocol.task_log import TaskLog
from molecule_hermes.protocol.turn_record import TurnRecord

__all__ = ["TurnQueue"]


class TurnQueue(EventQueue):
    """`inner` is the log of the turn's task, or the queue of another A2A server."""

    def __init__(self, inner: EventQueue) -> None:
        self.inner = inner
        self.seq = -1
        """The number of the last event of Hermes that is in what was sent, or is being sent."""
        self.describe: Callable[[int], TurnRecord] | None = None
        """Makes the turn's record, given that number."""

    async def enqueue_event(self, event: Event) -> None:
        if isinstance(self.inner, TaskLog) and self.describe is not None:
            await self.inner.append(event, self.describe(self.seq))
        else:
            await self.inner.enqueue_event(event)

    def advance(self, seq: int) -> None:
        """The next event to go out has all of the turn up to this number."""
        self.seq = max(self.seq, seq)

    def leave(self) -> None:
        """Sends nothing more. The task stays as it is, for another bridge."""
        if isinstance(self.inner, TaskLog):
            self.inner.leave_open()
