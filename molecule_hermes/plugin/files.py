"""Files out of Hermes: what the agent may deliver. `kept_files` has what peers attached."""

from __future__ import annotations

import mimetypes
from pathlib import Path
from urllib.parse import unquote, urlsplit

from molecule_hermes.plugin.kept_files import shown_name
from molecule_hermes.text import safe_name
from molecule_hermes.wire import MAX_FILE_BYTES, File, WireError

__all__ = ["FileRefusedError", "linked_file", "read_file"]

# Below Hermes's home, in its old and its new layout (base.py:983).
_MEDIA = (
    "cache/images",
    "cache/audio",
    "cache/videos",
    "cache/documents",
    "cache/screenshots",
    "image_cache",
    "audio_cache",
    "video_cache",
    "document_cache",
    "browser_screenshots",
)


class FileRefusedError(Exception):
    """The file must not be delivered. The message names no path, so the peer may see it."""


def read_file(
    path: str,
    *,
    cwd: Path,
    home: Path,
    limit: int,
    name: str = "",
    media_since: float = 0.0,
    kept: Path | None = None,
    own: Path | None = None,
) -> File:
    """Reads a file that the agent created, if it is where agents create files and not too large.

    In Hermes's media caches, which all chats share, only files written since `media_since` count.
    `kept` has the files that peers sent, and `own` those of this conversation's peer: nothing else
    in `kept` is read, wherever it lies.
    """
    shown = safe_name(name or shown_name(Path(path).name))
    try:
        resolved = Path(path).resolve()
        shown = safe_name(name or shown_name(resolved.name))
        if kept is not None and resolved.is_relative_to(kept.resolve()):
            allowed = own is not None and _below(resolved, own.resolve())
        else:
            allowed = _in_cache(resolved, home.resolve(), media_since) or _in_work_folder(
                resolved, cwd.resolve(), home.resolve()
            )
        allowed = allowed and resolved.is_file()
    except (OSError, RuntimeError, ValueError):  # too long, a loop of links, a NUL character
        allowed = False
    if not allowed:
        raise FileRefusedError(f"the file {shown} is not available")
    limit = min(limit, MAX_FILE_BYTES)
    try:
        with resolved.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise FileRefusedError(f"the file {shown} cannot be read") from error
    if len(data) > limit:
        size = resolved.stat().st_size
        raise FileRefusedError(
            f"the file {shown} was not delivered: it has {size:,} bytes, and {limit:,} are allowed"
        )
    return File(shown, _type_of(shown), data=data)


def linked_file(url: str) -> File:
    """A file that is already published elsewhere, such as an image with a URL."""
    name = safe_name(unquote(urlsplit(url).path), "image")
    file = File(name, _type_of(name), url=url)
    try:
        File.parse(file.to_json())
    except WireError as error:
        raise FileRefusedError(f"the file {name} was not delivered: {error}") from error
    return file


def _in_cache(path: Path, home: Path, since: float) -> bool:
    """Whether the file is where Hermes's tools put media, and new enough."""
    cached = any(path.is_relative_to(home / folder) for folder in _MEDIA)
    return cached and path.stat().st_mtime >= since


def _below(path: Path, folder: Path) -> bool:
    """Whether the file is in the folder and not hidden there."""
    if not path.is_relative_to(folder):
        return False
    return not any(part.startswith(".") for part in path.relative_to(folder).parts)


def _in_work_folder(path: Path, cwd: Path, home: Path) -> bool:
    """Whether the file is below the working directory.

    Hermes's home is private even if the working directory contains it: it holds every peer's
    conversations (state.db), which Hermes's own list of protected files omits. Hidden files are
    private, too: without a setting, the working directory is the user's home.
    """
    private = path.is_relative_to(home) and home.is_relative_to(cwd)
    return _below(path, cwd) and not private


def _type_of(name: str) -> str:
    return mimetypes.guess_type(name)[0] or "application/octet-stream"
