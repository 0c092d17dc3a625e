"""Schedules turns: one at a time per conversation in order of arrival, fair between peers, bounded.

No I/O and no clock. `enter` queues a turn and returns its slot; `Slot.wait` returns when the turn
may run. When capacity becomes free, it goes to the peer that has waited longest for it, no matter
how many turns the other peers have queued, and for how many agents. Agents share the capacity; each
agent and each peer can have limits of its own below that.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from typing import Self

from molecule_hermes.config import Limits
from molecule_hermes.errors import Busy, Draining, TurnFailure

__all__ = ["Scheduler", "Slot"]


_NO_LIMIT = Limits()


class Slot:
    """A turn in the scheduler, queued or running. Leaving the `async with` block removes it."""

    def __init__(
        self,
        scheduler: Scheduler,
        conversation: str,
        peer: str,
        agent: str,
        size: int,
        *,
        counts: bool = True,
    ) -> None:
        self._scheduler = scheduler
        self.conversation = conversation
        self.peer = peer
        self.agent = agent
        self.size = size
        self.counts = counts
        """Whether it takes capacity while it runs."""
        self._may_run: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    @property
    def started(self) -> bool:
        return self._scheduler._running.get(self.conversation) is self

    @property
    def paused(self) -> bool:
        return self in self._scheduler._paused

    async def wait(self) -> bool:
        """True when the turn may run, False when it was withdrawn; raises when all is closed."""
        return await asyncio.shield(self._may_run)

    def pause(self) -> None:
        """Frees the turn's capacity while it waits for its peer. Its conversation stays occupied.

        Raises `Busy` when too many turns are paused.
        """
        self._scheduler._pause(self)

    def resume(self) -> None:
        """Takes capacity again at once, even if none is free: Hermes goes on without waiting."""
        self._scheduler._resume(self)

    def withdraw(self) -> None:
        """Removes the turn from the queue if it is still waiting."""
        if not self._may_run.done():
            self._may_run.set_result(False)

    def leave(self) -> None:
        """Removes the turn, queued or running, and starts the turns that may run instead."""
        self._scheduler._leave(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.leave()

    def _start(self) -> None:
        if not self._may_run.done():
            self._may_run.set_result(True)

    def _refuse(self, failure: TurnFailure) -> None:
        if not self._may_run.done():
            self._may_run.set_exception(failure)
            self._may_run.exception()  # retrieved here, in case nothing awaits it


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
        """Limits on running, queued and paused turns, in total and per peer.

        One peer may have half of `max_waiting_bytes`. With `max_running_of_peer` 0 there is no
        limit per peer.
        """
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._max_waiting_of_peer = max_waiting_of_peer
        self._max_running_of_peer = max_running_of_peer or max_running
        self._of_agent: Mapping[str, Limits] = {}
        self._of_peer: Mapping[str, Limits] = {}
        self._max_waiting_bytes = max_waiting_bytes
        self._max_paused = max_paused
        self._max_paused_of_peer = max_paused_of_peer
        self._running: dict[str, Slot] = {}
        """The running or paused turn of each conversation."""
        self._paused: set[Slot] = set()
        self._paused_of: Counter[str] = Counter()
        self._queues: dict[str, deque[Slot]] = {}
        """Queued turns by conversation."""
        self._ready: OrderedDict[str, _Agents] = OrderedDict()
        """Conversations with queued turns and no running one, by peer; the first peer is next."""
        self._running_of: Counter[str] = Counter()
        self._running_at: Counter[str] = Counter()
        """By agent."""
        self._waiting_of: Counter[str] = Counter()
        self._waiting_at: Counter[str] = Counter()
        self._bytes_of: Counter[str] = Counter()
        self._closed: TurnFailure | None = None

    def limit(
        self,
        of_agent: Mapping[str, Limits],
        of_peer: Mapping[str, Limits],
        *,
        max_running_of_peer: int = 0,
    ) -> None:
        """Sets the limits of single agents and peers, and the one of all other peers.

        Turns that run or wait already stay, even if there are more of them than the limits allow.
        """
        self._of_agent, self._of_peer = of_agent, of_peer
        self._max_running_of_peer = max_running_of_peer or self._max_running
        self._start_ready()

    @property
    def running(self) -> int:
        return len(self._running) - len(self._paused)

    @property
    def waiting(self) -> int:
        return self._waiting_of.total()

    @property
    def waiting_bytes(self) -> int:
        return self._bytes_of.total()

    def enter(
        self,
        conversation: str,
        peer: str = "",
        size: int = 0,
        *,
        agent: str = "",
        runs: bool = False,
        counts: bool = True,
    ) -> Slot:
        """Starts or queues a turn of `size` bytes. One that Hermes `runs` already starts at once.
        One that does not count takes no capacity from the turns of peers.

        Raises `Busy` when the queue is full and `Draining` when the scheduler is closed.
        """
        if self._closed is not None:
            raise self._closed
        slot = Slot(self, conversation, peer, agent, size, counts=counts)
        has_capacity = runs or (self._has_capacity(peer) and self._agent_has_capacity(agent))
        if conversation not in self._running and has_capacity:
            self._start(slot)
        else:
            self._refuse_if_full(slot)
            self._enqueue(slot)
        return slot

    def close(self, failure: TurnFailure | None = None) -> None:
        """Refuses new turns and fails all queued ones. Running turns go on."""
        self._closed = failure or Draining()
        waiting = [slot for queue in self._queues.values() for slot in queue]
        self._queues.clear()
        self._ready.clear()
        self._waiting_of.clear()
        self._waiting_at.clear()
        self._bytes_of.clear()
        for slot in waiting:
            slot._refuse(self._closed)

    def _has_capacity(self, peer: str) -> bool:
        # Resumed turns can push a peer over its limit. The excess does not count against others.
        taken = sum(
            min(count, self._running_limit(each)) for each, count in self._running_of.items()
        )
        return taken < self._max_running and self._running_of[peer] < self._running_limit(peer)

    def _running_limit(self, peer: str) -> int:
        return self._of_peer.get(peer, _NO_LIMIT).running or self._max_running_of_peer

    def _agent_has_capacity(self, agent: str) -> bool:
        limit = self._of_agent.get(agent, _NO_LIMIT).running
        return not limit or self._running_at[agent] < limit

    def _refuse_if_full(self, slot: Slot) -> None:
        of_peer, at_agent = self._waiting_of[slot.peer], self._waiting_at[slot.agent]
        max_of_peer = self._of_peer.get(slot.peer, _NO_LIMIT).waiting or self._max_waiting_of_peer
        max_at_agent = self._of_agent.get(slot.agent, _NO_LIMIT).waiting
        bytes_of_peer = self._bytes_of[slot.peer] + slot.size
        if self.waiting >= self._max_waiting:
            reason = f"{self.running} turns are running and {self.waiting} are queued"
        elif of_peer >= max_of_peer:
            reason = f"{of_peer} of your turns are queued"
        elif max_at_agent and at_agent >= max_at_agent:
            reason = f"{at_agent} turns are queued for this agent"
        elif bytes_of_peer > self._max_waiting_bytes // 2:
            reason = (
                f"your queued turns would have {bytes_of_peer:,} bytes, more than "
                f"{self._max_waiting_bytes // 2:,}"
            )
        elif self.waiting_bytes + slot.size > self._max_waiting_bytes:
            reason = f"the queued turns have {self.waiting_bytes:,} bytes"
        else:
            return
        raise Busy(reason, hint="try again in 5 seconds")

    def _start(self, slot: Slot) -> None:
        self._running[slot.conversation] = slot
        self._count(slot)
        slot._start()

    def _count(self, slot: Slot) -> None:
        if not slot.counts:
            return
        self._running_of[slot.peer] += 1
        self._running_at[slot.agent] += 1

    def _discount(self, slot: Slot) -> None:
        if not slot.counts:
            return
        _subtract(self._running_of, slot.peer, 1)
        _subtract(self._running_at, slot.agent, 1)

    def _enqueue(self, slot: Slot) -> None:
        self._queues.setdefault(slot.conversation, deque()).append(slot)
        self._waiting_of[slot.peer] += 1
        self._waiting_at[slot.agent] += 1
        self._bytes_of[slot.peer] += slot.size
        if slot.conversation not in self._running:
            self._make_ready(slot)

    def _make_ready(self, slot: Slot) -> None:
        agents = self._ready.setdefault(slot.peer, OrderedDict())
        agents.setdefault(slot.agent, OrderedDict())[slot.conversation] = None

    def _pause(self, slot: Slot) -> None:
        if len(self._paused) >= self._max_paused:
            raise Busy(f"{len(self._paused)} questions are waiting for answers")
        if self._paused_of[slot.peer] >= self._max_paused_of_peer:
            raise Busy(f"{self._paused_of[slot.peer]} of your questions are waiting for answers")
        self._paused.add(slot)
        self._paused_of[slot.peer] += 1
        self._discount(slot)
        self._start_ready()

    def _resume(self, slot: Slot) -> None:
        if slot in self._paused:
            self._paused.remove(slot)
            _subtract(self._paused_of, slot.peer, 1)
            self._count(slot)

    def _leave(self, slot: Slot) -> None:
        if self._running.get(slot.conversation) is slot:
            self._resume(slot)
            del self._running[slot.conversation]
            self._discount(slot)
            if slot.conversation in self._queues:
                self._make_ready(slot)
        elif slot in self._queues.get(slot.conversation, ()):
            self._dequeue(slot)
        self._start_ready()

    def _dequeue(self, slot: Slot) -> None:
        queue = self._queues[slot.conversation]
        queue.remove(slot)
        _subtract(self._waiting_of, slot.peer, 1)
        _subtract(self._waiting_at, slot.agent, 1)
        _subtract(self._bytes_of, slot.peer, slot.size)
        if not queue:
            del self._queues[slot.conversation]
            self._unready(slot)

    def _unready(self, slot: Slot) -> None:
        agents = self._ready.get(slot.peer, OrderedDict())
        if (ready := agents.get(slot.agent)) is None:
            return
        ready.pop(slot.conversation, None)
        if not ready:
            del agents[slot.agent]
        if not agents:
            del self._ready[slot.peer]

    def _start_ready(self) -> None:
        while (slot := self._next()) is not None:
            self._unready(slot)
            self._dequeue(slot)
            self._start(slot)
            if agents := self._ready.get(slot.peer):
                self._ready.move_to_end(slot.peer)
                if slot.agent in agents:
                    agents.move_to_end(slot.agent)

    def _next(self) -> Slot | None:
        """The turn that may start now: the first of the first peer with one for a free agent."""
        for peer in filter(self._has_capacity, self._ready):
            for agent in filter(self._agent_has_capacity, self._ready[peer]):
                return self._queues[next(iter(self._ready[peer][agent]))][0]
        return None


_Agents = OrderedDict[str, OrderedDict[str, None]]
"""Conversations by agent; the first agent is next."""


def _subtract(counter: Counter[str], name: str, count: int) -> None:
    """Removes names that reach zero, so that peers long gone use no memory."""
    counter[name] -= count
    if not counter[name]:
        del counter[name]
