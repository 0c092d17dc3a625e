"""Hermes's own brake on restarts.

After more than `gateway.respawn_storm.max_starts` starts in two minutes, Hermes sleeps for up to
300 s before it boots. It reports that only in its `logs/errors.log` (hermes_cli/gateway.py:4964 of
0.19.0). `up` disables the brake, but not with `--keep-config`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from molecule_hermes.confined_files import read_part
from molecule_hermes.hermes.home import HermesHome

__all__ = ["RespawnPause", "RespawnWatch"]

_LINE = re.compile(r"\(re\)started (\d+) times in (\d+)s .{1,3} backing off (\d+)s to break")


@dataclass(frozen=True, slots=True)
class RespawnPause:
    starts: int
    window: int
    seconds: int

    def __str__(self) -> str:
        return (
            f"Hermes was started {self.starts} times in {self.window} s and now sleeps for "
            f"{self.seconds} s before it boots; to disable that, set "
            "gateway.respawn_storm.max_starts to 0 in its config.yaml"
        )


class RespawnWatch:
    """Finds the pause that Hermes reports after this object was created."""

    def __init__(self, home: HermesHome) -> None:
        self._log = home.path / "logs" / "errors.log"
        try:
            self._offset = self._log.stat().st_size
        except OSError:
            self._offset = 0

    def pause(self) -> RespawnPause | None:
        try:
            # Hermes rotates the file: a shorter one is a new one.
            new = read_part(self._log, self._offset, 2**20)
            found = _LINE.findall(new.decode("utf-8", "replace"))
        except OSError:
            return None
        return RespawnPause(*map(int, found[-1])) if found else None
