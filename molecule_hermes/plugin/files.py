"""Files in and out of Hermes: what a peer attached, and what the agent created."""

from __future__ import annotations

import logging
import mimetypes
import re
import uuid
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from molecule_hermes.text import safe_name
from molecule_hermes.wire import MAX_FILE_BYTES, Attachment, File, WireError

__all__ = ["FileRefusedError", "left_over", "linked_file", "read_file", "remove", "save"]

log = logging.getLogger(__name__)

_PREFIX = "a2a"
"""Unlike Hermes's own `doc`, so that our files can be told from other platforms' after a crash."""

_SAVED = re.compile(rf"^{_PREFIX}_[0-9a-f]{{12}}_")

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


def save(attachment: Attachment, folder: Path, saved: list[Path]) -> Path:
    """Writes an attachment into the folder under a unique name.

    The path is added to `saved` before it is written, so that a partial file is removed, too.
    Hermes shows the agent what follows the second underscore as the file's name (run.py:11770).
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{_PREFIX}_{uuid.uuid4().hex[:12]}_{safe_name(attachment.name)}"
    saved.append(path)
    path.write_bytes(attachment.data)
    return path


def left_over(folder: Path) -> list[Path]:
    """Files that an earlier run of Hermes saved there and did not remove."""
    return list(folder.glob(f"{_PREFIX}_{'[0-9a-f]' * 12}_*"))


def remove(paths: Iterable[Path]) -> None:
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:  # a tool may have replaced it by a folder
            log.warning("could not remove %s: %s", path.name, error)


def read_file(
    path: str, *, cwd: Path, home: Path, limit: int, name: str = "", media_since: float = 0.0
) -> File:
    """Reads a file that the agent created, if it is where agents create files and not too large.

    In Hermes's media caches, which all chats share, only files written since `media_since` count.
    """
    shown = safe_name(name or _SAVED.sub("", Path(path).name))
    try:
        resolved = Path(path).resolve()
        shown = safe_name(name or _SAVED.sub("", resolved.name))
        allowed = resolved.is_file() and (
            _in_cache(resolved, home.resolve(), media_since)
            or _in_work_folder(resolved, cwd.resolve(), home.resolve())
        )
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


def _in_work_folder(path: Path, cwd: Path, home: Path) -> bool:
    """Whether the file is below the working directory.

    Hermes's home is private even if the working directory contains it: it holds every peer's
    conversations (state.db), which Hermes's own list of protected files omits. Hidden files are
    private, too: without a setting, the working directory is the user's home.
    """
    if not path.is_relative_to(cwd) or (path.is_relative_to(home) and home.is_relative_to(cwd)):
        return False
    return not any(part.startswith(".") for part in path.relative_to(cwd).parts)


def _type_of(name: str) -> str:
    return mimetypes.guess_type(name)[0] or "application/octet-stream"
