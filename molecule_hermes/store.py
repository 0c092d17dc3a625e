"""Where tasks live, and when they are written.

What a peer is told of a task's state is on disk before it is told; streamed text follows at most
once in `checkpoint` seconds, so that a stream's cost does not grow with the square of its length.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from a2a.server.context import ServerCallContext
from a2a.server.id_generator import IDGenerator, IDGeneratorContext
from a2a.server.owner_resolver import resolve_user_scope
from a2a.server.tasks import (
    InMemoryPushNotificationConfigStore,
    PushNotificationConfigStore,
    TaskStore,
)
from a2a.types import (
    ListTasksRequest,
    ListTasksResponse,
    Task,
    TaskStatus,
    TaskStatusUpdateEvent,
)

from molecule_hermes import updates
from molecule_hermes.config import Settings
from molecule_hermes.errors import Interrupted, StartError, StorageFailure
from molecule_hermes.stores.base import ENDED, DurableStore, Sent
from molecule_hermes.stores.memory import MemoryTaskStore, merge_text

__all__ = ["CheckpointedStore", "Store", "TaskNotStored", "open_store"]

logger = logging.getLogger(__name__)

_PRUNE_EVERY = 600.0
_PRUNE_PAUSE = 0.1
"""Between two batches, so that turns come first."""
_AT_ONCE = 64
_CHECK_WITHIN = 2.0
"""Less than readiness waits, so that the reason is told."""
_UNUSED = 10_000


class TaskNotStored(StorageFailure):
    """A state could not be written, so nobody was told it. `task` is what became of it."""

    def __init__(self, task: Task, cause: Exception) -> None:
        if isinstance(cause, StorageFailure):
            super().__init__(f"the task could not be stored: {cause.message}", hint=cause.hint)
        else:
            super().__init__()
        self.task = Task()
        self.task.CopyFrom(task)
        updates.fail(self.task, self)


@dataclass(eq=False, slots=True)
class _Live:
    """A task that is being worked on."""

    context: ServerCallContext
    newest: Task
    """While a turn runs, the SDK's own object, which it changes and saves in one step."""
    stored: tuple[TaskStatus, int] | None = None
    dirty: bool = False
    lost: bool = False
    """It has ended because it could not be stored; whatever else is saved comes too late."""
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def differs_in_text_only(self) -> bool:
        stored = self.stored
        return (
            stored is not None
            and stored[1] == len(self.newest.history)
            and stored[0] == self.newest.status
        )


OnLost = Callable[[str], Coroutine[Any, Any, None]]
"""Is told the id of a task that could not be stored, whose turn nobody hears any more."""


async def _nobody(task_id: str) -> None:
    pass


class CheckpointedStore(TaskStore, IDGenerator):
    """Writes to a durable store at once what peers are told, and streamed text now and then.

    Reads see the newest text, and a state once it is on disk. It makes the ids of new tasks, too:
    the SDK asks twice for a task that it is about to create, and no disk is needed to say no.
    """

    def __init__(
        self, inner: DurableStore, *, checkpoint: float = 1.0, on_lost: OnLost = _nobody
    ) -> None:
        self._inner = inner
        self._checkpoint = checkpoint
        self._on_lost = on_lost
        self._live: dict[tuple[str, str], _Live] = {}
        self._unused: dict[str, None] = {}
        self._dirty = asyncio.Event()
        self._failure: StorageFailure | None = None
        self._background: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._start(self._checkpoint_texts())
        return self

    async def __aexit__(self, *error: object) -> None:
        background = list(self._background)
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await self._write_texts()

    def generate(self, context: IDGeneratorContext) -> str:
        task_id = str(uuid.uuid4())
        self._unused[task_id] = None
        if len(self._unused) > _UNUSED:
            del self._unused[next(iter(self._unused))]
        return task_id

    async def save(self, task: Task, context: ServerCallContext) -> None:
        merge_text(task)
        key = (resolve_user_scope(context), task.id)
        live = self._live.get(key)
        if live is None:
            self._unused.pop(task.id, None)
            # Only the user: the request's context holds its headers, the bearer token among them.
            live = self._live[key] = _Live(ServerCallContext(user=context.user), task)
        elif live.lost:
            return
        live.newest = task
        if live.differs_in_text_only():
            live.dirty = True
            self._dirty.set()
        else:
            await self._write(key, live)

    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        live = self._live.get((resolve_user_scope(context), task_id))
        if live is None:
            return None if task_id in self._unused else await self._inner.get(task_id, context)
        async with live.writing:
            copy = Task()
            copy.CopyFrom(live.newest)
            return copy

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        owner = resolve_user_scope(context)
        page = await self._inner.list(params, context)
        for task in page.tasks:
            live = self._live.get((owner, task.id))
            if live is not None and (live.lost or live.newest.status == task.status):
                task.CopyFrom(live.newest)
        return page

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        self._live.pop((resolve_user_scope(context), task_id), None)
        await self._inner.delete(task_id, context)

    async def check(self) -> None:
        try:
            async with asyncio.timeout(_CHECK_WITHIN):
                await self._inner.check()
        except TimeoutError:
            raise self._failure or StorageFailure("the storage does not answer") from None
        if waiting := sum(live.lost for live in self._live.values()):
            raise StorageFailure(f"{waiting} tasks that ended still wait to be stored")

    async def _write(self, key: tuple[str, str], live: _Live) -> None:
        async with live.writing:
            status = TaskStatus()
            status.CopyFrom(live.newest.status)
            stored = (status, len(live.newest.history))
            live.dirty = False
            try:
                await self._store(live)
            except asyncio.CancelledError:
                live.dirty = True
                raise
            except Exception as error:
                raise self._lose(key, live, error) from error
            live.stored = stored
        if status.state in ENDED:
            self._live.pop(key, None)

    async def _store(self, live: _Live) -> None:
        try:
            await self._inner.save(live.newest, live.context)
        except StorageFailure as failure:
            self._failure = failure
            raise
        self._failure = None

    def _lose(self, key: tuple[str, str], live: _Live, error: Exception) -> TaskNotStored:
        failure = TaskNotStored(live.newest, error)
        live.newest, live.lost, live.dirty = failure.task, True, True
        if live.stored is None:
            # On disk there is no trace of it that would wait for its end.
            self._live.pop(key, None)
        else:
            self._dirty.set()
        self._start(self._on_lost(key[1]))
        return failure

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _checkpoint_texts(self) -> None:
        while True:
            await self._dirty.wait()
            await asyncio.sleep(self._checkpoint)
            self._dirty.clear()
            await self._write_texts()

    async def _write_texts(self) -> None:
        dirty = [key for key, live in self._live.items() if live.dirty]
        for start in range(0, len(dirty), _AT_ONCE):
            await asyncio.gather(*(self._write_text(key) for key in dirty[start:][:_AT_ONCE]))

    async def _write_text(self, key: tuple[str, str]) -> None:
        live = self._live.get(key)
        if live is None:
            return
        async with live.writing:
            if not live.dirty:
                return
            live.dirty = False
            try:
                await self._store(live)
            except StorageFailure:
                live.dirty = True
                self._dirty.set()
                return
            except Exception:
                logger.exception("task %s cannot be stored", live.newest.id)
        if live.lost:
            self._live.pop(key, None)


