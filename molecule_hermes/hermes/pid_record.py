"""Which process is a worker's gateway, as the bridge itself has written it down.

Hermes writes it into its own folder, too, where the agent's tools can name any process they like.
"""

from __future__ import annotations

import json
from pathlib import Path

import psutil

from molecule_hermes.hermes.home import write_atomically

__all__ = ["PidRecord"]

_CLOCK = 0.5
"""Seconds by which two readings of a process's beginning may differ."""


class PidRecord:
    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, pid: int) -> None:
        try:
            began = psutil.Process(pid).create_time()
        except psutil.Error:  # it has died already
            return
        write_atomically(self._path, json.dumps({"pid": pid, "began": began}))

    def read(self) -> int | None:
        """The process, if it still runs."""
        try:
            known = json.loads(self._path.read_text())
            process = psutil.Process(int(known["pid"]))
            same = abs(process.create_time() - float(known["began"])) < _CLOCK
            alive = process.status() != psutil.STATUS_ZOMBIE
        except (OSError, ValueError, KeyError, TypeError, psutil.Error):
            return None
        return process.pid if same and alive else None
