"""The folder where `send --save` stores files from the agent."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from molecule_hermes.errors import ConfigError
from molecule_hermes.text import safe_name

__all__ = ["SaveFolder"]


class SaveFolder:
    """Adds files to a folder. Never writes outside it, and never overwrites a file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ConfigError(f"--save {folder}: this is not a folder", "choose another") from None
        except OSError as error:
            raise ConfigError(f"--save {folder}: {error.strerror}", "choose another") from None

    def keep(self, name: str, data: bytes) -> Path:
        """Writes the file under a safe name that is not in use. Raises `OSError`."""
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
