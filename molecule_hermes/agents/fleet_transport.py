"""The transport of an agent whose workers this bridge runs.

It knows which worker a turn belongs to, has it started, and passes everything on to the worker's
own transport.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, Self

from molecule_hermes.errors import BadRequest, Interrupted
from molecule_hermes.hermes.fleet import Fleet, Lease
from molecule_hermes.hermes.seat import WorkerKey
from molecule_hermes.hermes.terminal import Terminal
from molecule_hermes.hermes.worker import Worker
from molecule_hermes.transports.base import Attached, QuestionGoneError
from molecule_hermes.transports.deliveries import Receiver
from molecule_hermes.transports.plugin.lending import Lent
from molecule_hermes.transports.plugin.transport import PluginTransport
from molecule_hermes.turns.features import TransportName, features_of
from molecule_hermes.turns.model import Canceled, Notice, Place, Turn, TurnEvent
from molecule_hermes.wire import Steered

__all__ = ["FleetTransport"]

Check = Callable[[], Awaitable[None]]


class FleetTransport:
    """`key_of` names the worker of a peer, and `check` says whether a turn can begin. The fleet is
    opened and closed by its owner, which `on_receiver` tells who takes its workers' deliveries.
    `on_close` is called when the agent has ended its last turn."""

    def __init__(
        self,
        fleet: Fleet[Worker],
        key_of: Callable[[str], WorkerKey],
        name: TransportName,
        *,
        check: Check,
        on_close: Callable[[], None],
        on_receiver: Callable[[Receiver], None],
    ) -> None:
        self.features = features_of(name)
        self._fleet = fleet
        self._key_of = key_of
        self._check = check
        self._on_close = on_close
        self._on_receiver = on_receiver
        self._running: dict[str, Worker] = {}
        """The workers that have turns, by message."""
        self._starting: dict[str, asyncio.Event] = {}
        """Turns that wait for their worker, and whether they are canceled."""
        self._leaves_turns = False

    @property
    def pending(self) -> int:
        return len(self._running) + len(self._starting)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        """The fleet closes the workers' transports."""
        self._on_close()

    async def run(self, turn: Turn) -> AsyncGenerator[TurnEvent, None]:
        async with self._fleet.lease(self._key(turn)) as lease:
            if not lease.is_ready:
                yield Notice("the agent is being started", kind="waiting")
            worker = await self._ready(turn, lease)
            if worker is None:
                yield Canceled()
                return
            with self._on(worker, turn):
                async with aclosing(worker.transport.run(turn)) as events:
                    async for event in events:
                        yield event

    async def _ready(self, turn: Turn, lease: Lease[Worker]) -> Worker | None:
        """The turn's worker; None if the turn is canceled before it is ready."""
        canceled = self._starting[turn.message_id] = asyncio.Event()
        ready = asyncio.ensure_future(lease.ready())
        waiting = asyncio.ensure_future(canceled.wait())
        try:
            await asyncio.wait({ready, waiting}, return_when=asyncio.FIRST_COMPLETED)
            return None if canceled.is_set() else ready.result()
        finally:
            del self._starting[turn.message_id]
            ready.cancel()
            waiting.cancel()
            await asyncio.gather(ready, waiting, return_exceptions=True)

    @contextlib.contextmanager
    def _on(self, worker: Worker, turn: Turn) -> Iterator[None]:
        self._running[turn.message_id] = worker
        try:
            yield
        finally:
            del self._running[turn.message_id]

    def place(self, turn: Turn) -> Place:
        worker = self._running.get(turn.message_id) or self._fleet.worker(self._key(turn))
        return worker.transport.place(turn)

    async def attach(self, turn: Turn, place: Place) -> Attached:
        key = self._key(turn)
        if place.address != self._fleet.worker(key).transport.place(turn).address:
            raise Interrupted("the turn ran in another Hermes before the agent was restarted")
        async with contextlib.AsyncExitStack() as stack:
            lease = await stack.enter_async_context(self._fleet.lease(key))
            worker = await lease.ready(as_it_is=True)
            attached = await worker.transport.attach(turn, place)
            stack.enter_context(self._on(worker, turn))
            return Attached(_Leased(attached.events, stack.pop_all()), attached.questions)

    def take_deliveries(self, receiver: Receiver) -> None:
        self._on_receiver(receiver)

    @asynccontextmanager
    async def lend(self, turn: Turn) -> AsyncIterator[Terminal]:
        """Within it, the turns of the conversation wait, and Hermes's own CLI can go on with it.
        Raises a `TurnFailure`."""
        async with self._worker_with(turn) as worker, self.lent(turn) as lent:
            yield worker.gateway.terminal(lent.session_id)

    @asynccontextmanager
    async def lent(self, turn: Turn) -> AsyncIterator[Lent]:
        """Within it, the turns of the conversation wait. Raises a `TurnFailure`."""
        async with self._worker_with(turn) as worker:
            if not isinstance(worker.transport, PluginTransport):
                raise BadRequest("the agent is reached over chat completions", hint="")
            async with worker.transport.lent(turn) as lent:
                yield lent

    @asynccontextmanager
    async def _worker_with(self, turn: Turn) -> AsyncIterator[Worker]:
        async with self._fleet.lease(self._key(turn)) as lease:
            yield await lease.ready()

    def leave_turns(self) -> None:
        for worker in self._fleet.workers:
            worker.transport.leave_turns()

    async def cancel(self, turn: Turn) -> None:
        if canceled := self._starting.get(turn.message_id):
            canceled.set()
        elif worker := self._running.get(turn.message_id):
            await worker.transport.cancel(turn)

    async def answer(self, turn: Turn, question_id: str, answer: str) -> None:
        worker = self._running.get(turn.message_id)
        if worker is None:
            raise QuestionGoneError(question_id)
        await worker.transport.answer(turn, question_id, answer)

    async def steer(self, turn: Turn, text: str) -> Steered:
        worker = self._running.get(turn.message_id)
        if worker is None:
            return Steered(False, "the agent is being started; send a new message in a moment")
        return await worker.transport.steer(turn, text)

    async def check(self) -> None:
        await self._check()

    def _key(self, turn: Turn) -> WorkerKey:
        return self._key_of(turn.peer)


class _Leased(AsyncGenerator[TurnEvent, None]):
    """A turn's events; the worker's lease ends with them, also if they were never read."""

    def __init__(
        self, events: AsyncGenerator[TurnEvent, None], lease: contextlib.AsyncExitStack
    ) -> None:
        self._events = events
        self._lease = lease

    async def asend(self, value: None) -> TurnEvent:
        return await self._events.asend(value)

    async def athrow(self, *error: Any) -> TurnEvent:
        return await self._events.athrow(*error)

    async def aclose(self) -> None:
        try:
            await self._events.aclose()
        finally:
            await self._lease.aclose()
