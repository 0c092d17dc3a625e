"""Reads and marks the session that is handed over: a process of its own, in that session's home.

`python -m molecule_hermes.plugin.session_source` takes a request as JSON on standard input, and
writes the response as JSON to standard output. It reads nothing of the home but the database: what
Hermes itself would run from there, such as hooks and plugins, is not run.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from molecule_hermes.plugin.hermes_api import SessionError, open_sessions

__all__ = ["main"]


def main() -> int:
    request = json.load(sys.stdin)
    home = Path(str(request["home"]))
    os.environ["HERMES_HOME"] = str(home)
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # Hermes's modules may print
    try:
        response = _answer(home, request)
    except SessionError as error:
        response = {"error": str(error)}
    with out:
        json.dump(response, out)
    return 0


def _answer(home: Path, request: dict[str, Any]) -> dict[str, Any]:
    with open_sessions(home) as sessions:
        if request["do"] == "claim":
            return sessions.claim(str(request["session"]), str(request["target"])).to_json()
        named = (str(request[name]) for name in ("target", "error", "session"))
        sessions.settle(*named)
        return {}


if __name__ == "__main__":
    sys.exit(main())
