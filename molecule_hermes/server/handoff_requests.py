"""What Hermes's own `/handoff` asks for, as the database of its home has it."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from urllib.parse import quote

from molecule_hermes.plugin.settings import PLATFORM

__all__ = ["requested_in"]

_MAX = 16
# The gateway has taken these from its CLI, and its plugin waits for a bridge.
_REQUESTED = f"""
SELECT id FROM sessions WHERE handoff_state = 'running' AND handoff_platform = '{PLATFORM}'
LIMIT {_MAX}
"""  # noqa: S608 - it has only constants


def requested_in(home: Path) -> list[str]:
    """The sessions that wait to be handed over to our platform; none where there is no database."""
    path = home / "state.db"
    if not path.is_file():
        return []
    try:
        with contextlib.closing(
            sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=1.0)
        ) as database:
            # Tools of an agent can write to the file: nothing in its schema is run.
            database.execute("PRAGMA trusted_schema = OFF")
            return [str(row[0]) for row in database.execute(_REQUESTED)]
    except sqlite3.Error:
        return []
