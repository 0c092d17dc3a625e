"""A queue and a signal that hold next to nothing while they are empty.

asyncio's hold deques, 0.6 KiB each though empty, and a turn in flight would have twenty of them.
Who waits here looks again after every change: there is hardly ever more than one.
"""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from a2a.utils._async_queue_compat import QueueShutDown

__all__ = ["Queue", "QueueShutDown", "Signal"]

T = TypeVar("T")


class _Changing:
    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: tuple[asyncio.Future[None], ...] = ()

    def _change(self) -> asyncio.Future[None]:
        """The next change, for whoever awaits it. Those who gave up are forgotten."""
        future = asyncio.get_running_loop().create_future()
        self._waiters = (*(waiter for waiter in self._waiters if not waiter.done()), future)
        return future

    def _changed(self) -> None:
        waiters, self._waiters = self._waiters, ()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class Signal(_Changing):
    """What is used of `asyncio.Event`."""

    __slots__ = ("_set",)

    def __init__(self) -> None:
        super().__init__()
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._changed()

    def clear(self) -> None:
        self._set = False

    async def wait(self) -> None:
        if not self._set:
            await self._change()


class Queue(_Changing, Generic[T]):
    """What is used of `asyncio.Queue` as of Python 3.13, `shutdown` included."""

    __slots__ = ("_items", "_maxsize", "_shut", "_unfinished")

    def __init__(self, maxsize: int = 0) -> None:
        super().__init__()
        self._maxsize = maxsize
        self._items: list[T] = []
        self._unfinished = 0
        self._shut = False

    def empty(self) -> bool:
        return not self._items

    def full(self) -> bool:
        return 0 < self._maxsize <= len(self._items)

    async def put(self, item: T) -> None:
        while self.full() and not self._shut:
            await self._change()
        self.put_nowait(item)

    def put_nowait(self, item: T) -> None:
        """Raises `asyncio.QueueFull`, or `QueueShutDown`."""
        if self._shut:
            raise QueueShutDown
        if self.full():
            raise asyncio.QueueFull
        self._items.append(item)
        self._unfinished += 1
        self._changed()

    async def get(self) -> T:
        while not self._items:
            if self._shut:
                raise QueueShutDown
            await self._change()
        item = self._items.pop(0)
        self._changed()
        return item

    def task_done(self) -> None:
        self._finish(1)

    async def join(self) -> None:
        """Until `task_done` was called for every item."""
        while self._unfinished:
            await self._change()

    def shutdown(self, immediate: bool = False) -> None:
        """Takes nothing more; what is there may still be got, unless it is `immediate`."""
        self._shut = True
        if immediate and self._items:
            self._finish(len(self._items))
            self._items.clear()
        self._changed()

    def _finish(self, count: int) -> None:
        if count > self._unfinished:
            raise ValueError("task_done() called too many times")
        self._unfinished -= count
        if not self._unfinished:
            self._changed()
