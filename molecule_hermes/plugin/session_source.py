"""Reads and marks the session that is handed over: a process of its own, in that session's home.

`python -m molecule_hermes.plugin.session_source` takes a request as JSON on standard input, and
writes the response as JSON to standard output. It reads nothing of the home but the database: what
Hermes itself would run from there, such as hooks and plugins, is not run.
"""

from __future__ import annotations

import json
import os
import resource
import sqlite3
import sys
from pathlib import Path
from typing import Any

from molecule_hermes.plugin.hermes_api import SessionError, open_sessions
from molecule_hermes.wire import MAX_TRANSCRIPT, MAX_TRANSCRIPT_MESSAGES, WireError

__all__ = ["main"]

_MAX_MEMORY = 2**30
"""Bytes of address space: an agent's tools can write what they like to the database."""


def main() -> int:
    request = json.load(sys.stdin)
    home = Path(str(request["home"]))
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
    os.environ["HERMES_HOME"] = str(home)
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # Hermes's modules may print
    try:
        response = _answer(home, request)
    except SessionError as error:
        response = {"error": str(error)}
    except (MemoryError, WireError, sqlite3.DatabaseError) as error:
        response = {"error": f"the session cannot be read ({type(error).__name__})"}
    with out:
        json.dump(response, out)
    return 0


def _answer(home: Path, request: dict[str, Any]) -> dict[str, Any]:
    with open_sessions(home) as sessions:
        if request["do"] == "claim":
            handed = sessions.claim(str(request["session"]), str(request["target"]))
            # The bridge reads all that is written here.
            if handed.size > MAX_TRANSCRIPT or len(handed.messages) > MAX_TRANSCRIPT_MESSAGES:
                raise SessionError("the session is too long to be handed over")
            return handed.to_json()
        named = (str(request[name]) for name in ("target", "error", "session"))
        sessions.settle(*named)
        return {}


if __name__ == "__main__":
    sys.exit(main())
