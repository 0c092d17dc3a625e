"""How a task's events get from the executor to its subscribers.

The SDK gives every task five queues and two tasks that only move events from one to the next, with
an `asyncio.gather` for each event. Before Python 3.13 its queues serve threads, too. All that was a
quarter of a turn's memory and a sixth of its CPU (docs/performance.md). Here an event goes straight
to whoever reads it, and an idle queue holds next to nothing. What a task does with its events is
the SDK's own code as before, and `tests/test_event_flow.py` holds both to the same behaviour.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from a2a.server.agent_execution import active_task
from a2a.server.events import Event, EventQueue

from molecule_hermes.queues import Queue, QueueShutDown

__all__ = ["MAX_EVENTS", "EventFlow", "Subscription", "install"]

logger = logging.getLogger(__name__)

MAX_EVENTS = 1024


def install(max_events: int = MAX_EVENTS, on_dropped: Callable[[], None] | None = None) -> None:
    """Makes tasks that begin from now on, in this process, use these queues.

    The SDK has no parameter for them; it looks the names up when a task begins.
    """
    flow = partial(EventFlow, max_events=max_events, on_dropped=on_dropped)
    active_task.EventQueueSource = flow  # type: ignore[attr-defined,assignment]
    active_task.create_async_queue = Queue  # type: ignore[attr-defined,assignment]


class Subscription:
    """One reader of a flow. With `evict_on_full` it is let go when it falls behind."""

    __slots__ = ("_closed", "_evict_on_full", "_flow", "_queue")

    def __init__(self, flow: EventFlow, size: int, evict_on_full: bool) -> None:
        self._flow = flow
        self._queue: Queue[Event] = Queue(size)
        self._evict_on_full = evict_on_full
        self._closed = False

    async def deliver(self, event: Event) -> bool:
        """Whether the reader keeps up; one that must not be let go is waited for."""
        if self._evict_on_full and self._queue.full() and not self._closed:
            return False
        with contextlib.suppress(QueueShutDown):  # it has gone, and does not miss the event
            await self._queue.put(event)
        return True

    async def dequeue_event(self) -> Event:
        return await self._queue.get()

    def task_done(self) -> None:
        self._queue.task_done()

    async def close(self, immediate: bool = False) -> None:
        self.shut(immediate)
        if not immediate:
            await self.drained()

    def shut(self, immediate: bool) -> None:
        self._closed = True
        self._queue.shutdown(immediate=immediate)
        self._flow.forget(self)

    async def drained(self) -> None:
        await self._queue.join()


class EventFlow(EventQueue):
    """In the place of the SDK's `EventQueueSource`, without a task of its own."""

    def __init__(
        self,
        max_queue_size: int = MAX_EVENTS,
        create_default_sink: bool = True,
        *,
        max_events: int = MAX_EVENTS,
        on_dropped: Callable[[], None] | None = None,
    ) -> None:
        self._max_events = max_events
        self._on_dropped = on_dropped
        self._closed = False
        self._own = Subscription(self, max_queue_size, False) if create_default_sink else None
        self._readers = [self._own] if self._own is not None else []

    async def tap(self, evict_on_full: bool = False, **more: Any) -> Subscription:
        """A reader of what comes from now on."""
        if self._closed:
            raise QueueShutDown("the task has ended")
        reader = Subscription(self, self._max_events, evict_on_full)
        self._readers.append(reader)
        return reader

    async def enqueue_event(self, event: Event) -> None:
        if self._closed:
            logger.warning("an event came after the end of its task and was dropped")
            return
        for reader in tuple(self._readers):
            if not await reader.deliver(event):
                logger.warning("a subscriber fell %d events behind: let go", self._max_events)
                reader.shut(immediate=True)
                if self._on_dropped is not None:
                    self._on_dropped()

    async def dequeue_event(self) -> Event:
        return await self._reader().dequeue_event()

    def task_done(self) -> None:
        self._reader().task_done()

    async def close(self, immediate: bool = False) -> None:
        """Takes no more events; returns when all readers are done, or at once if `immediate`."""
        self._closed = True
        readers = tuple(self._readers)
        for reader in readers:
            reader.shut(immediate)
        for reader in () if immediate else readers:
            await reader.drained()

    def is_closed(self) -> bool:
        return self._closed

    def forget(self, reader: Subscription) -> None:
        if reader in self._readers:
            self._readers.remove(reader)

    def _reader(self) -> Subscription:
        if self._own is None:
            raise ValueError("this flow is read through its taps")
        return self._own
