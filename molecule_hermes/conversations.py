"""One turn at a time per conversation, in order of arrival; bounds on running and waiting.

No I/O and no clock: `enter` puts a turn in line, `Slot.started` tells when it may run.
"""

from __future__ import annotations

import asyncio
from typing import Self

from molecule_hermes.errors import Busy, Draining, TurnFailure

__all__ = ["Conversations", "Slot"]


class Slot:
    """A turn's place in line. Leave it with `async with`, whatever happens."""

    def __init__(self, line: Conversations, conversation: str) -> None:
        self._line = line
        self.conversation = conversation
        self._turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    @property
    def started(self) -> bool:
        return self._line._running.get(self.conversation) is self

    async def wait(self) -> bool:
        """Whether the turn may run (else it was withdrawn); raises when the line was closed."""
        return await asyncio.shield(self._turn)

    def withdraw(self) -> None:
        """Takes the turn out of line, if it still waits."""
        if not self._turn.done():
            self._turn.set_result(False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self._line._leave(self)

    def _start(self) -> None:
        if not self._turn.done():
            self._turn.set_result(True)

    def _refuse(self, failure: TurnFailure) -> None:
        if not self._turn.done():
            self._turn.set_exception(failure)
            self._turn.exception()  # seen, even if nobody waits any more


class Conversations:
    def __init__(self, max_running: int = 10, max_waiting: int = 100) -> None:
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._running: dict[str, Slot] = {}
        self._waiting: list[Slot] = []
        self._closed: TurnFailure | None = None

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def enter(self, conversation: str) -> Slot:
        """Puts a turn in line; raises `Busy` when the line is full, `Draining` when closed."""
        if self._closed is not None:
            raise self._closed
        slot = Slot(self, conversation)
        self._waiting.append(slot)
        self._start_those_who_may()
        if not slot.started and len(self._waiting) > self._max_waiting:
            self._waiting.remove(slot)
            raise Busy(
                f"{self.running} turns run and {self.waiting} wait already",
                hint="try again in a few seconds",
            )
        return slot

    def close(self, failure: TurnFailure | None = None) -> None:
        """Lets nobody in any more and answers everyone who waits; the running ones go on."""
        self._closed = failure or Draining()
        waiting, self._waiting = self._waiting, []
        for slot in waiting:
            slot._refuse(self._closed)

    def _leave(self, slot: Slot) -> None:
        if self._running.get(slot.conversation) is slot:
            del self._running[slot.conversation]
        elif slot in self._waiting:
            self._waiting.remove(slot)
        self._start_those_who_may()

    def _start_those_who_may(self) -> None:
        still_waiting = []
        for slot in self._waiting:
            if len(self._running) < self._max_running and slot.conversation not in self._running:
                self._running[slot.conversation] = slot
                slot._start()
            else:
                still_waiting.append(slot)
        self._waiting = still_waiting
