"""The file with the output of `hermes gateway`, kept over restarts."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Self

from molecule_hermes.text import redact

__all__ = ["GatewayLog"]

logger = logging.getLogger(__name__)

_START = "--- Hermes starts"


class GatewayLog:
    """Appends to a file that its owner alone can read.

    Each start of Hermes begins with a line that has the time. A file of more than `max_bytes`
    becomes `NAME.1`, the one before `NAME.2`, and so on up to `keep` old files.
    """

    def __init__(self, path: Path, *, max_bytes: int = 4 * 2**20, keep: int = 2) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._file: IO[bytes] | None = None

    @property
    def file(self) -> IO[bytes] | None:
        """For the process to write to; None while the log is not open."""
        return self._file

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.fdopen(_open_private(self.path, os.O_APPEND), "ab", buffering=0)
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def mark_start(self) -> None:
        """Begins the part of a new process."""
        self.rotate_if_large()
        if self._file is not None:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            # A full disk must not keep Hermes from starting.
            with contextlib.suppress(OSError):
                self._file.write(f"{_START} {now} ---\n".encode())

    def rotate_if_large(self) -> None:
        """Copies and truncates: the running process keeps writing to the same open file."""
        try:
            if self.path.stat().st_size <= self._max_bytes:
                return
            for number in range(self._keep, 1, -1):
                with contextlib.suppress(FileNotFoundError):
                    self._old(number - 1).replace(self._old(number))
            with self.path.open("rb") as source, os.fdopen(_open_private(self._old(1)), "wb") as to:
                shutil.copyfileobj(source, to)
            os.truncate(self.path, 0)
        except OSError as error:
            logger.warning("cannot rotate %s: %s", self.path, error.strerror)

    def _old(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def tail(self, lines: int = 8) -> str:
        """The last lines of the newest process's output, without secrets."""
        try:
            with self.path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 20_000))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return ""
        shown = [line for line in text.splitlines() if line.strip()]
        starts = [i for i, line in enumerate(shown) if line.startswith(_START)]
        newest = shown[starts[-1] + 1 :] if starts else shown
        return redact("\n".join(newest[-lines:]))


def _open_private(path: Path, flags: int = os.O_TRUNC) -> int:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o600)
    os.fchmod(handle, 0o600)
    return handle
