"""How a task's events get from the executor to its subscribers.

The SDK gives every task five queues and two tasks that only move events from one to the next, with
an `asyncio.gather` for each event. Before Python 3.13 its queues serve threads, too. All that was a
quarter of a turn's memory and a sixth of its CPU (docs/performance.md). Here an event goes straight
to whoever reads it, and an idle queue holds next to nothing. What a task does with its events is
the SDK's own code as before, and `tests/test_event_flow.py` holds both to the same behaviour.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any

from a2a.server.agent_execution import RequestContext, active_task, active_task_registry
from a2a.server.agent_execution.active_task import _RequestCompleted, _RequestStarted
from a2a.server.events import Event, EventQueue
from a2a.types import Task, TaskStatusUpdateEvent
from a2a.utils.errors import UnsupportedOperationError

from molecule_hermes.queues import Queue, QueueShutDown

__all__ = ["MAX_EVENTS", "EventFlow", "FlowingTask", "Subscription", "install"]

logger = logging.getLogger(__name__)

MAX_EVENTS = 1024
_CHANCES = 100


def install(max_events: int = MAX_EVENTS, on_dropped: Callable[[], None] | None = None) -> None:
    """Makes tasks that begin from now on, in this process, use these queues.

    The SDK has no parameter for them; it looks the names up when a task begins.
    """
    flow = partial(EventFlow, max_events=max_events, on_dropped=on_dropped)
    active_task_registry.ActiveTask = FlowingTask  # type: ignore[attr-defined]
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
        if self._evict_on_full and not await self._has_room():
            return False
        with contextlib.suppress(QueueShutDown):  # it has gone, and does not miss the event
            await self._queue.put(event)
        return True

    async def _has_room(self) -> bool:
        """A reader that only had no chance to run gets some."""
        for _ in range(_CHANCES):
            if self._closed or not self._queue.full():
                return True
            await asyncio.sleep(0)
        return False

    @property
    def lags(self) -> bool:
        return not self._queue.empty()

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
        if any(reader.lags for reader in self._readers):
            # Nothing above waits while there is room: in a burst of events, readers and all else in
            # the process would stand still. Last, so that who is cancelled here has lost nothing.
            await asyncio.sleep(0)

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


class FlowingTask(active_task.ActiveTask):
    """A task whose subscriptions always end.

    Probed on a2a-sdk 1.3.0: a request that comes while its task is being cancelled fails between
    its tap and the SDK's `try`, and the tap is waited for ever after; and one that is cancelled
    again while it waits for the lock in the SDK's `finally` is counted ever after. Either way the
    task stays in memory.
    """

    async def subscribe(
        self,
        *,
        request: RequestContext | None = None,
        include_initial_task: bool = False,
        replace_status_update_with_task: bool = False,
    ) -> AsyncGenerator[Event, None]:
        self.cancel_idle_release()
        async with self._lock:
            if self._is_finished.is_set():
                raise UnsupportedOperationError(f"Task {self._task_id} is already completed.")
            self._reference_count += 1
        reader: Any = None
        try:
            reader = await self._event_queue_subscribers.tap(evict_on_full=True)
            request_id = await self.enqueue_request(request) if request is not None else None
            if include_initial_task:
                yield await self.get_task()
            with contextlib.suppress(QueueShutDown, asyncio.CancelledError):
                while True:
                    event, task = await reader.dequeue_event()
                    try:
                        if _completes(event, request_id):
                            return
                        shown = _shown(event, task if replace_status_update_with_task else None)
                        if shown is not None:
                            yield shown
                    finally:
                        reader.task_done()
        finally:
            # Nothing here really waits, so that nothing can cut it short.
            if reader is not None:
                await reader.close(immediate=True)
            self._reference_count -= 1
            if self._is_finished.is_set() and not self._reference_count and self._on_cleanup:
                self._on_cleanup(self)
            self.schedule_idle_release()


def _completes(event: object, request_id: object) -> bool:
    """Whether it is the end of that request; raises what is an error instead of an event."""
    if isinstance(event, BaseException):
        raise event
    return isinstance(event, _RequestCompleted) and event.request_id == request_id


def _shown(event: Any, instead: Task | None) -> Event | None:
    """What a subscriber gets to see: the task in the place of its status, if there is one."""
    if isinstance(event, _RequestStarted | _RequestCompleted):
        return None
    return instead if instead is not None and isinstance(event, TaskStatusUpdateEvent) else event
