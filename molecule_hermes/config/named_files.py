"""The files that the configuration file names: they exist, can be read, and are not too large."""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

from dotenv import dotenv_values
from dotenv.parser import parse_stream
from pydantic import SecretStr

from molecule_hermes.config.values import Value
from molecule_hermes.confined_files import read_regular

__all__ = ["NamedFiles"]

_PATH = r"[^\x00-\x1f]{1,4096}"
_MAX_SECRET = 65_536
_MAX_TEXT = 2**20
_SECRET = re.compile(r"[!-~]{16,4096}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_DECIDED = re.compile(
    r"(?:MOLECULE|API_SERVER|GATEWAY_MULTIPLEX|XDG|LD)_\w*|PYTHON\w*"
    r"|HERMES_HOME|HOME|TMPDIR|PATH|PWD"
)
"""Variables that the bridge sets for its own Hermes, or that change how processes start."""


class NamedFiles:
    """Resolves paths, which are relative to the folder of the configuration file."""

    def __init__(self, folder: Path, warn: Callable[[str], None]) -> None:
        self._folder = folder
        self._warn = warn
        self.secrets: list[Path] = []
        """The files that secrets were read from."""

    def text(self, value: Value) -> Path:
        """A file of text."""
        path = self._path(value, "the path of a text file")
        data = self._read(value, path, _MAX_TEXT)
        try:
            data.decode("utf-8")
        except UnicodeDecodeError:
            raise value.error(f"names {str(path)!r}, which is not UTF-8") from None
        return path

    def directory(self, value: Value) -> Path:
        path = self._path(value, "the path of a folder")
        try:
            with os.scandir(path) as entries:
                next(entries, None)
        except OSError as error:
            raise value.error(f"names {str(path)!r}: {error.strerror}") from None
        return path

    def secret(self, value: Value) -> SecretStr:
        """The only line of a file.

        Neither content nor path is ever shown: the secret itself may stand where its file belongs.
        """
        path = self._path(value, "the path of a file with a secret", shown=False)
        try:
            text = read_regular(path, _MAX_SECRET).decode("utf-8").strip()
        except OSError as error:
            raise value.error(f"names a file that cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise value.error("names a file that is not text") from None
        if not _SECRET.fullmatch(text):
            raise value.error(
                "names a file without a secret: it takes one line of 16 to 4096 printable ASCII "
                "characters without spaces"
            )
        self._note_secret(value, path)
        return SecretStr(text)

    def variables(self, value: Value) -> dict[str, SecretStr]:
        """A file of `NAME=value` lines. Values are taken as they are: `${NAME}` is not expanded."""
        path = self._path(value, "the path of a file with NAME=value lines")
        data = self._read(value, path, _MAX_SECRET)
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            raise value.error(f"names {str(path)!r}, which is not UTF-8") from None
        for binding in parse_stream(io.StringIO(text)):
            if binding.error or (binding.key is not None and binding.value is None):
                line = binding.original.line
                raise value.error(f"names {str(path)!r}, whose line {line} is not NAME=value")
        found = dotenv_values(stream=io.StringIO(text), interpolate=False)
        for name in found:
            if not _VARIABLE.fullmatch(name):
                raise value.error(f"names {str(path)!r}, which has a bad variable's name")
            if _DECIDED.fullmatch(name):
                raise value.error(f"names {str(path)!r}, which sets {name}: the bridge sets it")
        self._note_secret(value, path)
        return {name: SecretStr(each) for name, each in found.items() if each is not None}

    def _path(self, value: Value, takes: str, *, shown: bool = True) -> Path:
        return self._folder / value.text(takes, _PATH, shown=shown)

    def _read(self, value: Value, path: Path, limit: int) -> bytes:
        try:
            return read_regular(path, limit)
        except OSError as error:
            raise value.error(f"names {str(path)!r}: {error.strerror}") from None

    def _note_secret(self, value: Value, path: Path) -> None:
        self.secrets.append(path)
        if path.stat().st_mode & stat.S_IROTH:
            self._warn(f"{value.place}: every user of this machine can read {value.name}")
