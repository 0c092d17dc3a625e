"""Files in and out of Hermes: what a peer attached, and what the agent made."""

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
"""Not Hermes's own `doc`: what a crash left of ours can be told from other platforms' files."""

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
    """The file is not for the peer. The message may be shown: it names no path."""


def save(attachment: Attachment, folder: Path, saved: list[Path]) -> Path:
    """Writes an attachment into the folder, under a name of our own making.

    It is among the saved before it is written: also a half of it must be removed. Hermes shows
    the agent what follows the second underscore as the file's name (run.py:11770).
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{_PREFIX}_{uuid.uuid4().hex[:12]}_{safe_name(attachment.name)}"
    saved.append(path)
    path.write_bytes(attachment.data)
    return path


def left_over(folder: Path) -> list[Path]:
    """What an earlier life of Hermes saved there and did not remove."""
    return list(folder.glob(f"{_PREFIX}_{'[0-9a-f]' * 12}_*"))


def remove(paths: Iterable[Path]) -> None:
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:  # whatever a tool made of it
            log.warning("could not remove %s: %s", path.name, error)


def read_file(
    path: str, *, cwd: Path, home: Path, limit: int, name: str = "", media_since: float = 0.0
) -> File:
    """A file the agent made, if it lies where the agent makes files and is not too large.

    Of Hermes's media caches, which all chats share, only what was written since `media_since`.
    """
    shown = safe_name(name or _SAVED.sub("", Path(path).name))
    try:
        resolved = Path(path).resolve()
        shown = safe_name(name or _SAVED.sub("", resolved.name))
        mine = resolved.is_file() and (
            _in_cache(resolved, home.resolve(), media_since)
            or _made_by_agent(resolved, cwd.resolve(), home.resolve())
        )
    except (OSError, RuntimeError, ValueError):  # too long, a loop of links, a NUL in it
        mine = False
    if not mine:
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
            f"the file {shown} was not handed over: it has {size:,} bytes, at most {limit:,} may be"
        )
    return File(shown, _guess(shown), data=data)


def linked_file(url: str) -> File:
    """A file that is somewhere else already, such as an image with an address."""
    name = safe_name(unquote(urlsplit(url).path), "image")
    file = File(name, _guess(name), url=url)
    try:
        File.parse(file.to_json())
    except WireError as error:
        raise FileRefusedError(f"the file {name} was not handed over: {error}") from error
    return file


def _in_cache(path: Path, home: Path, since: float) -> bool:
    """Where Hermes's tools put media."""
    cached = any(path.is_relative_to(home / folder) for folder in _MEDIA)
    return cached and path.stat().st_mtime >= since


def _made_by_agent(path: Path, cwd: Path, home: Path) -> bool:
    """Below the working directory.

    The rest of Hermes's home is private even when the working directory holds it: there lie
    every peer's conversations (state.db), which Hermes's own list of private files leaves out.
    So is what is hidden: without a setting the working directory is the user's home.
    """
    if not path.is_relative_to(cwd) or (path.is_relative_to(home) and home.is_relative_to(cwd)):
        return False
    return not any(part.startswith(".") for part in path.relative_to(cwd).parts)


def _guess(name: str) -> str:
    return mimetypes.guess_type(name)[0] or "application/octet-stream"
