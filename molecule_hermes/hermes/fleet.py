"""The workers of a bridge: started when a turn needs them, stopped when nothing of them lives.

The fleet knows a worker only through `Member`. What starts, replaces or stops a worker holds the
lock of its seat.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Generic, Self

from molecule_hermes.errors import Busy, Draining, StartError, TurnFailure, Unreachable
from molecule_hermes.hermes.seat import Seat, State, W, WorkerKey

__all__ = ["Fleet", "Lease"]

logger = logging.getLogger(__name__)

_LONGEST_PAUSE = 15.0
_ANSWERS_WITHIN = 5.0
_HINT = "try again; its operator finds the reason in the log and at /readyz"
_STARTS = 2
"""A start can fail because another process took a port: the next worker has other ports."""


class NoRoomError(StartError):
    """As many workers as are allowed have work."""


class Lease(Generic[W]):
    """A turn's claim on a worker: while it is held, the worker is not stopped."""

    def __init__(self, fleet: Fleet[W], seat: Seat[W]) -> None:
        self._fleet = fleet
        self._seat = seat

    @property
    def is_ready(self) -> bool:
        return self._seat.state == "ready"

    async def ready(self, *, as_it_is: bool = False) -> W:
        """The worker, once it takes turns. Raises a `TurnFailure`. With `as_it_is`, it is not
        replaced, because it has the turn already."""
        await self._fleet._ensure(self._seat, as_it_is)
        return self._seat.worker