@dataclass(frozen=True, slots=True)
class Store:
    """An open store: its two halves for the SDK, and what readiness asks."""

    tasks: TaskStore
    push_configs: PushNotificationConfigStore
    check: Callable[[], Awaitable[None]]
    interrupted: Sequence[TaskStatusUpdateEvent] = ()
    """The ends of tasks that the last bridge left without one."""
    messages: Sequence[Sent] = ()
    """What peers sent in the time in which they may send it again."""


@contextlib.asynccontextmanager
async def open_store(settings: Settings, on_lost: OnLost = _nobody) -> AsyncIterator[Store]:
    """The store that the settings name. What a crash left without an end has one when it opens."""
    where = settings.store.get_secret_value()
    if where == "memory":
        yield Store(MemoryTaskStore(), InMemoryPushNotificationConfigStore(), _well)
        return
    async with (
        _durable(where, settings) as (inner, interrupted),
        CheckpointedStore(inner, checkpoint=settings.checkpoint, on_lost=on_lost) as tasks,
        _pruned(inner, settings.keep_days, settings.keep_tasks),
    ):
        messages = await inner.messages(time.time() - settings.retry_window)
        yield Store(tasks, inner.push_configs, tasks.check, interrupted, messages)


async def _well() -> None:
    pass


@contextlib.asynccontextmanager
async def _durable(
    where: str, settings: Settings
) -> AsyncIterator[tuple[DurableStore, Sequence[TaskStatusUpdateEvent]]]:
    interrupted: list[TaskStatusUpdateEvent] = []

    def end(task: Task) -> None:
        merge_text(task)
        updates.fail(task, Interrupted("the agent was restarted during the turn"))
        interrupted.append(updates.status_of(task))

    async with _backend(where, settings) as inner:
        try:
            swept = await inner.sweep(end)
        except StorageFailure as failure:
            message = f"cannot end the tasks of the last bridge: {failure.message}"
            raise StartError(message, "see the log") from failure
        if swept:
            logger.warning("%d tasks were cut off by the end of the last bridge", swept)
        yield inner, interrupted


def _backend(where: str, settings: Settings) -> DurableStore:
    if where == "sqlite":
        from molecule_hermes.stores.sqlite import SqliteTaskStore

        return SqliteTaskStore(settings.state_dir / "tasks.db")
    try:
        from molecule_hermes.stores.postgresql import PostgresTaskStore
    except ImportError as error:
        raise StartError(
            f"MOLECULE_HERMES_STORE names a database, but {error.name} is not installed",
            "install the extra: pip install '.[postgresql]'",
        ) from error
    return PostgresTaskStore(where)


@contextlib.asynccontextmanager
async def _pruned(store: DurableStore, days: float, keep: int) -> AsyncIterator[None]:
    pruner = asyncio.create_task(_prune(store, days, keep), name="pruner")
    try:
        yield
    finally:
        pruner.cancel()
        await asyncio.gather(pruner, return_exceptions=True)


async def _prune(store: DurableStore, days: float, keep: int) -> None:
    while True:
        pruned = 0
        try:
            pruned = await store.prune(time.time() - days * 86_400, keep)
        except StorageFailure as failure:
            logger.warning("old tasks could not be deleted now: %s", failure)
        except Exception:
            logger.exception("old tasks could not be deleted")
        await asyncio.sleep(_PRUNE_PAUSE if pruned else _PRUNE_EVERY)
