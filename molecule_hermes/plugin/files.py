"""Files in and out of Hermes: what a peer attached, and what the agent made."""

from __future__ import annotations

import mimetypes
import re
import uuid
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from molecule_hermes.wire import Attachment, File

__all__ = ["FileRefusedError", "linked_file", "read_file", "remove", "save"]

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
_UNSAFE = re.compile(r"[^\w.\- ]+")


class FileRefusedError(Exception):
    """The file is not for the peer. The message may be shown: it names no path."""


def save(attachment: Attachment, folder: Path) -> Path:
    """Writes an attachment into the folder, under a name of our own making.

    Hermes shows the agent what follows the second underscore as the file's name (run.py:11770).
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"doc_{uuid.uuid4().hex[:12]}_{_safe(attachment.name)}"
    path.write_bytes(attachment.data)
    return path


def remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def read_file(path: str, *, cwd: Path, home: Path, limit: int, name: str = "") -> File:
    """A file the agent made, if it lies where the agent makes files and is not too large."""
    resolved = Path(path).resolve()
    shown = name or resolved.name
    if not resolved.is_file() or not _made_by_agent(resolved, cwd.resolve(), home.resolve()):
        raise FileRefusedError(f"the file {shown} is not available")
    if resolved.stat().st_size > limit:
        raise FileRefusedError(f"the file {shown} is larger than {limit // 2**20} MiB")
    try:
        return File(_safe(shown), _guess(shown), data=resolved.read_bytes())
    except OSError as error:
        raise FileRefusedError(f"the file {shown} cannot be read") from error


def linked_file(url: str) -> File:
    """A file that is somewhere else already, such as an image with an address."""
    name = Path(unquote(urlsplit(url).path)).name or "image"
    return File(_safe(name), _guess(name), url=url)


def _made_by_agent(path: Path, cwd: Path, home: Path) -> bool:
    """Below the working directory, or where Hermes's tools put media.

    The rest of Hermes's home is private even when the working directory holds it: there lie
    every peer's conversations (state.db), which Hermes's own list of private files leaves out.
    """
    if any(path.is_relative_to(home / folder) for folder in _MEDIA):
        return True
    private = path.is_relative_to(home) and home.is_relative_to(cwd)
    return path.is_relative_to(cwd) and not private


def _guess(name: str) -> str:
    return mimetypes.guess_type(name)[0] or "application/octet-stream"


def _safe(name: str) -> str:
    cleaned = _UNSAFE.sub("_", Path(name).name).strip(". ")
    return cleaned[-100:] or "file"
