"""Tasks and push configurations in SQL, for every database that the bridge supports.

A task is its protobuf bytes, next to the columns that ListTasks filters and sorts by.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol, Self

from a2a.server.context import ServerCallContext
from a2a.server.owner_resolver import resolve_user_scope
from a2a.server.tasks import PushNotificationConfigStore
from a2a.server.tasks.push_notification_config_store import normalize_push_notification_config
from a2a.types import (
    ListTasksRequest,
    ListTasksResponse,
    Task,
    TaskPushNotificationConfig,
    TaskState,
)
from google.protobuf.message import DecodeError

from molecule_hermes.errors import StartError
from molecule_hermes.protocol.states import TERMINAL
from molecule_hermes.storage.base import EndTask, Sent, Store
from molecule_hermes.storage.contents import content_digest, unreadable
from molecule_hermes.storage.listing import Key, Listing, nanoseconds

__all__ = ["Row", "SqlDatabase", "SqlTaskStore", "task_row"]

logger = logging.getLogger(__name__)

_BATCH = 200
_MAX_MESSAGES = 25_000
"""Of one owner."""

Row = Sequence[Any]


class SqlDatabase(Protocol):
    """Runs SQL with `?` for each value. Its calls are bounded, as those of `Store` are."""

    name: str
    """As operators know it."""
    prefix: str
    """Of the names of tables."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *error: object) -> None: ...

    async def read(self, sql: str, values: Sequence[Any] = ()) -> Sequence[Row]: ...

    async def write(self, sql: str, values: Sequence[Any]) -> None:
        """Returns when the change is committed."""

    async def check(self) -> None:
        """Raises `StorageFailure` if nothing can be written now."""


class SqlTaskStore(Store):
    """Answers as the SDK's in-memory store does, in every detail of its listing."""

    def __init__(self, database: SqlDatabase) -> None:
        self.push_configs = _PushConfigStore(database)
        self._database = database
        self._sql = _Statements(database.prefix)

    async def __aenter__(self) -> Self:
        await self._database.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._database.__aexit__(*error)

    async def save(self, task: Task, context: ServerCallContext) -> None:
        await self._save(resolve_user_scope(context), task)

    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        found = await self._database.read(self._sql.get, (resolve_user_scope(context), task_id))
        return _task(found[0]) if found else None

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        await self._database.write(self._sql.delete, (resolve_user_scope(context), task_id))

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """Reads the sizes first: a page has a limit of bytes."""
        owner = resolve_user_scope(context)
        listing = Listing(params, owner)
        sql = self._sql.count.format(where=listing.where)
        ((total,),) = await self._database.read(sql, listing.values)
        await self._start(listing, owner)
        sql = self._sql.keys.format(where=listing.where)
        found = await self._database.read(sql, (*listing.values, listing.page_size + 1))
        keys, token = listing.cut(Key(*row) for row in found)
        page = ListTasksResponse(
            total_size=total, page_size=listing.page_size, next_page_token=token
        )
        page.tasks.extend(await self._read(owner, [key.id for key in keys]))
        return page

    async def _start(self, listing: Listing, owner: str) -> None:
        if (first := listing.start()) is None:
            return
        if not (found := await self._database.read(self._sql.position, (owner, first))):
            raise listing.bad_token()
        listing.start_at(found[0][0], first)

    async def _read(self, owner: str, ids: Sequence[str]) -> Iterable[Task]:
        """The tasks in this order, without those that were deleted meanwhile."""
        if not ids:
            return []
        sql = self._sql.tasks.format(ids=", ".join("?" * len(ids)))
        rows = await self._database.read(sql, (owner, *ids))
        tasks = {task.id: task for task in map(_task, rows)}
        return [tasks[task_id] for task_id in ids if task_id in tasks]

    async def check(self) -> None:
        await self._database.check()

    async def sweep(self, end: EndTask) -> int:
        swept = 0
        while rows := await self._database.read(self._sql.unfinished, (_BATCH,)):
            await _all([self._save(owner, self._ended(data, end)) for owner, data in rows])
            swept += len(rows)
        return swept

    def _ended(self, data: bytes, end: EndTask) -> Task:
        try:
            task = Task.FromString(data)
        except DecodeError as error:
            raise StartError(
                f"{self._database.name} holds a task that cannot be read",
                "restore a backup, or start with an empty store",
            ) from error
        end(task)
        return task

    async def prune(self, before: float, keep: int) -> int:
        old = await self._database.read(self._sql.ended_before, (before, _BATCH))
        if not old and keep:
            old = await self._database.read(self._sql.ended_beyond, (_BATCH, keep))
        await _all(self._database.write(self._sql.delete_configs, row[:2]) for row in old)
        await _all(self._database.write(self._sql.delete, row[:2]) for row in old)
        for owner, task_id, size in old:
            self.on_deleted(owner, task_id, size)
        return len(old)

    async def bytes_by_owner(self) -> Mapping[str, int]:
        return {owner: int(size) for owner, size in await self._database.read(self._sql.sizes)}

    async def messages(self, since: float) -> Sequence[Sent]:
        values = (since, TaskState.TASK_STATE_REJECTED, _MAX_MESSAGES)
        return [Sent(*row) for row in await self._database.read(self._sql.messages, values)]

    async def _save(self, owner: str, task: Task) -> None:
        await self._database.write(self._sql.save, task_row(owner, task, time.time()))


