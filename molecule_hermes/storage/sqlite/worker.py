"""A thread that does all the work that waits, at once."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

__all__ = ["Worker"]

Job = TypeVar("Job")

_AT_ONCE = 128
"""Jobs of a lot. More share a commit hardly better, and who waited goes on in smaller waves: of
2,000 turns that begin at once each takes 3 KiB less."""
Lot = list[tuple[Job, asyncio.Future[Any]]]


class Worker(Generic[Job]):
    """Jobs wait on the loop's side while the thread is busy, and go over to it as one lot.

    So nothing is locked, and what arrives during one commit shares the next.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[Sequence[Job]], Sequence[Any]],
        close: Callable[[], None],
    ) -> None:
        """`work` gives an outcome for each job, an exception for one that failed."""
        self._work = work
        self._close = close
        self._loop = asyncio.get_running_loop()
        self._waiting: Lot[Job] = []
        self._busy = False
        self._lots: queue.SimpleQueue[Lot[Job] | None] = queue.SimpleQueue()
        # A daemon: a disk that no longer answers must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        self._waiting.append((job, future))
        if not self._busy:
            self._hand_over()
        return future

    async def stop(self, timeout: float) -> None:
        """Lets the thread finish what it was given; call it when nobody submits any more."""
        if self._waiting and not self._busy:
            self._hand_over()
        self._lots.put(None)
        await asyncio.to_thread(self._thread.join, timeout)

    def _hand_over(self) -> None:
        """Leaves out what nobody waits for any more: they were told that it failed."""
        waiting = [(job, future) for job, future in self._waiting if not future.done()]
        lot, self._waiting = waiting[:_AT_ONCE], waiting[_AT_ONCE:]
        self._busy = bool(lot)
        if lot:
            self._lots.put(lot)

    def _run(self) -> None:
        while (lot := self._lots.get()) is not None:
            try:
                outcomes = self._work([job for job, _ in lot])
            except Exception as error:
                outcomes = [error] * len(lot)
            with contextlib.suppress(RuntimeError):  # the loop is gone, and so is who waited
                self._loop.call_soon_threadsafe(self._done, lot, outcomes)
        self._close()

    def _done(self, lot: Lot[Job], outcomes: Sequence[Any]) -> None:
        self._busy = False
        if self._waiting:
            self._hand_over()
        for (_, future), outcome in zip(lot, outcomes, strict=True):
            if future.done():
                continue
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
