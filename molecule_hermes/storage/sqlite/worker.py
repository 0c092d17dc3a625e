"""A thread that runs waiting jobs in batches."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

__all__ = ["Worker"]

Job = TypeVar("Job")

_MAX_BATCH = 128
"""A larger batch hardly saves commits. Smaller batches let callers continue in smaller waves, which
saves 3 KiB per turn when 2,000 turns begin at once."""
Batch = list[tuple[Job, asyncio.Future[Any]]]


class Worker(Generic[Job]):
    """Collects jobs in the event loop while the thread is busy, and then passes them on as a batch.

    So nothing needs a lock, and all jobs that arrive during one commit share the next one.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[Sequence[Job]], Sequence[Any]],
        close: Callable[[], None],
    ) -> None:
        """`work` returns an outcome for each job: its result, or the exception that it raised."""
        self._work = work
        self._close = close
        self._loop = asyncio.get_running_loop()
        self._waiting: Batch[Job] = []
        self._busy = False
        self._batches: queue.SimpleQueue[Batch[Job] | None] = queue.SimpleQueue()
        # A daemon thread: a disk that no longer answers must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        self._waiting.append((job, future))
        if not self._busy:
            self._hand_over()
        return future

    async def stop(self, timeout: float) -> None:
        """Waits up to `timeout` seconds for the remaining jobs. Submit none after this call."""
        if self._waiting and not self._busy:
            self._hand_over()
        self._batches.put(None)
        await asyncio.to_thread(self._thread.join, timeout)

    def _hand_over(self) -> None:
        """Leaves out jobs whose callers no longer wait: those calls have already failed."""
        waiting = [(job, future) for job, future in self._waiting if not future.done()]
        batch, self._waiting = waiting[:_MAX_BATCH], waiting[_MAX_BATCH:]
        self._busy = bool(batch)
        if batch:
            self._batches.put(batch)

    def _run(self) -> None:
        while (batch := self._batches.get()) is not None:
            try:
                outcomes = self._work([job for job, _ in batch])
            except Exception as error:
                outcomes = [error] * len(batch)
            with contextlib.suppress(RuntimeError):  # the loop is closed, and with it the callers
                self._loop.call_soon_threadsafe(self._done, batch, outcomes)
        self._close()

    def _done(self, batch: Batch[Job], outcomes: Sequence[Any]) -> None:
        self._busy = False
        if self._waiting:
            self._hand_over()
        for (_, future), outcome in zip(batch, outcomes, strict=True):
            if future.done():
                continue
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
