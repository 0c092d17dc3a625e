"""The tasks of the bridge: logs of the active ones, over the store that keeps all of them.

A change of state is stored before a peer sees it. Streamed text is stored at most once in
`checkpoint` seconds, so that the cost of a stream grows linearly with its length.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Self

from a2a.server.context import ServerCallContext
from a2a.server.owner_resolver import resolve_user_scope
from a2a.types import ListTasksRequest, ListTasksResponse, Task

from molecule_hermes.errors import StorageFailure
from molecule_hermes.protocol.task_log import Listener, TaskLog
from molecule_hermes.storage.base import Conversation, DeliveryEvent, Store, owners_of
from molecule_hermes.storage.contents import (
    is_delivery,
    merge_text,
    replace_non_finite,
    trim_rejected,
)
from molecule_hermes.storage.quota import StoredBytes

__all__ = ["TaskRegistry"]

logger = logging.getLogger(__name__)

_AT_ONCE = 64
_CHECK_WITHIN = 2.0
"""Less than the readiness probe waits, so that the probe can report the reason."""

Check = Callable[[], Awaitable[None]]
OnEnd = Callable[[TaskLog], None]


async def _no_check() -> None:
    pass


def _ignore(log: TaskLog) -> None:
    pass


def _ignore_owner(owner: str) -> None:
    pass


class TaskRegistry:
    """An async context manager. On exit, it stores everything that is not stored yet."""

    def __init__(
        self,
        store: Store,
        listener: Listener,
        stored: StoredBytes | None = None,
        *,
        checkpoint: float = 1.0,
        check: Check = _no_check,
        on_end: OnEnd = _ignore,
    ) -> None:
        """`check` is that of the store. `on_end` is called with a log that has ended, before its
        subscribers see the end."""
        self._store = store
        self._listener = listener
        self.stored = StoredBytes() if stored is None else stored
        """The bytes of each peer's tasks, updated with every record."""
        self._checkpoint = checkpoint
        self._check = check
        self._on_end = on_end
        self.delivery_changed: Callable[[str], None] = _ignore_owner
        """Called with the owner of a delivery that was stored."""
        self._logs: dict[str, TaskLog] = {}
        self._unwritten: dict[TaskLog, None] = {}
        self._wake = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._failure: StorageFailure | None = None

    def __len__(self) -> int:
        return len(self._logs)

    async def __aenter__(self) -> Self:
        self._writer = asyncio.create_task(self._write_checkpoints(), name="task-checkpoints")
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)
        await self._write(list(self._logs.values()))

    async def check(self) -> None:
        """Raises the `StorageFailure` that a task would get now."""
        try:
            async with asyncio.timeout(_CHECK_WITHIN):
                await self._check()
        except TimeoutError:
            raise self._failure or StorageFailure("the storage does not respond") from None
        if waiting := sum(log.lost is not None for log in self._logs.values()):
            raise StorageFailure(f"{waiting} ended tasks are not stored yet")

    # Tasks.

    def begin(self, task: Task, context: ServerCallContext) -> TaskLog:
        """Creates the log of a new task. The task is stored with its first event."""
        log = self._logs[task.id] = TaskLog(task, context, self, self._listener)
        return log

    def adopt(self, task: Task, context: ServerCallContext) -> TaskLog:
        """Creates the log of a stored task."""
        log = TaskLog(task, context, self, self._listener, recorded=True)
        if not log.ended:
            self._logs[task.id] = log
        return log

    def log(self, task_id: str, context: ServerCallContext) -> TaskLog | None:
        """Returns the log of an active task if the task belongs to the caller."""
        log = self._logs.get(task_id)
        return log if log is not None and log.owner == resolve_user_scope(context) else None

    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        if log := self.log(task_id, context):
            await log.wait(after=0)
            return await log.snapshot()
        task: Task | None = await self._store.get(task_id, context)
        if task is not None:
            replace_non_finite(task)
        return task

    async def find(
        self, task_id: str, callers: Sequence[ServerCallContext]
    ) -> ServerCallContext | None:
        """Returns the first of the callers to which the task belongs."""
        for caller in callers:
            if self.log(task_id, caller) is not None:
                return caller
        for caller in callers:
            if await self._store.get(task_id, caller) is not None:
                return caller
        return None

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """Returns the store's page, with the newest text of active tasks."""
        page = await self._store.list(params, context)
        owners = owners_of(context)
        for task in page.tasks:
            log = self._logs.get(task.id)
            if (
                log is not None
                and log.owner in owners
                and (log.lost or log.task.status == task.status)
            ):
                task.CopyFrom(log.copy())
            else:
                replace_non_finite(task)
        return page

    # The `task_log.Recorder` interface.

    async def record(self, log: TaskLog) -> None:
        self._unwritten.pop(log, None)
        merge_text(log.task)
        trim_rejected(log.task)
        size = log.task.ByteSize()
        try:
            turn = log.turn.to_json() if log.turn is not None and not log.terminal else ""
            await self._store.save(log.task, log.context, turn)
            if not log.recorded and log.turn is not None and log.turn.conversation:
                # After the task: a conversation without tasks may be forgotten at any time.
                conversation = Conversation(log.owner, log.task.context_id)
                await self._store.remember(log.turn.conversation, conversation)
        except StorageFailure as failure:
            self._failure = failure
            raise
        self._failure = None
        self.stored.saved(log.owner, log.task.id, size, ended=log.terminal)
        if is_delivery(log.task):
            self.delivery_changed(log.owner)
        if log.terminal:
            self._forget(log)
            if log.lost is None:
                self._on_end(log)

    async def conversation(self, name: str) -> Conversation | None:
        """What Hermes's name for a conversation stands for."""
        return await self._store.conversation(name)

    async def delivery_events(
        self, owners: Sequence[str], after: int, limit: int
    ) -> Sequence[DeliveryEvent]:
        return await self._store.delivery_events(owners, after, limit)

    def abandon(self, log: TaskLog) -> None:
        """Forgets a task that could not begin."""
        self._forget(log)

    def record_later(self, log: TaskLog) -> None:
        self._unwritten[log] = None
        self._wake.set()

    def lost(self, log: TaskLog) -> None:
        self._on_end(log)
        if log.recorded:
            self.record_later(log)
        else:
            # The store does not have the task, so it needs no end there.
            self._forget(log)

    def _forget(self, log: TaskLog) -> None:
        self._unwritten.pop(log, None)
        if self._logs.get(log.task.id) is log:
            del self._logs[log.task.id]

    async def _write_checkpoints(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(self._checkpoint)
            self._wake.clear()
            await self._write(list(self._unwritten))

    async def _write(self, logs: Sequence[TaskLog]) -> None:
        for start in range(0, len(logs), _AT_ONCE):
            await asyncio.gather(*map(self._checkpoint_log, logs[start : start + _AT_ONCE]))

    async def _checkpoint_log(self, log: TaskLog) -> None:
        try:
            await log.checkpoint()
        except StorageFailure:
            self.record_later(log)
        except Exception:
            logger.exception("task %s cannot be stored", log.task.id)
            if log.lost:
                self._forget(log)
