"""The folder where `send --save` keeps the files that an agent delivers."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from molecule_hermes.errors import ConfigError
from molecule_hermes.text import safe_name

__all__ = ["SaveFolder"]


class SaveFolder:
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
