"""The log of a task: it numbers each event, applies it to the task, stores it and publishes it.

The executor writes to the log as to any `EventQueue`. A subscriber gets a snapshot of the task at
one version, and then every event after that version, so it neither misses nor repeats an event.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol, TypeGuard

from a2a.server.context import ServerCallContext
from a2a.server.events import Event, EventQueue
from a2a.server.owner_resolver import resolve_user_scope
from a2a.types import Message, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent

from molecule_hermes.errors import StorageFailure, TurnFailure
from molecule_hermes.protocol.states import INTERRUPTED, TERMINAL
from molecule_hermes.protocol.status import fail, status_of
from molecule_hermes.protocol.task_events import apply_event, keep_status_message
from molecule_hermes.protocol.turn_record import TurnRecord
from molecule_hermes.storage.contents import merge_text, replace_non_finite

__all__ = ["VERSION", "Listener", "Recorder", "Subscription", "TaskLog"]

logger = logging.getLogger(__name__)

VERSION = "version"
"""The name of the version in the metadata of a task and of its events."""
_SKIPPED = 100_000
"""More versions than a bridge publishes between two records of a task."""
_CHANCES = 100
"""Iterations of the event loop that a full subscriber gets before it is dropped. In a burst of
events it had none before."""


class Recorder(Protocol):
    """Stores the task of a log."""

    async def record(self, log: TaskLog) -> None:
        """Returns when the task, as it is now, is durable. Raises if it cannot be stored."""

    def record_later(self, log: TaskLog) -> None:
        """Schedules a record within the checkpoint interval, because text was added."""

    def lost(self, log: TaskLog) -> None:
        """Handles a task that has ended because it could not be stored."""


TaskEvent = Task | TaskStatusUpdateEvent | TaskArtifactUpdateEvent
Listener = Callable[[Task, TaskEvent], Awaitable[None]]
"""Receives each event of a task, in order, with the task as it is after the event. It must not
change the task, or keep it. What the listener raises is logged."""


class TaskLog(EventQueue):
    """The events of one task, from its creation to its end."""

    __slots__ = (
        "_appending",
        "_began",
        "_listener",
        "_readers",
        "_recorder",
        "_unsaved",
        "_waiters",
        "canceling",
        "context",
        "ended",
        "left_open",
        "lost",
        "recorded",
        "task",
        "turn",
        "version",
    )

    def __init__(
        self,
        task: Task,
        context: ServerCallContext,
        recorder: Recorder,
        listener: Listener,
        *,
        recorded: bool = False,
    ) -> None:
        """`task` has at least its two ids. `recorded` says whether the store has it already."""
        self.task = task
        # Only the user: the request's context holds its headers, the bearer token among them.
        self.context = ServerCallContext(user=context.user)
        self.version = _version_of(task) if recorded else 0
        """The number of the last published event; 0 before the task itself was published."""
        self.turn: TurnRecord | None = None
        """The turn as it was with the last event, for another bridge to go on with."""
        self.left_open = False
        """Whether the task is left to another bridge."""
        self.canceling: asyncio.Lock | None = None
        """Held while the task is being canceled, so that this happens once."""
        self.recorded = recorded
        self.ended = task.status.state in TERMINAL
        if recorded and not self.ended:
            # A peer may have seen later versions that were not stored.
            task.metadata[VERSION] = self.version
        """Whether the terminal state has been published."""
        self.lost: TurnFailure | None = None
        """Why the task ended, if its store does not have the end yet."""
        self._began = recorded
        self._unsaved = False
        self._recorder = recorder
        self._listener = listener
        self._readers: tuple[Subscription, ...] = ()
        self._waiters: tuple[asyncio.Future[None], ...] = ()
        self._appending = asyncio.Lock()

    @property
    def owner(self) -> str:
        return str(resolve_user_scope(self.context))

    @property
    def terminal(self) -> bool:
        return self.task.status.state in TERMINAL

    @property
    def rests(self) -> bool:
        """Whether the task is in a terminal or an interrupted state."""
        return self.terminal or self.task.status.state in INTERRUPTED

    # Writing.

    async def enqueue_event(self, event: Event) -> None:
        """Returns when the event is durable, if it must be, and in the queue of every subscriber.
        Canceling the caller does not undo the event."""
        await self.append(event)

    async def append(self, event: Event, turn: TurnRecord | None = None) -> None:
        """As `enqueue_event`. `turn` is stored together with the task as it is after the event."""
        if isinstance(event, TaskArtifactUpdateEvent) and not self._appending.locked():
            await self._append(event, turn)  # it does not suspend before it is in every queue
        else:
            await asyncio.shield(self._append(event, turn))
        await self._let_readers_catch_up()

    async def begin(self, task: Task, turn: TurnRecord) -> None:
        """Publishes the task as the first event. Raises what the recorder raises; then nothing was
        published, and the log is of no use."""
        async with self._appending:
            self._began = True
            self.turn = turn
            self._number(task)
            apply_event(self.task, task)
            await self._recorder.record(self)
            self.recorded = True
            await self._publish(task)

    def leave_open(self) -> None:
        """Takes no more events: another bridge goes on with the task."""
        self.left_open = True

    async def end(self, failure: TurnFailure) -> None:
        """Ends the task as FAILED unless it has ended. Streamed text stays."""
        await asyncio.shield(self._end(failure))

    async def add_message(self, message: Message) -> None:
        """Adds a peer's message to the history. Publishes no event, because the sender knows it."""
        await asyncio.shield(self._add_message(message))

    async def _add_message(self, message: Message) -> None:
        async with self._appending:
            if self.terminal:
                return
            keep_status_message(self.task)
            self.task.history.append(message)
            if not await self._make_durable():
                await self._publish(status_of(self.task))

    async def _append(self, event: Event, turn: TurnRecord | None) -> None:
        async with self._appending:
            if self.terminal or self.left_open or not self._belongs_here(event):
                return
            self._began = True
            self.turn = turn
            self._number(event)
            apply_event(self.task, event)
            published: TaskEvent = event
            if isinstance(event, TaskArtifactUpdateEvent):
                self._unsaved = True
                self._recorder.record_later(self)
                self.task.metadata[VERSION] = self.version + 1
            elif not await self._make_durable():
                published = status_of(self.task) if self.version else self.copy()
            await self._publish(published)

    def _number(self, event: TaskEvent) -> None:
        """Gives the event the version that the task has after it."""
        event.metadata[VERSION] = self.version + 1

    async def _end(self, failure: TurnFailure) -> None:
        async with self._appending:
            if self.terminal or self.left_open:
                return
            self._began = True
            fail(self.task, failure)
            self.task.metadata[VERSION] = self.version + 1
            first = not self.version
            await self._make_durable()
            await self._publish(self.copy() if first else status_of(self.task))

    def _belongs_here(self, event: Event) -> TypeGuard[TaskEvent]:
        """Logs an event that the executor must not send, so that it does not reach a peer."""
        match event:
            case Task():
                named, right_order = event.id, not self._began
            case TaskStatusUpdateEvent() | TaskArtifactUpdateEvent():
                named, right_order = event.task_id, self._began
            case _:
                named, right_order = "", False
        if named == self.task.id and right_order:
            return True
        logger.error(
            "task %s: the executor sent a %s out of order", self.task.id, type(event).__name__
        )
        return False

    async def _make_durable(self) -> bool:
        """Stores the task. If that fails, the task ends and the result is False: no peer may see
        a state that a crash would revert."""
        self._unsaved = True
        try:
            await self._recorder.record(self)
        except Exception as error:
            self._lose(error)
            return False
        self.recorded, self._unsaved = True, False
        return True

    def _lose(self, error: Exception) -> None:
        if isinstance(error, StorageFailure):
            message = f"the task could not be stored: {error.message}"
            self.lost = StorageFailure(message, hint=error.hint)
        else:
            logger.error("task %s cannot be stored", self.task.id, exc_info=error)
            self.lost = StorageFailure()
        # No subscriber has seen the status that could not be stored.
        self.task.status.ClearField("message")
        fail(self.task, self.lost)
        self._recorder.lost(self)

    async def checkpoint(self) -> None:
        """Stores what is not durable yet: text, or an end that could not be stored before. Raises
        what the recorder raises."""
        async with self._appending:
            if self._unsaved:
                await self._recorder.record(self)
                self._unsaved, self.lost = False, None

    # Reading.

    async def snapshot(self) -> Task:
        """Returns a copy of the task. Waits for an event that is being stored."""
        async with self._appending:
            return self.copy()

    async def subscribe(self, reader: Subscription) -> Task:
        """Returns the task. The reader gets every event after it."""
        async with self._appending:
            self.follow(reader)
            return self.copy()

    def follow(self, reader: Subscription) -> None:
        """The reader gets every event from now on."""
        if self.ended:
            reader.close()
        else:
            self._readers = (*self._readers, reader)

    async def wait(self, *, after: int | None = None) -> None:
        """Waits until the task is in a terminal or an interrupted state. With `after`, waits for an
        event after that version, or for the end."""
        while True:
            async with self._appending:
                if self.terminal or (self.rests if after is None else self.version > after):
                    return
                changed = asyncio.get_running_loop().create_future()
                self._waiters = (*(w for w in self._waiters if not w.done()), changed)
            await changed

    async def rested(self) -> Task:
        """Returns a copy of the task in a terminal or an interrupted state: it may have gone on
        since `wait` saw it rest."""
        while True:
            await self.wait()
            async with self._appending:
                if self.rests:
                    return self.copy()

    def leave(self, reader: Subscription) -> None:
        self._readers = tuple(other for other in self._readers if other is not reader)

    def copy(self) -> Task:
        merge_text(self.task)
        copy = Task()
        copy.CopyFrom(self.task)
        replace_non_finite(copy)
        return copy

    async def _publish(self, event: TaskEvent) -> None:
        self._number(event)
        self.version += 1
        for reader in self._readers:
            reader.put(event)
        await self._notify_listener(event)
        if self.terminal:
            self.ended = True
            for reader in self._readers:
                reader.close()
        self._wake()

    async def _notify_listener(self, event: TaskEvent) -> None:
        try:
            await self._listener(self.task, event)
        except Exception:
            logger.exception("the listener failed for an event of task %s", self.task.id)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, ()
        for waiter in waiters:
            _set(waiter)

    async def _let_readers_catch_up(self) -> None:
        if not any(reader.lag for reader in self._readers):
            return
        for _ in range(_CHANCES):
            await asyncio.sleep(0)
            if not any(reader.overfull for reader in self._readers):
                return
        for reader in self._readers:
            if reader.overfull:
                logger.warning(
                    "dropped a subscriber of task %s that fell too far behind", self.task.id
                )
                reader.drop()


