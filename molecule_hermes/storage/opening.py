"""Opens the store that the settings name."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from molecule_hermes.config import Settings
from molecule_hermes.errors import StartError, StorageFailure
from molecule_hermes.storage.base import EndTask, Sent, Store
from molecule_hermes.storage.memory import MemoryTaskStore
from molecule_hermes.storage.quota import StoredBytes
from molecule_hermes.storage.retention import pruned

__all__ = ["OpenStore", "open_store"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenStore:
    """A store with what the bridge reads from it at the start."""

    tasks: Store
    stored: StoredBytes
    messages: Sequence[Sent] = ()
    """The messages that peers may still send again."""


@contextlib.asynccontextmanager
async def open_store(settings: Settings, end: EndTask) -> AsyncIterator[OpenStore]:
    """Opens the store that the settings name. `end` gives a final state to each task that an
    earlier bridge left without one."""
    async with _store(settings) as store:
        try:
            opened = await _take_over(store, settings, end)
        except StorageFailure as failure:
            message = f"cannot take over the tasks of the last bridge: {failure.message}"
            raise StartError(message, "see the log") from failure
        async with pruned(store, settings.keep_days, settings.keep_tasks):
            yield opened


async def _take_over(store: Store, settings: Settings, end: EndTask) -> OpenStore:
    if swept := await store.sweep(end):
        logger.warning("%d tasks were interrupted by the end of the last bridge", swept)
    stored = StoredBytes()
    stored.load(await store.bytes_by_owner())
    store.on_deleted = stored.deleted
    return OpenStore(store, stored, await store.messages(time.time() - settings.retry_window))


def _store(settings: Settings) -> Store:
    where = settings.store.get_secret_value()
    if where == "memory":
        return MemoryTaskStore()
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
