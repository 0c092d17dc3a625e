"""What Hermes's own `/handoff` asks for, as the database of its home has it."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from pathlib import Path
from urllib.parse import quote

from molecule_hermes.plugin.settings import PLATFORM

__all__ = ["requested_in"]

_WITHIN = 1.0
_STEPS = 10_000
# The gateway has taken these from its CLI, and its plugin waits for a bridge.
_REQUESTED = f"""
SELECT id FROM sessions WHERE handoff_state = 'running' AND handoff_platform = '{PLATFORM}'
ORDER BY started_at LIMIT 1
"""  # noqa: S608 - it has only constants


def requested_in(home: Path) -> str | None:
    """The first session that waits to be handed over to our platform, if there is one.

    Tools of an agent can write to the file: nothing of its schema is run, and it is not read for
    longer than a second.
    """
    path, until = home / "state.db", time.monotonic() + _WITHIN
    if not path.is_file():
        return None
    try:
        with contextlib.closing(
            sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=1.0)
        ) as database:
            database.set_progress_handler(lambda: time.monotonic() > until, _STEPS)
            database.execute("PRAGMA trusted_schema = OFF")
            row = database.execute(_REQUESTED).fetchone()
            return None if row is None else str(row[0])
    except sqlite3.Error:
        return None
