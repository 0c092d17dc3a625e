"""Opens the store that the settings name."""

from __future__ import annotations

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

from molecule_hermes.config import Settings
from molecule_hermes.errors import StartError, StorageFailure
from molecule_hermes.storage.base import DurableStore, EndTask, Sent
from molecule_hermes.storage.memory import MemoryTaskStore
from molecule_hermes.storage.quota import StoredBytes
from molecule_hermes.storage.retention import pruned

__all__ = ["Store", "open_store"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Store:
    """An open store: its two halves for the SDK, and what readiness asks."""

    tasks: TaskStore
    push_configs: PushNotificationConfigStore
    check: Callable[[], Awaitable[None]]
    stored: StoredBytes
    messages: Sequence[Sent] = ()
    """What peers sent in the time in which they may send it again."""


@contextlib.asynccontextmanager
async def open_store(settings: Settings, end: EndTask) -> AsyncIterator[Store]:
    """Opens the store that the settings name. `end` gives a final state to each task that an
    earlier bridge left without one."""
    where = settings.store.get_secret_value()
    if where == "memory":
        stored = StoredBytes()
        memory = MemoryTaskStore(on_deleted=stored.deleted)
        yield Store(memory, InMemoryPushNotificationConfigStore(), _well, stored)
        return
    async with (
        _durable(where, settings, end) as inner,
        pruned(inner, settings.keep_days, settings.keep_tasks),
    ):
        stored = StoredBytes()
        stored.load(await inner.bytes_of_peers())
        inner.on_deleted = stored.deleted
        messages = await inner.messages(time.time() - settings.retry_window)
        yield Store(inner, inner.push_configs, inner.check, stored, messages)


async def _well() -> None:
    pass


@contextlib.asynccontextmanager
async def _durable(where: str, settings: Settings, end: EndTask) -> AsyncIterator[DurableStore]:
    async with _backend(where, settings) as inner:
        try:
            swept = await inner.sweep(end)
        except StorageFailure as failure:
            message = f"cannot end the tasks of the last bridge: {failure.message}"
            raise StartError(message, "see the log") from failure
        if swept:
            logger.warning("%d tasks were cut off by the end of the last bridge", swept)
        yield inner


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