class _PushConfigStore(PushNotificationConfigStore):
    """The push configurations of tasks, in the same database."""

    def __init__(self, database: SqlDatabase) -> None:
        self._database = database
        self._sql = _Statements(database.prefix)

    async def set_info(
        self,
        task_id: str,
        notification_config: TaskPushNotificationConfig,
        context: ServerCallContext,
    ) -> TaskPushNotificationConfig:
        config = normalize_push_notification_config(task_id, notification_config)
        row = (resolve_user_scope(context), task_id, config.id, config.SerializeToString())
        await self._database.write(self._sql.set_config, row)
        return config

    async def get_info(
        self, task_id: str, context: ServerCallContext
    ) -> list[TaskPushNotificationConfig]:
        owner = resolve_user_scope(context)
        return _configs(await self._database.read(self._sql.configs_of_owner, (task_id, owner)))

    async def get_info_for_dispatch(self, task_id: str) -> list[TaskPushNotificationConfig]:
        return _configs(await self._database.read(self._sql.configs, (task_id,)))

    async def delete_info(
        self, task_id: str, context: ServerCallContext, config_id: str | None = None
    ) -> None:
        key = (resolve_user_scope(context), task_id)
        if config_id is None:
            await self._database.write(self._sql.delete_configs, key)
        else:
            await self._database.write(self._sql.delete_config, (*key, config_id))


class _Statements:
    """SQL that SQLite and PostgreSQL both understand. Only names of tables are inserted."""

    def __init__(self, prefix: str) -> None:
        tasks, configs = f"{prefix}tasks", f"{prefix}push_configs"
        # `created` and what names the first message stay as they were.
        self.save = (
            f"INSERT INTO {tasks} (owner, id, context_id, state, last_updated, ended, created, "
            "message_id, digest, task) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (owner, id) DO UPDATE SET "
            "context_id = excluded.context_id, state = excluded.state, "
            "last_updated = excluded.last_updated, ended = excluded.ended, task = excluded.task"
        )
        columns = "id, context_id, state, last_updated, task"
        self.get = f"SELECT {columns} FROM {tasks} WHERE owner = ? AND id = ?"
        self.tasks = f"SELECT {columns} FROM {tasks} WHERE owner = ? AND id IN ({{ids}})"
        self.delete = f"DELETE FROM {tasks} WHERE owner = ? AND id = ?"
        self.count = f"SELECT count(*) FROM {tasks} WHERE {{where}}"
        self.position = f"SELECT last_updated FROM {tasks} WHERE owner = ? AND id = ?"
        self.keys = (
            f"SELECT last_updated, id, length(task) FROM {tasks} WHERE {{where}} "
            "ORDER BY last_updated DESC NULLS LAST, id DESC LIMIT ?"
        )
        self.unfinished = f"SELECT owner, task FROM {tasks} WHERE ended IS NULL LIMIT ?"
        self.ended_before = f"SELECT owner, id, length(task) FROM {tasks} WHERE ended < ? LIMIT ?"
        self.ended_beyond = (
            f"SELECT owner, id, length(task) FROM {tasks} WHERE ended IS NOT NULL "
            "ORDER BY ended DESC LIMIT ? OFFSET ?"
        )
        self.sizes = f"SELECT owner, sum(length(task)) FROM {tasks} GROUP BY owner"
        self.messages = (
            "SELECT owner, context_id, message_id, digest, id, created FROM ("
            "SELECT owner, context_id, message_id, digest, id, created, "
            "row_number() OVER (PARTITION BY owner ORDER BY created DESC) AS newest "
            f"FROM {tasks} WHERE created > ? AND message_id != '' AND state != ?"
            ") AS sent WHERE newest <= ? ORDER BY created"
        )
        self.set_config = (
            f"INSERT INTO {configs} (owner, task_id, id, config) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (task_id, owner, id) DO UPDATE SET config = excluded.config"
        )
        self.configs = f"SELECT config FROM {configs} WHERE task_id = ? ORDER BY number"
        self.configs_of_owner = (
            f"SELECT config FROM {configs} WHERE task_id = ? AND owner = ? ORDER BY number"
        )
        self.delete_configs = f"DELETE FROM {configs} WHERE owner = ? AND task_id = ?"
        self.delete_config = f"{self.delete_configs} AND id = ?"


def task_row(owner: str, task: Task, now: float) -> Row:
    """The values of `_Statements.save`."""
    state = task.status.state
    updated = nanoseconds(task.status.timestamp) if task.status.HasField("timestamp") else None
    message_id, digest = "", ""
    if task.history:
        message_id, digest = task.history[0].message_id, content_digest(task.history[0])
    ended = now if state in TERMINAL else None
    data = task.SerializeToString()
    return owner, task.id, task.context_id, state, updated, ended, now, message_id, digest, data


def _task(row: Row) -> Task:
    task_id, context_id, state, updated, data = row
    try:
        return Task.FromString(data)
    except DecodeError:
        logger.exception("task %s cannot be read", task_id)
        return unreadable(task_id, context_id, state, updated)


def _configs(rows: Sequence[Row]) -> list[TaskPushNotificationConfig]:
    return [TaskPushNotificationConfig.FromString(data) for (data,) in rows]


async def _all(writes: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Runs the writes together; SQLite needs one commit for them, or two."""
    await asyncio.gather(*writes)
