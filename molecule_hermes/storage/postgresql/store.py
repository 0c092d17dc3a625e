"""Tasks and push configurations in PostgreSQL: the SDK's own database stores, made safe to use.

Probed on a2a-sdk 1.3.0: its columns take 36 characters of a contextId, a NUL character in one task
breaks the listing of all, and whatever the driver raises comes out as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any, Self, cast

from a2a.server.context import ServerCallContext
from a2a.server.models import TaskModel
from a2a.server.owner_resolver import resolve_user_scope
from a2a.server.tasks import DatabasePushNotificationConfigStore, DatabaseTaskStore
from a2a.types import (
    ListTasksRequest,
    ListTasksResponse,
    Task,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.task import ListTasksCursor, encode_list_tasks_cursor
from google.protobuf.json_format import ParseError
from sqlalchemy import Select, delete, func, select, text, tuple_
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    create_async_engine,
)

from molecule_hermes.errors import ConfigError, StartError, StorageFailure
from molecule_hermes.storage.base import ENDED, DurableStore, EndTask
from molecule_hermes.storage.contents import unreadable
from molecule_hermes.storage.postgresql.tables import (
    STATE,
    Listing,
    PushConfigs,
    Tasks,
    migrate,
    nanoseconds,
)
from molecule_hermes.text import redact

__all__ = ["PostgresTaskStore"]

logger = logging.getLogger(__name__)

_BATCH = 200
_LOCK = text("SELECT pg_try_advisory_lock(hashtext('molecule_hermes ' || current_schema()))")


_ENDED = [TaskState.Name(state) for state in ENDED]
_OPEN = [name for name in TaskState.keys() if name not in _ENDED]  # noqa: SIM118 - no dict


class PostgresTaskStore(DatabaseTaskStore, DurableStore):
    """A database, or a schema of one, that belongs to this bridge."""

    push_configs: _PostgresPushConfigStore

    def __init__(self, url: str, *, patience: float = 5.0) -> None:
        self._url = _parse(url)
        # For a connection from the pool, for a new one, and for the command.
        self._limit = 3 * patience
        super().__init__(_engine(self._url, patience))
        self.task_model = Tasks  # type: ignore[assignment]
        self.push_configs = _PostgresPushConfigStore(self.engine, self._limit)
        self._lease = _Lease(self.engine, patience)

    async def __aenter__(self) -> Self:
        try:
            await self._lease.take()
            await self.initialize()
            await migrate(self.engine)
            await self.push_configs.initialize()
        except BaseException as error:
            await self.__aexit__()
            if isinstance(error, SQLAlchemyError | OSError | TypeError):
                raise self._refused(error) from None
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._lease.give_back()
        await self.engine.dispose()

    def _refused(self, error: Exception) -> StartError:
        where = f"{self._url.host or 'localhost'}/{self._url.database}"
        return StartError(
            f"cannot use the database {where}: {redact(_cause(error))}",
            "check MOLECULE_HERMES_STORE, and that the database runs",
        )

    async def save(self, task: Task, context: ServerCallContext) -> None:
        async with _reported(self._limit):
            await super().save(task, context)

    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        async with _reported(self._limit):
            return await super().get(task_id, context)

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        async with _reported(self._limit), self.async_session_maker() as session:
            listing = Listing(session, params, resolve_user_scope(context))
            keys, more = await listing.keys()
            rows = {row.id: row for row in await listing.rows([key.id for key in keys])}
        page = ListTasksResponse(total_size=listing.total, page_size=listing.page_size)
        page.tasks.extend(self._read(rows[key.id]) for key in keys if key.id in rows)
        if more:
            page.next_page_token = encode_list_tasks_cursor(
                ListTasksCursor(nanoseconds(keys[-1].last_updated), keys[-1].id)
            )
        return page

    def _read(self, row: Tasks) -> Task:
        try:
            return self._from_orm(cast("TaskModel", row))
        except (ParseError, ValueError):
            logger.exception("task %s cannot be read", row.id)
            status = cast("dict[str, str]", row.status)
            state = TaskState.Value(status.get("state", "TASK_STATE_UNSPECIFIED"))
            return unreadable(row.id, row.context_id, state, nanoseconds(row.last_updated))

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        async with _reported(self._limit):
            await super().delete(task_id, context)

    async def check(self) -> None:
        async with _reported(self._limit):
            await self._lease.hold()
            # Changes nothing, but is refused where nothing could be written.
            async with self.engine.begin() as connection:
                await connection.execute(delete(Tasks).where(Tasks.id == ""))

    async def sweep(self, end: EndTask) -> int:
        unfinished = select(Tasks).where(STATE.in_(_OPEN)).limit(_BATCH)
        swept = 0
        while count := await self._sweep(unfinished, end):
            swept += count
        return swept

    async def _sweep(self, unfinished: Select[Tasks], end: EndTask) -> int:
        async with _reported(self._limit), self.async_session_maker.begin() as session:
            rows = (await session.execute(unfinished)).scalars().all()
            for row in rows:
                task = self._from_orm(cast("TaskModel", row))
                end(task)
                await session.merge(self._to_orm(task, row.owner))
            return len(rows)

    async def prune(self, before: float, keep: int) -> int:
        over = select(Tasks.owner, Tasks.id, Tasks.size).where(STATE.in_(_ENDED)).limit(_BATCH)
        time = datetime.fromtimestamp(before, UTC).replace(tzinfo=None)
        pruned = await self._prune(over.where(Tasks.last_updated < time))
        if not pruned and keep:
            pruned = await self._prune(over.order_by(Tasks.last_updated.desc()).offset(keep))
        return pruned

    async def _prune(self, old: Select[str, str, int]) -> int:
        async with _reported(self._limit), self.engine.begin() as connection:
            rows = (await connection.execute(old)).all()
            keys = [(owner, task_id) for owner, task_id, _ in rows]
            if keys:
                tasks = tuple_(Tasks.owner, Tasks.id)
                await connection.execute(delete(Tasks).where(tasks.in_(keys)))
                configs = tuple_(PushConfigs.owner, PushConfigs.task_id)
                await connection.execute(delete(PushConfigs).where(configs.in_(keys)))
        for owner, task_id, size in rows:
            self.on_deleted(owner, task_id, size)
        return len(rows)

    async def bytes_of_peers(self) -> Mapping[str, int]:
        sums = select(Tasks.owner, func.sum(Tasks.size)).group_by(Tasks.owner)
        async with _reported(self._limit), self.engine.connect() as connection:
            return {owner: int(size) for owner, size in await connection.execute(sums)}

    def _to_orm(self, task: Task, owner: str) -> TaskModel:
        row = super()._to_orm(task, owner)
        for column in ("status", "artifacts", "history", "task_metadata"):
            setattr(row, column, _without_nul(getattr(row, column)))
        cast("Tasks", row).size = task.ByteSize()
        return row


class _PostgresPushConfigStore(DatabasePushNotificationConfigStore):
    def __init__(self, engine: AsyncEngine, limit: float) -> None:
        super().__init__(engine)
        self.config_model = PushConfigs  # type: ignore[assignment]
        self._limit = limit

    async def set_info(
        self,
        task_id: str,
        notification_config: TaskPushNotificationConfig,
        context: ServerCallContext,
    ) -> TaskPushNotificationConfig:
        async with _reported(self._limit):
            return await super().set_info(task_id, notification_config, context)

    async def get_info(
        self, task_id: str, context: ServerCallContext
    ) -> list[TaskPushNotificationConfig]:
        async with _reported(self._limit):
            return await super().get_info(task_id, context)

    async def get_info_for_dispatch(self, task_id: str) -> list[TaskPushNotificationConfig]:
        async with _reported(self._limit):
            return await super().get_info_for_dispatch(task_id)

    async def delete_info(
        self, task_id: str, context: ServerCallContext, config_id: str | None = None
    ) -> None:
        async with _reported(self._limit):
            await super().delete_info(task_id, context, config_id)


class _Lease:
    """Holds the database for this bridge, as long as its connection lives."""

    def __init__(self, engine: AsyncEngine, patience: float) -> None:
        self._engine = engine
        self._patience = patience
        self._connection: AsyncConnection | None = None

    async def take(self) -> None:
        """Waits a little: PostgreSQL may not know yet that the bridge before this one is dead."""
        until = asyncio.get_running_loop().time() + self._patience
        while not await self._try():
            if asyncio.get_running_loop().time() > until:
                raise StartError(
                    "another bridge uses the database of MOLECULE_HERMES_STORE",
                    "stop it, or give this one a database of its own",
                )
            await asyncio.sleep(0.1)

    async def hold(self) -> None:
        """Takes it again if the connection was lost."""
        if self._connection is not None:
            try:
                await self._connection.execute(text("SELECT 1"))
            except SQLAlchemyError:
                await self.give_back()
        if self._connection is None and not await self._try():
            raise StorageFailure("another bridge has taken over the database")

    async def _try(self) -> bool:
        connection = await self._engine.connect()
        try:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            taken = bool((await connection.execute(_LOCK)).scalar_one())
        except BaseException:
            await connection.close()
            raise
        if taken:
            self._connection = connection
        else:
            await connection.close()
        return taken

    async def give_back(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(SQLAlchemyError, OSError):
                await connection.invalidate()
                await connection.close()


@contextlib.asynccontextmanager
async def _reported(seconds: float) -> AsyncIterator[None]:
    """What goes wrong with the database comes out in time, and as a `StorageFailure`."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise StorageFailure(f"the database did not answer in {seconds:g} s") from error
    except (SQLAlchemyError, OSError) as error:
        if _is_about_the_data(error):
            raise
        logger.error("the database failed: %s", redact(_cause(error)))  # noqa: TRY400
        raise StorageFailure(f"the database fails ({type(_origin(error)).__name__})") from error


