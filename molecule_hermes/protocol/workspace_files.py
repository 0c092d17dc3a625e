"""Files that a message names by a `workspace:` URI instead of sending them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import unquote

from molecule_hermes.confined_files import ConfinedFileError, OversizedFileError, read_below
from molecule_hermes.net.downloads import Download, DownloadError, OversizeError

__all__ = ["WorkspaceFiles"]

_SCHEME = "workspace:"


class WorkspaceFiles:
    """`workspace:/path` below a folder. Without a folder, no such URI is accepted."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def accepts(self, url: str) -> bool:
        return self._folder is not None and url.startswith(_SCHEME)

    async def read(self, url: str, limit: int) -> Download:
        """Raises `DownloadError`, whose text is for the peer."""
        path = url.removeprefix(_SCHEME)
        if self._folder is None:
            raise DownloadError("this agent has no workspace")
        try:
            data = await asyncio.to_thread(_read, self._folder, path, limit)
        except OversizedFileError as error:
            raise OversizeError from error
        except ConfinedFileError as error:
            raise DownloadError(f"{error} of the workspace") from error
        return Download(Path(unquote(path)).name, "", data)


def _read(folder: Path, path: str, limit: int) -> bytes:
    """A path may repeat the folder (`workspace:/workspace/a.txt`) and may be quoted."""
    try:
        return read_below(folder, _inside(folder, path), limit)
    except OversizedFileError:
        raise
    except ConfinedFileError:
        if (plain := unquote(path)) == path:
            raise
        return read_below(folder, _inside(folder, plain), limit)


def _inside(folder: Path, path: str) -> str:
    return path.removeprefix(f"{folder}/") if path.startswith(f"{folder}/") else path
