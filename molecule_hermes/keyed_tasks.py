"""Background work in order per key, with keys side by side.

Standard library only: the plugin imports this module inside Hermes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["KeyedTasks"]

log = logging.getLogger(__name__)

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")


class KeyedTasks(Generic[Key, Item]):
    """Runs one task per key that has work, and at most one item per key at a time.

    `take` returns the next item of a key, or None if there is none; it must not wait. `handle`
    processes an item. An exception in `handle` is logged, and the next item follows.
    """

    def __init__(
        self, take: Callable[[Key], Item | None], handle: Callable[[Item], Awaitable[None]]
    ) -> None:
        self._take = take
        self._handle = handle
        self._tasks: dict[Key, asyncio.Task[None]] = {}

    def wake(self, key: Key) -> None:
        """Makes sure that a task works on the key. Call it after each item that is added."""
        if key not in self._tasks:
            self._tasks[key] = asyncio.get_running_loop().create_task(self._work(key))

    async def flush(self, seconds: float | None = None) -> None:
        """Waits until all work is done, for at most that long. Work may add work for other keys."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while tasks := list(self._tasks.values()):
                    await asyncio.wait(tasks)

    async def close(self) -> None:
        """Cancels the tasks; items that were not taken stay where they are."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # A task that is canceled before its first step never runs its `finally`.
        self._tasks.clear()

    async def _work(self, key: Key) -> None:
        try:
            # There is no await between the last `take` and the end, so `wake` either finds a
            # task that will look again or starts a new one.
            while (item := self._take(key)) is not None:
                try:
                    await self._handle(item)
                except Exception:
                    log.exception("a background task for %s failed", key)
        finally:
            self._tasks.pop(key, None)
