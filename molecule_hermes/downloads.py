"""The folder where `send --save` keeps the files that an agent delivers."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from molecule_hermes.errors import ConfigError

__all__ = ["Downloads", "safe_name"]

_LONGEST = 200
"""Bytes of a name; file systems take 255, and a number may be added."""


class Downloads:
    """Files are added to the folder; none is written outside it, and none over another."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ConfigError(f"--save {folder}: that is not a folder") from None
        except OSError as error:
            raise ConfigError(f"--save {folder}: {error.strerror}") from None

    def keep(self, name: str, data: bytes) -> Path:
        """Writes the file under a safe name that is still free; raises `OSError`."""
        path = PurePosixPath(safe_name(name))
        number = 0
        while True:
            ending = f"-{number}" if number else ""
            target = self._folder / f"{path.stem}{ending}{path.suffix}"
            try:
                with target.open("xb") as file:
                    file.write(data)
                return target
            except FileExistsError:
                number += 1


def safe_name(name: str) -> str:
    """A plain file name: no folder, nothing hidden, nothing that a terminal would obey."""
    last = re.split(r"[/\\]", name)[-1]
    plain = "".join(c if c.isprintable() else "_" for c in last).strip().lstrip(".- ")
    path = PurePosixPath(plain or "file")
    suffix = _cut(path.suffix, 20)
    return _cut(path.stem, _LONGEST - len(suffix.encode())) + suffix


def _cut(text: str, size: int) -> str:
    """At most that many bytes, without half a character."""
    return text.encode("utf-8", "replace")[:size].decode("utf-8", "ignore")
