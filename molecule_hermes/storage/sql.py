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
from a2a.server.tasks.push_notification_config_store import normalize_push_notification_config
from a2a.types import (
    ListTasksRequest,
    ListTasksResponse,
    Role,
    Task,
    TaskPushNotificationConfig,
    TaskState,
)
from google.protobuf.message import DecodeError

from molecule_hermes.errors import StartError, StorageFailure
from molecule_hermes.protocol.states import TERMINAL
from molecule_hermes.storage.base import (
    Conversation,
    DeliveryEvent,
    PushConfigs,
    Sent,
    Store,
    Unfinished,
    owners_of,
)
from molecule_hermes.storage.contents import content_digest, is_delivery, unreadable
from molecule_hermes.storage.listing import Key, Listing, marks, nanoseconds

__all__ = ["Row", "SqlDatabase", "SqlTaskStore", "task_row"]

logger = logging.getLogger(__name__)

_BATCH = 200
_MAX_MESSAGES = 25_000
"""Of one owner."""

Row = Sequence[Any]

# SQLite and PostgreSQL both understand these. A conflict leaves `created` as it was, and what
# identifies the first message.
_SAVE = """
INSERT INTO {tasks}
    (owner, id, context_id, state, last_updated, ended, created, message_id, digest, task, turn,
     opened, closed)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (owner, id) DO UPDATE SET
    context_id = excluded.context_id, state = excluded.state,
    last_updated = excluded.last_updated, ended = excluded.ended, task = excluded.task,
    turn = excluded.turn, closed = COALESCE({tasks}.closed, excluded.closed)
"""
_GET = "SELECT id, context_id, state, last_updated, task FROM {tasks} WHERE owner = ? AND id = ?"
_GET_ALL = """
SELECT id, context_id, state, last_updated, task FROM {tasks}
WHERE owner IN ({owners}) AND id IN ({ids})
"""
_DELETE = "DELETE FROM {tasks} WHERE owner = ? AND id = ?"
_COUNT = "SELECT count(*) FROM {tasks} WHERE {where}"
_POSITION = "SELECT last_updated FROM {tasks} WHERE owner IN ({owners}) AND id = ?"
_KEYS = """
SELECT last_updated, id, length(task) FROM {tasks} WHERE {where}
ORDER BY last_updated DESC NULLS LAST, id DESC LIMIT ?
"""
_UNFINISHED = """
SELECT owner, id, created, task, turn FROM {tasks}
WHERE ended IS NULL AND (created > ? OR created = ? AND id > ?) ORDER BY created, id LIMIT ?
"""
_ENDED_BEFORE = "SELECT owner, id, context_id, length(task) FROM {tasks} WHERE ended < ? LIMIT ?"
_ENDED_BEYOND = """
SELECT owner, id, context_id, length(task) FROM {tasks} WHERE ended IS NOT NULL
ORDER BY ended DESC LIMIT ? OFFSET ?
"""
_SIZES = "SELECT owner, sum(length(task)) FROM {tasks} GROUP BY owner"
_MESSAGES = """
SELECT owner, context_id, message_id, digest, id, created FROM (
    SELECT owner, context_id, message_id, digest, id, created,
        row_number() OVER (PARTITION BY owner ORDER BY created DESC) AS newest
    FROM {tasks} WHERE created > ? AND message_id != '' AND state != ?
) AS sent WHERE newest <= ? ORDER BY created
"""
_REMEMBER = """
INSERT INTO {conversations} (name, owner, context_id) VALUES (?, ?, ?)
ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, context_id = excluded.context_id
"""
_CONVERSATION = "SELECT owner, context_id FROM {conversations} WHERE name = ?"
_FORGET = """
DELETE FROM {conversations} WHERE owner = ? AND context_id = ?
    AND NOT EXISTS (SELECT 1 FROM {tasks} WHERE owner = ? AND context_id = ?)
"""
_LAST_EVENT = "SELECT max(opened), max(closed) FROM {tasks}"
_EVENTS = """
SELECT number, kind, owner, id FROM (
    SELECT opened AS number, 'created' AS kind, owner, id FROM {tasks}
    WHERE opened > ? AND owner IN ({owners})
    UNION ALL
    SELECT closed, 'ended', owner, id FROM {tasks} WHERE closed > ? AND owner IN ({owners})
) AS events ORDER BY number LIMIT ?
"""
_SET_CONFIG = """
INSERT INTO {configs} (owner, task_id, id, config, told) VALUES (?, ?, ?, ?, 0)
ON CONFLICT (task_id, owner, id) DO UPDATE SET config = excluded.config
"""
_CONFIGS = "SELECT config FROM {configs} WHERE task_id = ? ORDER BY number"
_CONFIGS_OF_OWNER = "SELECT config FROM {configs} WHERE task_id = ? AND owner = ? ORDER BY number"
_TOLD = "UPDATE {configs} SET told = 1 WHERE task_id = ? AND id = ?"
_UNTOLD = """
SELECT id, context_id, state, last_updated, task FROM {tasks} WHERE ended IS NOT NULL AND EXISTS (
    SELECT 1 FROM {configs} AS c
    WHERE c.task_id = {tasks}.id AND c.owner = {tasks}.owner AND c.told = 0
) LIMIT 1000
"""
_DELETE_CONFIGS = "DELETE FROM {configs} WHERE owner = ? AND task_id = ?"
_DELETE_CONFIG = "DELETE FROM {configs} WHERE owner = ? AND task_id = ? AND id = ?"


