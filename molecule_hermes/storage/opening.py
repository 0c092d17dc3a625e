"""Opens the store that the settings name."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from molecule_hermes.config import Settings
from molecule_hermes.errors import StartError, StorageFailure
from molecule_hermes.storage.base import Sent, Store, Unfinished
from molecule_hermes.storage.memory import MemoryTaskStore
from molecule_hermes.storage.quota import StoredBytes
from molecule_hermes.storage.retention import pruned

__all__ = ["OpenStore", "open_store"]


@dataclass(frozen=True, slots=True)
class OpenStore:
    """A store with what the bridge reads from it at the start."""

    tasks: Store
    stored: StoredBytes
    messages: Sequence[Sent] = ()
    """The messages that peers may still send again."""
    unfinished: Sequence[Unfinished] = ()
    """The tasks that an earlier bridge left without a final state."""


@contextlib.asynccontextmanager
async def open_store(settings: Settings) -> AsyncIterator[OpenStore]:
    """Opens the store that the settings name."""
    async with _store(settings) as store:
        try:
            opened = await _take_over(store, settings)
        except StorageFailure as failure:
            message = f"cannot take over the tasks of the last bridge: {failure.message}"
            raise StartError(message, "see the log") from failure
        async with pruned(store, settings.keep_days, settings.keep_tasks):
            yield opened


async def _take_over(store: Store, settings: Settings) -> OpenStore:
    unfinished = await store.unfinished()
    stored = StoredBytes()
    stored.load(await store.bytes_by_owner())
    for found in unfinished:
        stored.resumed(found.owner, found.task.id, found.task.ByteSize())
    store.on_deleted = stored.deleted
    messages = await store.messages(time.time() - settings.retry_window)
    return OpenStore(store, stored, messages, unfinished)


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
