"""Which store the settings name, what a crash left in it, and what is deleted from it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from a2a.server.tasks import (
    InMemoryPushNotificationConfigStore,
    PushNotificationConfigStore,
    TaskStore,
)
from a2a.types import (
    Task,
    TaskStatusUpdateEvent,
)

from molecule_hermes.config import Settings
from molecule_hermes.errors import Interrupted, StartError, StorageFailure
from molecule_hermes.protocol import status as updates
from molecule_hermes.storage.base import DurableStore, Sent
from molecule_hermes.storage.contents import merge_text
from molecule_hermes.storage.memory import MemoryTaskStore
from molecule_hermes.storage.quota import StoredBytes

__all__ = ["Store", "open_store"]

logger = logging.getLogger(__name__)

_PRUNE_EVERY = 600.0
_PRUNE_PAUSE = 0.1
"""Between two batches, so that turns come first."""


@dataclass(frozen=True, slots=True)
class Store:
    """An open store: its two halves for the SDK, and what readiness asks."""

    tasks: TaskStore
    push_configs: PushNotificationConfigStore
    check: Callable[[], Awaitable[None]]
    stored: StoredBytes
    interrupted: Sequence[TaskStatusUpdateEvent] = ()
    """The ends of tasks that the last bridge left without one."""
    messages: Sequence[Sent] = ()
    """What peers sent in the time in which they may send it again."""


@contextlib.asynccontextmanager
async def open_store(settings: Settings) -> AsyncIterator[Store]:
    """The store that the settings name. What a crash left without an end has one when it opens."""
    where = settings.store.get_secret_value()
    if where == "memory":
        stored = StoredBytes()
        memory = MemoryTaskStore(on_deleted=stored.deleted)
        yield Store(memory, InMemoryPushNotificationConfigStore(), _well, stored)
        return
    async with (
        _durable(where, settings) as (inner, interrupted),
        _pruned(inner, settings.keep_days, settings.keep_tasks),
    ):
        stored = StoredBytes()
        stored.load(await inner.bytes_of_peers())
        inner.on_deleted = stored.deleted
        messages = await inner.messages(time.time() - settings.retry_window)
        yield Store(inner, inner.push_configs, inner.check, stored, interrupted, messages)


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
        from molecule_hermes.storage.sqlite.store import SqliteTaskStore

        return SqliteTaskStore(settings.state_dir / "tasks.db")
    try:
        from molecule_hermes.storage.postgresql.store import PostgresTaskStore
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