class SqlDatabase(Protocol):
    """Runs SQL with `?` for each value. Its calls are bounded, as those of `Store` are."""

    name: str
    """As operators know it."""
    prefix: str
    """Of the names of tables."""
    limit: float
    """Seconds that a call may take."""

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
        self._database = database
        self._tables = _Tables(database)
        self.push_configs = _PushConfigStore(self._tables)
        self._numbering = asyncio.Lock()
        """Held from the choice of an event's number until the event is committed, so that no
        reader sees an event before one with a smaller number."""
        self._last_event = -1
        """Its number; -1 before it is known."""

    async def __aenter__(self) -> Self:
        await self._database.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._database.__aexit__(*error)

    async def save(self, task: Task, context: ServerCallContext, turn: str = "") -> None:
        row = task_row(resolve_user_scope(context), task, time.time(), turn)
        if not is_delivery(task):
            await self._tables.write(_SAVE, (*row, None, None))
            return
        async with self._numbering:
            opened = await self._next_number()
            closed = opened + 1 if task.status.state in TERMINAL else None
            self._last_event = opened + 1
            await self._tables.write(_SAVE, (*row, opened, closed))

    async def _next_number(self) -> int:
        """Numbers are microseconds where they can be: they go on when all deliveries are deleted,
        and a time can be used as one."""
        if self._last_event < 0:
            (found,) = await self._tables.read(_LAST_EVENT)
            self._last_event = max((each for each in found if each is not None), default=0)
        return max(self._last_event + 1, int(time.time() * 1e6))

    async def remember(self, name: str, conversation: Conversation) -> None:
        await self._tables.write(_REMEMBER, (name, *conversation))

    async def conversation(self, name: str) -> Conversation | None:
        found = await self._tables.read(_CONVERSATION, (name,))
        return Conversation(*found[0]) if found else None

    async def delivery_events(
        self, owners: Sequence[str], after: int, limit: int
    ) -> Sequence[DeliveryEvent]:
        values = (after, *owners, after, *owners, limit)
        rows = await self._tables.read(_EVENTS, values, owners=marks(len(owners)))
        return [DeliveryEvent(*row) for row in rows]

    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        found = await self._tables.read(_GET, (resolve_user_scope(context), task_id))
        return _task(found[0]) if found else None

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        await self._tables.write(_DELETE, (resolve_user_scope(context), task_id))

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        try:
            async with asyncio.timeout(self._database.limit):
                return await self._list(params, owners_of(context))
        except TimeoutError as error:
            raise StorageFailure(
                f"the listing took longer than {self._database.limit:g} s"
            ) from error

    async def _list(self, params: ListTasksRequest, owners: Sequence[str]) -> ListTasksResponse:
        """Reads the sizes first: a page has a limit of bytes."""
        listing = Listing(params, owners)
        ((total,),) = await self._tables.read(_COUNT, listing.values, where=listing.where)
        await self._start(listing, owners)
        values = (*listing.values, listing.page_size + 1)
        found = await self._tables.read(_KEYS, values, where=listing.where)
        keys, token = listing.cut(Key(*row) for row in found)
        page = ListTasksResponse(
            total_size=total, page_size=listing.page_size, next_page_token=token
        )
        page.tasks.extend(await self._get_all(owners, [key.id for key in keys]))
        return page

    async def _start(self, listing: Listing, owners: Sequence[str]) -> None:
        if (first := listing.start()) is None:
            return
        found = await self._tables.read(_POSITION, (*owners, first), owners=marks(len(owners)))
        if not found:
            raise listing.bad_token()
        listing.start_at(found[0][0], first)

    async def _get_all(self, owners: Sequence[str], ids: Sequence[str]) -> Iterable[Task]:
        """The tasks in this order, without those that were deleted meanwhile."""
        if not ids:
            return []
        conditions = {"owners": marks(len(owners)), "ids": marks(len(ids))}
        rows = await self._tables.read(_GET_ALL, (*owners, *ids), **conditions)
        tasks = {task.id: task for task in map(_task, rows)}
        return [tasks[task_id] for task_id in ids if task_id in tasks]

    async def check(self) -> None:
        await self._database.check()

    async def unfinished(self) -> Sequence[Unfinished]:
        found: list[Unfinished] = []
        after = (-1.0, -1.0, "")
        while rows := await self._tables.read(_UNFINISHED, (*after, _BATCH)):
            found += [Unfinished(row[0], self._decoded(row[3]), row[4]) for row in rows]
            after = (rows[-1][2], rows[-1][2], rows[-1][1])
        return found

    def _decoded(self, data: bytes) -> Task:
        try:
            return Task.FromString(data)
        except DecodeError as error:
            raise StartError(
                f"{self._database.name} holds a task that cannot be read",
                "restore a backup, or start with an empty store",
            ) from error

    async def prune(self, before: float, keep: int) -> int:
        old = await self._tables.read(_ENDED_BEFORE, (before, _BATCH))
        if not old and keep:
            old = await self._tables.read(_ENDED_BEYOND, (_BATCH, keep))
        await _all(self._tables.write(_DELETE_CONFIGS, row[:2]) for row in old)
        await _all(self._tables.write(_DELETE, row[:2]) for row in old)
        contexts = {(owner, context_id) for owner, _, context_id, _ in old}
        await _all(self._tables.write(_FORGET, each * 2) for each in contexts)
        for owner, task_id, _, size in old:
            self.on_deleted(owner, task_id, size)
        return len(old)

    async def bytes_by_owner(self) -> Mapping[str, int]:
        return {owner: int(size) for owner, size in await self._tables.read(_SIZES)}

    async def messages(self, since: float) -> Sequence[Sent]:
        values = (since, TaskState.TASK_STATE_REJECTED, _MAX_MESSAGES)
        return [Sent(*row) for row in await self._tables.read(_MESSAGES, values)]


