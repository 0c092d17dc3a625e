"""What Hermes's own `/handoff` asks for, as the database of its home has it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import threading
import time
from pathlib import Path
from urllib.parse import quote

from molecule_hermes.plugin.settings import PLATFORM

__all__ = ["find_request", "requested_in"]

logger = logging.getLogger(__name__)

_WITHIN = 1.0
_STEPS = 10_000
_MAX_VALUE = 2**20
_FILES = ("state.db", "state.db-journal", "state.db-wal", "state.db-shm")
# The gateway has taken these from its CLI, and its plugin waits for a bridge.
_REQUESTED = f"""
SELECT id FROM sessions WHERE handoff_state = 'running' AND handoff_platform = '{PLATFORM}'
AND typeof(id) = 'text' AND length(id) <= 256 AND id NOT GLOB '*[^ -~]*'
ORDER BY started_at LIMIT 1
"""  # noqa: S608 - it has only constants


async def find_request(home: Path) -> str | None:
    """As `requested_in`, in a thread that holds up nothing if it never ends.

    Tools of an agent can make a pipe of the file while it is opened, which then waits for a writer.
    The end of this process would wait for a thread of the event loop's.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[str | None] = loop.create_future()

    def end(session: str | None) -> None:
        if not found.done():
            found.set_result(session)

    def look() -> None:
        session = None
        try:
            session = requested_in(home)
        except Exception:
            logger.exception("the sessions of %s cannot be read", home)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(end, session)

    threading.Thread(target=look, name="handoff-requests", daemon=True).start()
    return await found


def requested_in(home: Path) -> str | None:
    """The first session that waits to be handed over to our platform, if there is one.

    Tools of an agent can write to the file: nothing of its schema is run, and it is not read for
    longer than a second.
    """
    path, until = home / "state.db", time.monotonic() + _WITHIN
    files = [home / name for name in _FILES]
    if not path.is_file() or any(each.exists() and not each.is_file() for each in files):
        return None
    try:
        with contextlib.closing(
            sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=1.0)
        ) as database:
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE)
            database.set_progress_handler(lambda: time.monotonic() > until, _STEPS)
            database.execute("PRAGMA trusted_schema = OFF")
            row = database.execute(_REQUESTED).fetchone()
            return None if row is None else str(row[0])
    except sqlite3.Error:
        return None