def _is_about_the_data(error: Exception) -> bool:
    return str(getattr(_origin(error), "sqlstate", "")).startswith(("22", "23"))


def _origin(error: BaseException) -> BaseException:
    """What the driver itself raised."""
    if isinstance(error, DBAPIError) and error.orig is not None:
        return error.orig.__cause__ or error.orig
    return error


def _cause(error: BaseException) -> str:
    origin = _origin(error)
    return " ".join(str(origin).split()) or type(origin).__name__


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        # The error's own text may hold a piece of the password.
        raise ConfigError(
            "MOLECULE_HERMES_STORE=(a secret) is no database URL",
            "it takes postgresql://user:password@host:port/name",
        ) from None
    if mode := parsed.query.get("sslmode"):
        parsed = parsed.difference_update_query(["sslmode"]).update_query_dict({"ssl": str(mode)})
    return parsed


def _engine(url: URL, patience: float) -> AsyncEngine:
    settings = {"application_name": "molecule-hermes"}
    # So that the lease of a bridge whose machine is gone ends in a minute.
    settings |= {"tcp_keepalives_idle": "30", "tcp_keepalives_interval": "10"}
    settings |= {"tcp_keepalives_count": "3"}
    return create_async_engine(
        url,
        pool_size=10,
        max_overflow=0,
        pool_timeout=patience,
        pool_pre_ping=True,
        hide_parameters=True,
        connect_args={
            "timeout": patience,
            "command_timeout": patience,
            "server_settings": settings,
        },
    )


def _without_nul(value: Any) -> Any:
    """PostgreSQL takes a NUL in JSON, and then cannot read any of it."""
    match value:
        case str():
            return value.replace("\0", "")
        case dict():
            return {_without_nul(key): _without_nul(item) for key, item in value.items()}
        case list():
            return [_without_nul(item) for item in value]
        case _:
            return value