def _version_of(task: Task) -> int:
    """The version of a stored task. Text that was not stored had versions, too."""
    stored = task.metadata[VERSION] if VERSION in task.metadata else 0  # noqa: SIM401 - no `get`
    return int(stored if isinstance(stored, float) else 0) + _SKIPPED


def _set(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Subscription:
    """One reader of a log: `async with` it, and iterate over its events.

    A reader that falls `max_events` behind is dropped: its stream ends, and `on_dropped` is called.
    """

    __slots__ = ("_closed", "_events", "_log", "_max_events", "_on_dropped", "_waiter")

    def __init__(self, log: TaskLog, max_events: int, on_dropped: Callable[[], None]) -> None:
        self._log = log
        self._max_events = max_events
        self._on_dropped = on_dropped
        self._events: deque[TaskEvent] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    @property
    def lag(self) -> int:
        return len(self._events or ())

    @property
    def overfull(self) -> bool:
        return self.lag >= self._max_events

    def put(self, event: TaskEvent) -> None:
        if self._events is None:
            self._events = deque()
        self._events.append(event)
        self._wake()

    def close(self) -> None:
        """Ends the stream after the events that are already in the queue."""
        self._closed = True
        self._log.leave(self)
        self._wake()

    def drop(self) -> None:
        """Ends the stream at once. The reader can subscribe again."""
        self._events = None
        self.close()
        self._on_dropped()

    async def __aenter__(self) -> Subscription:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()

    def __aiter__(self) -> AsyncIterator[TaskEvent]:
        return self

    async def __anext__(self) -> TaskEvent:
        while not self._events:
            # An empty deque takes 0.6 KiB, and an active turn spends most of its time here.
            self._events = None
            if self._closed:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._events.popleft()

    def _wake(self) -> None:
        if self._waiter is not None:
            _set(self._waiter)
            self._waiter = None