class _PushConfigStore(PushConfigs):
    """The push configurations of tasks, in the same database."""

    def __init__(self, tables: _Tables) -> None:
        self._tables = tables

    async def set_info(
        self,
        task_id: str,
        notification_config: TaskPushNotificationConfig,
        context: ServerCallContext,
    ) -> TaskPushNotificationConfig:
        config = normalize_push_notification_config(task_id, notification_config)
        row = (resolve_user_scope(context), task_id, config.id, config.SerializeToString())
        await self._tables.write(_SET_CONFIG, row)
        return config

    async def get_info(
        self, task_id: str, context: ServerCallContext
    ) -> list[TaskPushNotificationConfig]:
        owner = resolve_user_scope(context)
        return _configs(await self._tables.read(_CONFIGS_OF_OWNER, (task_id, owner)))

    async def get_info_for_dispatch(self, task_id: str) -> list[TaskPushNotificationConfig]:
        return _configs(await self._tables.read(_CONFIGS, (task_id,)))

    async def told(self, task_id: str, config_id: str) -> None:
        await self._tables.write(_TOLD, (task_id, config_id))

    async def untold(self) -> Sequence[Task]:
        return [_task(row) for row in await self._tables.read(_UNTOLD)]

    async def delete_info(
        self, task_id: str, context: ServerCallContext, config_id: str | None = None
    ) -> None:
        key = (resolve_user_scope(context), task_id)
        if config_id is None:
            await self._tables.write(_DELETE_CONFIGS, key)
        else:
            await self._tables.write(_DELETE_CONFIG, (*key, config_id))


class _Tables:
    """Runs the statements above on the tables of a database."""

    def __init__(self, database: SqlDatabase) -> None:
        prefix = database.prefix
        self._database = database
        tables = {"tasks": "tasks", "configs": "push_configs", "conversations": "conversations"}
        self._names = {name: prefix + table for name, table in tables.items()}

    async def read(
        self, template: str, values: Sequence[Any] = (), **conditions: str
    ) -> Sequence[Row]:
        return await self._database.read(template.format(**self._names, **conditions), values)

    async def write(self, template: str, values: Sequence[Any]) -> None:
        await self._database.write(template.format(**self._names), values)


def task_row(owner: str, task: Task, now: float, turn: str = "") -> Row:
    """The first values of `_SAVE`, which are also the first columns of the table in their order."""
    state = task.status.state
    updated = nanoseconds(task.status.timestamp) if task.status.HasField("timestamp") else None
    message_id, digest = "", ""
    if task.history and task.history[0].role != Role.ROLE_AGENT:
        message_id, digest = task.history[0].message_id, content_digest(task.history[0])
    ended = now if state in TERMINAL else None
    data = task.SerializeToString()
    key = (owner, task.id, task.context_id)
    return *key, state, updated, ended, now, message_id, digest, data, turn


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
