"""A SQLite file that belongs to one bridge: locked, checked, migrated, written in batches.

The file is in WAL mode with `synchronous=NORMAL`. A commit has reached the operating system when it
returns, so it survives the death of the process. A power cut may lose the last commits, but leaves
the file intact. (`FULL` would sync the disk for every commit.)
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

from molecule_hermes.errors import StartError, StorageFailure
from molecule_hermes.storage.base import PATIENCE, call_limit
from molecule_hermes.storage.sqlite.worker import Worker

__all__ = ["Database"]

logger = logging.getLogger(__name__)

Statement = tuple[str, Sequence[Any]]

_RECOVERY = "restore a backup, move the file away, or set another MOLECULE_HERMES_STATE_DIR"

_PRAGMAS = (
    "PRAGMA synchronous = NORMAL",
    # 16 MiB between two checkpoints, each of which syncs the disk.
    "PRAGMA wal_autocheckpoint = 4000",
    "PRAGMA journal_size_limit = 67108864",
)
_INSPECTION = 2.0
"""Seconds that the check of a large file may take at the start; the rest of it is trusted."""
_CHECK = "INSERT OR REPLACE INTO checks (number, at, room) VALUES (1, ?, zeroblob(?))"
_ROOM = 256 * 1024

_REASONS = {
    "SQLITE_FULL": "the disk is full",
    "SQLITE_BUSY": "another process keeps {} locked",
    "SQLITE_CORRUPT": "{} is damaged",
    "SQLITE_NOTADB": "{} is damaged",
    "SQLITE_CANTOPEN": "{} cannot be opened",
    "SQLITE_READONLY": "{} cannot be written",
    "SQLITE_IOERR": "the disk that holds {} fails",
}

_HINTS = {
    "SQLITE_FULL": "make room on that disk",
    "SQLITE_BUSY": "end the process that has it open, or set another MOLECULE_HERMES_STATE_DIR",
}


class Database:
    """`migrations[n]` turns version n of the file into version n+1; version 0 is empty."""

    prefix = ""

    def __init__(
        self,
        path: Path,
        *,
        application_id: int,
        migrations: Sequence[str],
        patience: float = PATIENCE,
    ) -> None:
        self.name = str(path)
        self._path = path
        self._application_id = application_id
        self._migrations = migrations
        self._patience = patience
        self.limit = call_limit(patience)
        self._lock: int | None = None
        self._inode: tuple[int, int] = (0, 0)
        self._writing = _Lazy(self._connect)
        self._reading = _Lazy(self._connect)
        self.commits = 0
        self.failed = False
        """Whether the last write failed."""

    async def __aenter__(self) -> Self:
        try:
            await asyncio.to_thread(self._open)
        except BaseException:
            self._reading.drop()
            self._unlock()
            raise
        self._writer = Worker("tasks-writer", self._write_all, self._writing.drop)
        self._reader = Worker("tasks-reader", self._read_all, self._reading.drop)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._writer.stop(2 * self._patience)
        await self._reader.stop(self._patience)
        self._unlock()

    async def write(self, sql: str, values: Sequence[Any]) -> None:
        """Returns when it is committed, together with whatever else was waiting."""
        await self._bounded(self._writer.submit((sql, values)), self.limit)

    async def read(self, sql: str, values: Sequence[Any] = ()) -> Sequence[tuple[Any, ...]]:
        """Reads what is committed. A write in progress does not delay it."""
        rows: Sequence[tuple[Any, ...]]
        rows = await self._bounded(self._reader.submit((sql, values)), self._patience)
        return rows

    async def check(self) -> None:
        # After a failure a few bytes prove too little: the next task may need more.
        room = _ROOM if self.failed else 0
        await self.write(_CHECK, (time.time(), room))
        await self.read("SELECT 1 FROM tasks LIMIT 1")

    async def _bounded(self, future: asyncio.Future[Any], seconds: float) -> Any:
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            raise StorageFailure(f"{self._path.name} did not answer in {seconds:g} s") from None

    # The rest runs in the threads.

    def _write_all(self, statements: Sequence[Statement]) -> Sequence[None]:
        try:
            self._require_same_file()
            connection = self._writing.get()
            connection.execute("BEGIN IMMEDIATE")
            for sql, group in itertools.groupby(statements, itemgetter(0)):
                connection.executemany(sql, [values for _, values in group])
            connection.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            # This connection may be in any state: the next write opens a new one.
            self._writing.drop()
            self.failed = True
            raise self._failure(error, "written") from error
        self.failed = False
        self.commits += 1
        return [None] * len(statements)

    def _read_all(self, queries: Sequence[Statement]) -> Sequence[Any]:
        return [self._read_one(*query) for query in queries]

    def _read_one(self, sql: str, values: Sequence[Any]) -> Any:
        """The rows, or the exception: one query's failure is not that of the others."""
        try:
            return self._reading.get().execute(sql, values).fetchall()
        except sqlite3.Error as error:
            self._reading.drop()
            return self._failure(error, "read")
        except Exception as error:
            return error

    def _require_same_file(self) -> None:
        """SQLite keeps writing to a deleted file, which is lost when the file is closed."""
        found = os.stat(self._path)  # noqa: PTH116 - on the path of every commit
        if (found.st_dev, found.st_ino) != self._inode:
            raise FileNotFoundError(f"{self._path} was replaced")

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{self._path.absolute().as_uri()}?mode=rw",
            uri=True,
            timeout=self._patience,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            for pragma in _PRAGMAS:
                connection.execute(pragma)
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def _failure(self, error: Exception, done: str) -> StorageFailure:
        logger.error("%s could not be %s: %s", self._path, done, error)
        name = self._path.name
        if isinstance(error, FileNotFoundError):
            hint = "the agent's operator must put the file back, or restart the bridge"
            return StorageFailure(f"{name} was deleted or replaced", hint=hint)
        return StorageFailure(_reason(error, name))

    # Opening.

    def _open(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = _lock(self._path)
            # SQLite gives its other files the same mode.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise StartError(
                f"cannot write {self._path}: {error.strerror}",
                "set MOLECULE_HERMES_STATE_DIR to a folder you can write, or "
                "MOLECULE_HERMES_STORE=memory",
            ) from error
        found = self._path.stat()
        self._inode = (found.st_dev, found.st_ino)
        try:
            with contextlib.closing(self._connect()) as connection:
                self._prepare(connection)
                # This connection stays open. Without one SQLite deletes its WAL files, and on a
                # full disk it could not create them again.
                self._reading.get().execute("SELECT 1 FROM sqlite_master").fetchone()
        except sqlite3.Error as error:
            hint = _HINTS.get(str(getattr(error, "sqlite_errorname", "")), _RECOVERY)
            raise StartError(f"cannot use {self._path}: {error}", hint) from error

    def _prepare(self, connection: sqlite3.Connection) -> None:
        version = self._version(connection)
        _require_intact(connection, self._path)
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StartError(
                f"{self._path} is on a disk that SQLite's WAL does not work on",
                "set MOLECULE_HERMES_STATE_DIR to a folder on a local disk",
            )
        if version < len(self._migrations):
            steps = "".join(self._migrations[version:])
            connection.executescript(
                f"BEGIN IMMEDIATE; {steps}; PRAGMA application_id = {self._application_id};"
                f"PRAGMA user_version = {len(self._migrations)}; COMMIT"
            )

    def _version(self, connection: sqlite3.Connection) -> int:
        """The version of the file, 0 for an empty one. Raises `StartError` for a foreign file."""
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application != self._application_id and (version or tables or application):
            raise StartError(f"{self._path} is a database of another program", _RECOVERY)
        if version > len(self._migrations):
            raise StartError(
                f"{self._path} is of version {version}, and this bridge knows versions up to "
                f"{len(self._migrations)}",
                "run the newer bridge that wrote it, or set another MOLECULE_HERMES_STATE_DIR",
            )
        return int(version)

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class _Lazy:
    """A connection that is opened on first use, and again after it was dropped."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._connection: sqlite3.Connection | None = None

    def get(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def drop(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None


def _lock(path: Path) -> int:
    """Locks the file until the handle is closed or the process dies."""
    handle = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        process = os.read(handle, 20).decode("ascii", "replace")
        os.close(handle)
        raise StartError(
            f"another bridge (process {process}) uses {path}",
            "stop it, or set another MOLECULE_HERMES_STATE_DIR",
        ) from None
    with contextlib.suppress(OSError):  # a full disk is reported later, with more detail
        os.ftruncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
    return handle


def _require_intact(connection: sqlite3.Connection, path: Path) -> None:
    end = time.monotonic() + _INSPECTION
    connection.set_progress_handler(lambda: time.monotonic() > end, 10_000)
    try:
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname != "SQLITE_INTERRUPT":
            raise
        found = "ok"
    finally:
        connection.set_progress_handler(None, 0)
    if found != "ok":
        raise StartError(f"{path} is damaged: {' '.join(found.split())}", _RECOVERY)


def _reason(error: Exception, name: str) -> str:
    code = str(getattr(error, "sqlite_errorname", ""))
    for known, reason in _REASONS.items():
        if code.startswith(known):
            return reason.format(name)
    return f"{name} cannot be used"
