"""The tables in PostgreSQL, brought up to date, and ListTasks over them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from a2a.server.models import Base, PushNotificationConfigMixin, TaskMixin
from a2a.types import ListTasksRequest, TaskState
from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE
from a2a.utils.errors import InvalidParamsError
from a2a.utils.task import ListTasksCursor
from google.protobuf.timestamp_pb2 import Timestamp
from sqlalchemy import BigInteger, Index, String, and_, func, or_, select, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from molecule_hermes.storage.pages import cut, read_token

__all__ = ["STATE", "Listing", "PushConfigs", "Tasks", "migrate", "nanoseconds"]


class Tasks(TaskMixin, Base):
    __tablename__ = "molecule_hermes_tasks"

    owner: Mapped[str] = mapped_column(String(255), primary_key=True)
    context_id: Mapped[str] = mapped_column(String(256), nullable=False)
    size: Mapped[int] = mapped_column(BigInteger, nullable=False, server_default="0")
    """The task's bytes, as the other stores count them."""


class PushConfigs(PushNotificationConfigMixin, Base):
    __tablename__ = "molecule_hermes_push_configs"


STATE = Tasks.status["state"].as_string()
Index("ix_molecule_hermes_tasks_state", STATE)
_ADD_SIZE = text(
    "ALTER TABLE molecule_hermes_tasks ADD COLUMN IF NOT EXISTS size BIGINT NOT NULL DEFAULT 0"
)
_FILL_SIZE = text(
    "UPDATE molecule_hermes_tasks SET size = pg_column_size(molecule_hermes_tasks.*) "
    "WHERE ctid IN (SELECT ctid FROM molecule_hermes_tasks WHERE size = 0 LIMIT 2000)"
)
"""Of tasks that an older bridge stored: what they take on the disk, which is quickly known."""


async def migrate(engine: AsyncEngine) -> None:
    """Adds what tables of an older bridge lack."""
    async with engine.begin() as connection:
        await connection.execute(_ADD_SIZE)
    filled = 1
    while filled:
        async with engine.begin() as connection:
            filled = (await connection.execute(_FILL_SIZE)).rowcount


class Listing:
    """ListTasks in two steps, because a page is bounded in bytes: which tasks, then the tasks."""

    def __init__(self, session: AsyncSession, params: ListTasksRequest, owner: str) -> None:
        self._session = session
        self._token = params.page_token
        self._owner = owner
        self.page_size = params.page_size or DEFAULT_LIST_TASKS_PAGE_SIZE
        self.total = 0
        self._where: list[Any] = [Tasks.owner == owner]
        if params.context_id:
            self._where.append(Tasks.context_id == params.context_id)
        if params.status:
            self._where.append(STATE.in_([TaskState.Name(params.status)]))
        if params.HasField("status_timestamp_after"):
            after = params.status_timestamp_after.ToDatetime()
            self._where.append(Tasks.last_updated >= after)

    async def keys(self) -> tuple[list[Any], bool]:
        """The ids and times of the page's tasks, and whether there are more."""
        count = select(func.count()).select_from(Tasks).where(*self._where)
        self.total = (await self._session.execute(count)).scalar_one()
        where = [*self._where, await self._begin()] if self._token else self._where
        order = (Tasks.last_updated.desc().nulls_last(), Tasks.id.desc())
        keys = select(Tasks.id, Tasks.last_updated, Tasks.size).where(*where).order_by(*order)
        found = (await self._session.execute(keys.limit(self.page_size + 1))).all()
        return cut(((row.size, row) for row in found), self.page_size)

    async def rows(self, ids: list[str]) -> Sequence[Tasks]:
        rows = select(Tasks).where(Tasks.owner == self._owner, Tasks.id.in_(ids))
        return (await self._session.execute(rows)).scalars().all()

    async def _begin(self) -> Any:
        """The condition for what comes on this page and after it."""
        position = read_token(self._token)
        if isinstance(position, ListTasksCursor):
            updated = _datetime(position.timestamp_ns)
            return _after(updated, Tasks.id < position.task_id)
        first = select(Tasks.last_updated).where(Tasks.owner == self._owner, Tasks.id == position)
        found = (await self._session.execute(first)).first()
        if found is None:
            raise InvalidParamsError(f"Invalid page token: {self._token}")
        return _after(found.last_updated, Tasks.id <= position)


def _after(updated: datetime | None, within: Any) -> Any:
    """Tasks that come later than that time, or at it and `within`; those without a time last."""
    column = Tasks.last_updated
    if updated is None:
        return and_(column.is_(None), within)
    return or_(column < updated, and_(column == updated, within), column.is_(None))


def nanoseconds(updated: datetime | None) -> int | None:
    if updated is None:
        return None
    timestamp = Timestamp()
    timestamp.FromDatetime(updated)
    return timestamp.ToNanoseconds()


def _datetime(nanoseconds: int | None) -> datetime | None:
    """Without a time zone, as the column has it; raises `InvalidParamsError`."""
    if nanoseconds is None:
        return None
    timestamp = Timestamp()
    try:
        timestamp.FromNanoseconds(nanoseconds)
        return timestamp.ToDatetime()
    except (OverflowError, ValueError) as error:
        raise InvalidParamsError("Invalid page token") from error
