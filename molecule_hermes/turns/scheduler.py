"""One turn at a time per conversation, in order of arrival; peers take turns; bounds on all.

No I/O and no clock: `enter` puts a turn in line, `Slot.started` tells when it may run. When a place
becomes free, the peer that waited longest for one gets it, however many turns another has in line.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from typing import Self

from molecule_hermes.errors import Busy, Draining, TurnFailure

__all__ = ["Scheduler", "Slot"]


class Slot:
    """A turn's place in line. Leave it with `async with`, whatever happens."""

    def __init__(self, line: Scheduler, conversation: str, peer: str, size: int) -> None:
        self._line = line
        self.conversation = conversation
        self.peer = peer
        self.size = size
        self._turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    @property
    def started(self) -> bool:
        return self._line._running.get(self.conversation) is self

    async def wait(self) -> bool:
        """Whether the turn may run (else it was withdrawn); raises when the line was closed."""
        return await asyncio.shield(self._turn)

    def pause(self) -> None:
        """Gives the place to others while the turn waits for its peer; the conversation stays
        closed. Raises `Busy` when too many turns wait like that."""
        self._line._pause(self)

    def resume(self) -> None:
        """Takes a place again, at once: Hermes does not wait for one to become free."""
        self._line._resume(self)

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


class Scheduler:
    def __init__(
        self,
        max_running: int = 10,
        max_waiting: int = 200,
        max_waiting_of_peer: int = 100,
        *,
        max_running_of_peer: int = 0,
        max_waiting_bytes: int = 64 * 2**20,
        max_paused: int = 64,
        max_paused_of_peer: int = 16,
    ) -> None:
        """Of the bytes that wait, half may be one peer's. 0 of a peer: as many as run at all."""
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._max_waiting_of_peer = max_waiting_of_peer
        self._max_running_of_peer = max_running_of_peer or max_running
        self._max_waiting_bytes = max_waiting_bytes
        self._max_paused = max_paused
        self._max_paused_of_peer = max_paused_of_peer
        self._running: dict[str, Slot] = {}
        """The turn that each conversation is in, paused or not."""
        self._paused: set[Slot] = set()
        self._paused_of: Counter[str] = Counter()
        self._lines: dict[str, deque[Slot]] = {}
        """Who waits, by conversation."""
        self._ready: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()
        """Scheduler with somebody in line and nobody running, by peer, in turn."""
        self._running_of: Counter[str] = Counter()
        self._waiting_of: Counter[str] = Counter()
        self._bytes_of: Counter[str] = Counter()
        self._closed: TurnFailure | None = None

    @property
    def running(self) -> int:
        return len(self._running) - len(self._paused)

    @property
    def waiting(self) -> int:
        return self._waiting_of.total()

    @property
    def waiting_bytes(self) -> int:
        return self._bytes_of.total()

    def enter(self, conversation: str, peer: str = "", size: int = 0) -> Slot:
        """Puts a turn of `size` bytes in line; raises `Busy` when the line is full, `Draining`
        when closed."""
        if self._closed is not None:
            raise self._closed
        slot = Slot(self, conversation, peer, size)
        if conversation not in self._running and self._has_place(peer):
            self._start(slot)
        else:
            self._refuse_if_full(slot)
            self._wait(slot)
        return slot

    def close(self, failure: TurnFailure | None = None) -> None:
        """Lets nobody in any more and answers everyone who waits; the running ones go on."""
        self._closed = failure or Draining()
        waiting = [slot for line in self._lines.values() for slot in line]
        self._lines.clear()
        self._ready.clear()
        self._waiting_of.clear()
        self._bytes_of.clear()
        for slot in waiting:
            slot._refuse(self._closed)

    def _has_place(self, peer: str) -> bool:
        most = self._max_running_of_peer
        # Turns that go on after an answer may be more than their peer's share. What is over it
        # takes no place from others.
        taken = sum(min(count, most) for count in self._running_of.values())
        return taken < self._max_running and self._running_of[peer] < most

    def _refuse_if_full(self, slot: Slot) -> None:
        of_peer = self._waiting_of[slot.peer]
        bytes_of_peer = self._bytes_of[slot.peer] + slot.size
        if self.waiting >= self._max_waiting:
            what = f"{self.running} turns run and {self.waiting} wait already"
        elif of_peer >= self._max_waiting_of_peer:
            what = f"{of_peer} of your turns wait already"
        elif bytes_of_peer > self._max_waiting_bytes // 2:
            what = (
                f"your turns that wait would have {bytes_of_peer:,} bytes, more than "
                f"{self._max_waiting_bytes // 2:,}"
            )
        elif self.waiting_bytes + slot.size > self._max_waiting_bytes:
            what = f"the turns that wait have {self.waiting_bytes:,} bytes already"
        else:
            return
        raise Busy(what, hint="try again in 5 seconds")

    def _start(self, slot: Slot) -> None:
        self._running[slot.conversation] = slot
        self._running_of[slot.peer] += 1
        slot._start()

    def _wait(self, slot: Slot) -> None:
        self._lines.setdefault(slot.conversation, deque()).append(slot)
        self._waiting_of[slot.peer] += 1
        self._bytes_of[slot.peer] += slot.size
        if slot.conversation not in self._running:
            self._ready.setdefault(slot.peer, OrderedDict())[slot.conversation] = None

    def _pause(self, slot: Slot) -> None:
        if len(self._paused) >= self._max_paused:
            raise Busy(f"{len(self._paused)} questions wait for answers already")
        if self._paused_of[slot.peer] >= self._max_paused_of_peer:
            raise Busy(f"{self._paused_of[slot.peer]} of your questions wait for answers already")
        self._paused.add(slot)
        self._paused_of[slot.peer] += 1
        _subtract(self._running_of, slot.peer, 1)
        self._start_those_who_may()

    def _resume(self, slot: Slot) -> None:
        if slot in self._paused:
            self._paused.remove(slot)
            _subtract(self._paused_of, slot.peer, 1)
            self._running_of[slot.peer] += 1

    def _leave(self, slot: Slot) -> None:
        if self._running.get(slot.conversation) is slot:
            self._resume(slot)
            del self._running[slot.conversation]
            _subtract(self._running_of, slot.peer, 1)
            if slot.conversation in self._lines:
                self._ready.setdefault(slot.peer, OrderedDict())[slot.conversation] = None
        elif slot in self._lines.get(slot.conversation, ()):
            self._take_out(slot)
        self._start_those_who_may()

    def _take_out(self, slot: Slot) -> None:
        line = self._lines[slot.conversation]
        line.remove(slot)
        _subtract(self._waiting_of, slot.peer, 1)
        _subtract(self._bytes_of, slot.peer, slot.size)
        if not line:
            del self._lines[slot.conversation]
            self._not_ready(slot)

    def _not_ready(self, slot: Slot) -> None:
        ready = self._ready.get(slot.peer)
        if ready is not None:
            ready.pop(slot.conversation, None)
            if not ready:
                del self._ready[slot.peer]

    def _start_those_who_may(self) -> None:
        while (peer := next(filter(self._has_place, self._ready), None)) is not None:
            slot = self._lines[next(iter(self._ready[peer]))][0]
            self._not_ready(slot)
            self._take_out(slot)
            self._start(slot)
            if peer in self._ready:
                self._ready.move_to_end(peer)


def _subtract(counter: Counter[str], name: str, count: int) -> None:
    """Names without a count are not kept."""
    counter[name] -= count
    if not counter[name]:
        del counter[name]