class Fleet(Generic[W]):
    """`async with` it. On exit all workers are stopped.

    `make` creates the worker of a key without starting anything. `plan_of` says what it would be
    made from now, and raises `KeyError` if the key's agent is gone.
    """

    def __init__(
        self,
        make: Callable[[WorkerKey], W],
        plan_of: Callable[[WorkerKey], object],
        *,
        max_workers: int = 16,
        max_of_peer: int = 0,
        idle: float = 900.0,
        room_within: float = 180.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._plan_of = plan_of
        self._max_workers = max_workers
        self.max_of_peer = max_of_peer
        """How many workers one peer may have at once; 0 means as many as there are."""
        self._idle = idle
        self._pause = min(idle / 4, _LONGEST_PAUSE)
        self._room_within = room_within
        self._clock = clock
        self._seats: dict[WorkerKey, Seat[W]] = {}
        self._changed = asyncio.Condition()
        self._next = asyncio.Lock()
        """Those that wait for room get it in the order in which they came."""
        self._next_of: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """The same for the workers of one peer, who keeps nobody else waiting meanwhile."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        self._spawn(self._sweep())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._closed = True
        await self._cancel_tasks()
        await asyncio.gather(*(self._dismiss(s, leave=True) for s in self._seats.values()))
        await self._cancel_tasks()

    async def _cancel_tasks(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Workers.

    def __len__(self) -> int:
        """The workers that run."""
        return sum(seat.runs for seat in self._seats.values())

    @property
    def workers(self) -> list[W]:
        return [seat.worker for seat in self._seats.values()]

    @property
    def seated(self) -> list[tuple[WorkerKey, W]]:
        return [(seat.key, seat.worker) for seat in self._seats.values()]

    def worker(self, key: WorkerKey) -> W:
        """The worker of the key, which may not run."""
        return self._seat(key).worker

    def failure(self, key: WorkerKey) -> StartError | None:
        """Why the last start of the worker failed."""
        seat = self._seats.get(key)
        return seat.failure if seat is not None else None

    def states(self) -> list[State]:
        return [seat.state for seat in self._seats.values()]

    def describe(self) -> list[dict[str, Any]]:
        """The state of each worker. No peer is named: the tools of all peers can ask for it."""
        return [
            {
                "agent": seat.key.agent,
                "state": seat.state,
                "turns": seat.leases,
                **seat.worker.describe(),
            }
            for seat in self._seats.values()
        ]

    @asynccontextmanager
    async def lease(self, key: WorkerKey) -> AsyncGenerator[Lease[W], None]:
        """Keeps the worker from being stopped. `Lease.ready` starts it."""
        if self._closed:
            raise Draining()
        seat = self._seat(key)
        seat.leases += 1
        try:
            yield Lease(self, seat)
        finally:
            seat.leases -= 1
            seat.used = self._clock()
            self._tell_waiters()

    async def start(self, key: WorkerKey) -> None:
        """Starts the worker if it does not run. Raises `StartError`."""
        await asyncio.shield(self._starting(self._seat(key)))

    def start_soon(self, key: WorkerKey) -> None:
        """Starts the worker in the background; `failure` tells if that did not work."""
        self._starting(self._seat(key))

    def revise(self) -> None:
        """Has workers replaced whose plan has changed, and stopped whose agent is gone, each as
        soon as it is idle. Those that are not eager are replaced when they are needed."""
        for seat in list(self._seats.values()):
            try:
                outdated = self._plan_of(seat.key) != seat.worker.plan
            except KeyError:
                self._spawn(self._retire(seat))
                continue
            if outdated and seat.worker.eager:
                self._spawn(self._restart_when_idle(seat))

    def _seat(self, key: WorkerKey) -> Seat[W]:
        if key not in self._seats:
            self._seats[key] = Seat(key, self._make(key), self._clock())
        return self._seats[key]

    # Starting.

    async def _ensure(self, seat: Seat[W], as_it_is: bool) -> None:
        """Returns when the worker takes turns. A start goes on when the turn is given up."""
        if seat.state != "ready":
            await self._started(seat)
        # Also one that was kept and is made from something else.
        if not as_it_is and seat.leases == 1 and self._is_outdated(seat):
            await self._started(seat)

    async def _started(self, seat: Seat[W]) -> None:
        starting = self._starting(seat, leases=1)
        try:
            await asyncio.shield(starting)
        except NoRoomError as error:
            raise Busy("all agents are busy", hint="try again in a minute") from error
        except StartError as error:
            # The reason names folders and quotes the log, which is for operators only.
            raise Unreachable("the agent could not be started", hint=_HINT) from error
        except asyncio.CancelledError:
            if starting.cancelled():
                raise Draining() from None
            raise

    def _starting(self, seat: Seat[W], leases: int = 0) -> asyncio.Task[None]:
        """`leases` are those of turns that wait for it, and so do not run yet."""
        if seat.starting is None or seat.starting.done():
            seat.starting = self._spawn(self._start(seat, leases))
        return seat.starting

    async def _start(self, seat: Seat[W], leases: int) -> None:
        async with seat.changing:
            has_turns = seat.state == "ready" and seat.leases > leases
            if not has_turns and self._is_outdated(seat):
                await self._replace(seat)
            for attempt in range(1, _STARTS + 1):
                if seat.state == "ready":
                    return
                try:
                    await self._start_once(seat)
                except NoRoomError:
                    raise
                except StartError as error:
                    seat.failure = error
                    logger.warning("worker %s did not start: %s", seat.key, error)
                    if attempt == _STARTS or seat.worker.eager:
                        raise
                    await self._replace(seat)

    async def _start_once(self, seat: Seat[W]) -> None:
        await self._take_room(seat)
        try:
            if not seat.opened:
                seat.opened = True
                await seat.worker.open()
            await seat.worker.start()
        except BaseException:
            await self._halt(seat, "failed")
            raise
        seat.state, seat.failure, seat.used = "ready", None, self._clock()
        self._tell_waiters()  # those that wait for room can have this one stopped

    async def _take_room(self, seat: Seat[W]) -> None:
        """Waits until one more worker may run; stops one without work for it."""
        try:
            async with asyncio.timeout(self._room_within):
                await self._make_room(seat)
        except TimeoutError:
            raise NoRoomError(
                f"all workers that {seat.key} could replace have had work for "
                f"{self._room_within:g} s",
                "raise MOLECULE_HERMES_MAX_WORKERS",
            ) from None

    async def _make_room(self, seat: Seat[W]) -> None:
        if not (peer := seat.key.peer):
            await self._take_turn(seat)
            return
        async with self._next_of[peer]:
            async with self._changed:
                while 0 < self.max_of_peer <= len(own := self._running_of(peer)):
                    await self._stop_idlest(own, seat)
            await self._take_turn(seat)

    async def _take_turn(self, seat: Seat[W]) -> None:
        async with self._next, self._changed:
            while len(self) >= self._max_workers:
                await self._stop_idlest(list(self._seats.values()), seat)
            seat.state = "starting"

    def _running_of(self, peer: str) -> list[Seat[W]]:
        return [each for each in self._seats.values() if each.key.peer == peer and each.runs]

    async def _stop_idlest(self, seats: list[Seat[W]], other: Seat[W]) -> None:
        """Stops one that has no work; if all have some, returns when that may have changed."""
        if (victim := await self._idlest(seats)) is None:
            # Nobody tells when a background process or a cron job ends.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause):
                    await self._changed.wait()
        else:
            logger.info("worker %s makes room for %s", victim.key, other.key)
            await self._stop_if_idle(victim)

    async def _idlest(self, seats: list[Seat[W]]) -> Seat[W] | None:
        """The worker without work that was used longest ago."""
        seats = [seat for seat in seats if seat.may_stop]
        jobs = await asyncio.gather(*map(self._has_jobs, seats))
        idle = [s for s, busy in zip(seats, jobs, strict=True) if not busy and s.may_stop]
        return min(idle, key=lambda seat: seat.used, default=None)

    def _is_outdated(self, seat: Seat[W]) -> bool:
        try:
            return seat.worker.plan != self._plan_of(seat.key)
        except KeyError:  # its last turns end with it
            return False

    # Stopping.

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._pause)
            for seat in list(self._seats.values()):
                if self._clock() - seat.used < self._idle:
                    continue
                if seat.may_stop and not await self._has_jobs(seat):
                    logger.info("worker %s is stopped, because it has nothing to do", seat.key)
                    await self._stop_if_idle(seat)
                elif not seat.runs and seat.is_idle:
                    await self._forget(seat)

    async def _has_jobs(self, seat: Seat[W]) -> bool:
        try:
            async with asyncio.timeout(_ANSWERS_WITHIN):
                return await seat.worker.has_jobs()
        except (TurnFailure, TimeoutError) as error:  # it is being restarted
            logger.warning("worker %s does not say whether it works: %s", seat.key, error)
            return True
        except Exception:
            logger.exception("worker %s gives no sound answer", seat.key)
            return True

    async def _stop_if_idle(self, seat: Seat[W]) -> None:
        if seat.may_stop:
            async with seat.changing:
                await self._halt(seat, "stopped")

    async def _restart_when_idle(self, seat: Seat[W]) -> None:
        await self._until_idle(seat)
        with contextlib.suppress(StartError):  # `failure` tells
            await asyncio.shield(self._starting(seat))

    async def _retire(self, seat: Seat[W]) -> None:
        await self._until_idle(seat)
        await self._forget(seat)

    async def _until_idle(self, seat: Seat[W]) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: seat.is_idle)

    async def _forget(self, seat: Seat[W]) -> None:
        async with seat.changing:
            await self._dismiss(seat)
        if self._seats.get(seat.key) is seat and not seat.leases:
            del self._seats[seat.key]

    async def _replace(self, seat: Seat[W]) -> None:
        """Gives the seat a new worker."""
        await self._dismiss(seat)
        seat.worker = self._make(seat.key)

    async def _dismiss(self, seat: Seat[W], *, leave: bool = False) -> None:
        if seat.state in ("starting", "ready"):
            await self._halt(seat, "stopped", leave=leave)
        if seat.opened:
            seat.opened = False
            await seat.worker.close()

    async def _halt(self, seat: Seat[W], state: State, *, leave: bool = False) -> None:
        seat.state = "stopping"
        try:
            await (seat.worker.leave() if leave else seat.worker.stop())
        except Exception:
            logger.exception("worker %s could not be stopped", seat.key)
        finally:
            seat.state = state
            self._tell_waiters()

    def _tell_waiters(self) -> None:
        async def tell() -> None:
            async with self._changed:
                self._changed.notify_all()

        self._spawn(tell())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name="fleet")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # its waiters may be gone
