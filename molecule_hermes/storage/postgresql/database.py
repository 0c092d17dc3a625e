"""A PostgreSQL database, or a schema of one, that belongs to one bridge: locked, migrated, bounded.

A call that takes too long closes its connection at once. The next call opens a new one, and first
terminates the backend of the old one: it might still run the statement when it wakes up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncIterator, Sequence
from functools import lru_cache
from typing import Any, Self
from urllib.parse import urlsplit

import asyncpg

from molecule_hermes.errors import ConfigError, StartError, StorageFailure
from molecule_hermes.storage.base import PATIENCE, call_limit
from molecule_hermes.storage.postgresql.schema import PREFIX, migrate
from molecule_hermes.text import redact

__all__ = ["Database"]

logger = logging.getLogger(__name__)

_POOL = 10
_LOCK = "SELECT pg_try_advisory_lock(hashtext('molecule_hermes ' || current_schema()))"
_TERMINATE = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE pid = ANY($1) AND application_name = $2"
)
_KEEPALIVES = {
    # The lock of a bridge whose machine is gone is released within a minute.
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}
# asyncpg raises InternalClientError for a call between the server's last message on a connection
# that it ends and the close of that connection.
_FAILURES = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
_CHECK = "DELETE FROM molecule_hermes_tasks WHERE owner = ? AND id = ?"
"""Changes nothing, but fails where nothing can be written."""


class Database:
    prefix = PREFIX

    def __init__(self, url: str, *, patience: float = PATIENCE) -> None:
        self._url = url.replace("+asyncpg:", ":", 1)
        self.name = _name(self._url)
        self.limit = call_limit(patience)
        self._application = f"molecule-hermes {uuid.uuid4().hex[:12]}"
        self._abandoned: set[int] = set()
        """Processes of the server whose connections were closed before they answered."""
        self._options: dict[str, Any] = {
            "dsn": self._url,
            "timeout": patience,
            "command_timeout": self.limit,
            "server_settings": {"application_name": self._application, **_KEEPALIVES},
        }
        self._lease = _Lease(self._options, patience)

    async def __aenter__(self) -> Self:
        try:
            await migrate(await self._lease.acquire())
            self._pool = await asyncpg.create_pool(
                **self._options, min_size=0, max_size=_POOL, reset=_keep_session
            )
        except BaseException as error:
            self._lease.release()
            if isinstance(error, (*_FAILURES, TypeError, ValueError)):
                raise self._refused(error) from None
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        self._pool.terminate()
        self._lease.release()

    def _refused(self, error: Exception) -> StartError:
        if isinstance(error, ValueError):
            # Its text may contain a part of the password.
            return _bad_url()
        return StartError(
            f"cannot use {self.name}: {redact(_cause(error))}",
            "check MOLECULE_HERMES_STORE, and that the database runs",
        )

    async def read(self, sql: str, values: Sequence[Any] = ()) -> Sequence[Sequence[Any]]:
        async with self._connection() as connection:
            rows = await connection.fetch(_translated(sql), *map(_storable, values))
        return [tuple(row) for row in rows]

    async def write(self, sql: str, values: Sequence[Any]) -> None:
        async with self._connection() as connection:
            await connection.execute(_translated(sql), *map(_storable, values))

    async def check(self) -> None:
        async with self._reported():
            await self._lease.hold()
            await self.write(_CHECK, ("", ""))

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[asyncpg.Connection]:
        async with self._reported():
            connection = await self._pool.acquire()
            process = connection.get_server_pid()
            try:
                await self._terminate_abandoned(connection)
                yield connection
            except BaseException:
                self._abandoned.add(process)
                connection.terminate()
                raise
            finally:
                await self._pool.release(connection)

    async def _terminate_abandoned(self, connection: asyncpg.Connection) -> None:
        if self._abandoned:
            processes = list(self._abandoned)
            await connection.execute(_TERMINATE, processes, self._application)
            self._abandoned.difference_update(processes)

    @contextlib.asynccontextmanager
    async def _reported(self) -> AsyncIterator[None]:
        """Bounds the time, and turns what goes wrong with the database into `StorageFailure`."""
        try:
            async with asyncio.timeout(self.limit):
                yield
        except TimeoutError as error:
            raise StorageFailure(f"the database did not answer in {self.limit:g} s") from error
        except _FAILURES as error:
            if _is_about_the_data(error):
                raise
            logger.error("the database failed: %s", redact(_cause(error)))  # noqa: TRY400
            raise StorageFailure(f"the database failed ({type(error).__name__})") from error


class _Lease:
    """Holds the database for this bridge as long as its connection lives."""

    def __init__(self, options: dict[str, Any], patience: float) -> None:
        self._options = options
        self._patience = patience
        self._connection: asyncpg.Connection | None = None

    async def acquire(self) -> asyncpg.Connection:
        """Waits a little: PostgreSQL may not know yet that the bridge before this one is dead."""
        until = asyncio.get_running_loop().time() + self._patience
        while not await self._try():
            if asyncio.get_running_loop().time() > until:
                raise StartError(
                    "another bridge uses the database of MOLECULE_HERMES_STORE",
                    "stop it, or give this one a database of its own",
                )
            await asyncio.sleep(0.1)
        return self._connection

    async def hold(self) -> None:
        """Acquires the lease again if the connection was lost."""
        if self._connection is not None:
            try:
                await self._connection.execute("SELECT 1", timeout=self._patience)
            except (*_FAILURES, TimeoutError):
                self.release()
        if self._connection is None and not await self._try():
            raise StorageFailure("another bridge has taken over the database")

    async def _try(self) -> bool:
        connection = await asyncpg.connect(**self._options)
        try:
            acquired = bool(await connection.fetchval(_LOCK, timeout=self._patience))
        except BaseException:
            connection.terminate()
            raise
        if acquired:
            self._connection = connection
        else:
            connection.terminate()
        return acquired

    def release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


async def _keep_session(connection: asyncpg.Connection) -> None:
    """Replaces asyncpg's reset, a round trip per call: statements here leave nothing behind."""


@lru_cache(maxsize=256)
def _translated(sql: str) -> str:
    """`$1`, `$2` … for each `?`."""
    first, *rest = sql.split("?")
    return first + "".join(f"${number}{text}" for number, text in enumerate(rest, 1))


def _storable(value: Any) -> Any:
    """PostgreSQL's text has no NUL character."""
    return value.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(value, str) else value


def _is_about_the_data(error: Exception) -> bool:
    return str(getattr(error, "sqlstate", "")).startswith(("22", "23"))


def _cause(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return " ".join(str(error).split()) or type(error).__name__


def _name(url: str) -> str:
    try:
        parts = urlsplit(url)
        return f"the database {parts.hostname or 'localhost'}{parts.path}"
    except ValueError:
        raise _bad_url() from None


def _bad_url() -> ConfigError:
    return ConfigError(
        "MOLECULE_HERMES_STORE=(a secret) is not a database URL",
        "it takes postgresql://user:password@host:port/name",
    )
