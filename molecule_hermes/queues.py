"""A queue and a signal that hold next to nothing while they are empty.

asyncio's hold deques, 0.6 KiB each though empty, and a turn in flight would have twenty of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from a2a.utils._async_queue_compat import QueueShutDown

__all__ = ["Queue", "QueueShutDown", "Signal"]

T = TypeVar("T")


class _Waiters:
    __slots__ = ("_futures",)

    def __init__(self) -> None:
        self._futures: list[asyncio.Future[None]] = []

    async def wait(self, in_vain: Callable[[], bool]) -> None:
        """Until woken; one that is cancelled just then wakes the next, unless that is in vain."""
        future = asyncio.get_running_loop().create_future()
        self._futures.append(future)
        try:
            await future
        except BaseException:
            if future in self._futures:
                self._futures.remove(future)
            elif not in_vain():
                self.wake()
            raise

    def wake(self) -> None:
        while self._futures:
            future = self._futures.pop(0)
            if not future.done():
                future.set_result(None)
                return

    def wake_all(self) -> None:
        while self._futures:
            self.wake()


class Signal:
    """What is used of `asyncio.Event`."""

    __slots__ = ("_set", "_waiters")

    def __init__(self) -> None:
        self._set = False
        self._waiters = _Waiters()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._waiters.wake_all()

    def clear(self) -> None:
        self._set = False

    async def wait(self) -> None:
        if not self._set:
            await self._waiters.wait(lambda: True)


class Queue(Generic[T]):
    """What is used of `asyncio.Queue` as of Python 3.13, `shutdown` included."""

    __slots__ = ("_getters", "_items", "_joiners", "_maxsize", "_putters", "_shut", "_unfinished")

    def __init__(self, maxsize: int = 0) -> None:
        self._maxsize = maxsize
        self._items: list[T] = []
        self._unfinished = 0
        self._shut = False
        self._getters = _Waiters()
        self._putters = _Waiters()
        self._joiners = _Waiters()

    def empty(self) -> bool:
        return not self._items

    def full(self) -> bool:
        return 0 < self._maxsize <= len(self._items)

    async def put(self, item: T) -> None:
        while self.full() and not self._shut:
            await self._putters.wait(self.full)
        self.put_nowait(item)

    def put_nowait(self, item: T) -> None:
        """Raises `asyncio.QueueFull`, or `QueueShutDown`."""
        if self._shut:
            raise QueueShutDown
        if self.full():
            raise asyncio.QueueFull
        self._items.append(item)
        self._unfinished += 1
        self._getters.wake()

    async def get(self) -> T:
        while not self._items:
            if self._shut:
                raise QueueShutDown
            await self._getters.wait(self.empty)
        item = self._items.pop(0)
        self._putters.wake()
        return item

    def task_done(self) -> None:
        self._finish(1)

    async def join(self) -> None:
        """Until `task_done` was called for every item."""
        while self._unfinished:
            await self._joiners.wait(lambda: True)

    def shutdown(self, immediate: bool = False) -> None:
        """Takes nothing more; what is there may still be got, unless it is `immediate`."""
        self._shut = True
        if immediate and self._items:
            self._finish(len(self._items))
            self._items.clear()
        self._getters.wake_all()
        self._putters.wake_all()

    def _finish(self, count: int) -> None:
        if count > self._unfinished:
            raise ValueError("task_done() called too many times")
        self._unfinished -= count
        if not self._unfinished:
            self._joiners.wake_all()
