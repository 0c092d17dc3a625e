"""The files that peers attached, kept for the later turns of their conversations.

Each conversation has a folder of its own below Hermes's document cache. The agent's tools can read
there, also in a container, where Hermes mounts its caches. Hermes itself clears only what lies
directly in the cache (base.py:1616). Only a conversation's own prompts name its folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from molecule_hermes.text import safe_name
from molecule_hermes.wire import Attachment

__all__ = ["Bounds", "Earlier", "KeptFiles", "shown_name"]

log = logging.getLogger(__name__)

_FOLDER = "a2a"
_MANIFEST = ".files.json"
"""What peers sent: the digests by name. Its time of change is the last use of the conversation."""
_MAX_MANIFEST = 16 * 2**20
_PREFIX = "a2a__"
_NAMED = 10
"""How many earlier files the agent is told by name."""
_DAY = 86_400.0
_BLOCK = 4096
"""The least that a file counts, so that the bounds also limit the number of files."""


@dataclass(frozen=True, slots=True)
class Bounds:
    days: float = 7.0
    """How long a conversation's files stay after its last message; 0: until the turn ends."""
    in_all: int = 2**30
    """Bytes of all conversations."""
    of_chat: int = 100 * 2**20
    """Bytes of a conversation."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """The files of a conversation's earlier turns."""

    folder: Path
    names: tuple[str, ...] = ()
    """The latest ones, newest first."""
    more: int = 0
    """How many others there are."""


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    size: int
    changed: int


class KeptFiles:
    """Safe to use from several threads; a conversation has one turn at a time."""

    def __init__(
        self, cache: Path, bounds: Bounds | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self.root = cache / _FOLDER
        self._bounds = bounds or Bounds()
        self._clock = clock
        self._in_use: set[Path] = set()
        self._lock = threading.Lock()

    def of(self, chat_id: str) -> Path:
        return self.root / hashlib.sha256(chat_id.encode()).hexdigest()[:32]

    def enter(self, chat_id: str) -> None:
        """A turn of the conversation begins: its files stay until `leave`."""
        with self._lock:
            self._in_use.add(self.of(chat_id))
            with contextlib.suppress(OSError):  # it has no files
                os.utime(self.of(chat_id) / _MANIFEST, (self._clock(), self._clock()))

    def leave(self, chat_id: str) -> None:
        with self._lock:
            self._in_use.discard(self.of(chat_id))

    def save(self, chat_id: str, attachments: Sequence[Attachment]) -> list[Path]:
        """Writes the attachments under unique names; older files make room for them.

        A file that the conversation has already, with this name and content, is not written again.
        """
        if not attachments:
            return []
        folder = self.of(chat_id)
        with self._lock:
            for each in (self.root, folder):
                each.mkdir(mode=0o700, parents=True, exist_ok=True)
            known = _manifest(folder)
            paths = []
            for attachment in attachments:
                path = _same(folder, known, attachment) or _write(folder, attachment)
                os.utime(path, (self._clock(), self._clock()))
                known[path.name] = _digest(attachment.data)
                paths.append(path)
            _write_manifest(folder, known, self._clock())
            old = [file for file in _files(folder) if file.path not in paths]
            _shrink(old, _size(_files(folder)) - self._bounds.of_chat)
        return paths

    def earlier(self, chat_id: str, but: Sequence[Path] = ()) -> Earlier:
        """What the conversation's peer has sent, except these files."""
        folder = self.of(chat_id)
        with self._lock:
            known = _manifest(folder)
            files = [file for file in _files(folder) if file.path.parent == folder]
        names = [f.path.name for f in reversed(files) if f.path.name in known and f.path not in but]
        return Earlier(folder, tuple(names[:_NAMED]), len(names[_NAMED:]))

    def holds(self, chat_id: str, data: bytes) -> bool:
        """Whether the conversation's peer has sent exactly this content itself."""
        folder, digest = self.of(chat_id), _digest(data)
        with self._lock:
            return any(
                known == digest and (folder / name).is_file()
                for name, known in _manifest(folder).items()
            )

    def sweep(self) -> None:
        """Removes what is too old or too much, oldest first. Turns that run keep their files."""
        with self._lock:
            idle: list[_File] = []
            size = 0
            for folder in _folders(self.root):
                files = _files(folder)
                if folder in self._in_use:
                    size += _size(files)
                elif self._clock() - _last_use(folder) >= self._bounds.days * _DAY:
                    shutil.rmtree(folder, ignore_errors=True)
                else:
                    files = _shrink(files, _size(files) - self._bounds.of_chat)
                    size += _size(files)
                    idle += files
            idle.sort(key=lambda file: file.changed)
            _shrink(idle, size - self._bounds.in_all)


def shown_name(stored: str) -> str:
    """The name under which a file was sent."""
    return stored.removeprefix(_PREFIX)


def _stored_name(name: str) -> str:
    """Hermes shows the agent only what follows a name's second underscore (run.py:11745)."""
    name = safe_name(name)
    return f"{_PREFIX}{name}" if name.count("_") >= 2 else name


def _names(name: str) -> Iterator[str]:
    """The name and its variants: a.pdf, a-2.pdf, a-3.pdf and so on."""
    path = Path(_stored_name(name))
    yield path.name
    number = 2
    while True:
        yield f"{path.stem}-{number}{path.suffix}"
        number += 1


def _same(folder: Path, known: Mapping[str, str], attachment: Attachment) -> Path | None:
    """The file under which the attachment is kept already, unless a tool has changed it."""
    digest = _digest(attachment.data)
    for name in _names(attachment.name):
        if name not in known:
            return None
        path = folder / name
        with contextlib.suppress(OSError):
            if known[name] == digest and _digest(_content(path, len(attachment.data))) == digest:
                return path
    return None


def _write(folder: Path, attachment: Attachment) -> Path:
    for name in _names(attachment.name):
        path = folder / name
        try:
            # Neither an existing file nor a link that a tool has left is written to.
            file = path.open("xb")
        except FileExistsError:
            continue
        try:
            with file:
                file.write(attachment.data)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        return path
    raise AssertionError("the names are endless")


def _manifest(folder: Path) -> dict[str, str]:
    """The digests by name; empty if there is no manifest or a tool has spoiled it."""
    try:
        known = json.loads(_content(folder / _MANIFEST, _MAX_MANIFEST))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(known, dict):
        return {}
    return {
        name: digest
        for name, digest in known.items()
        if isinstance(digest, str) and os.sep not in name
    }


def _content(path: Path, most: int) -> bytes:
    """The content of a regular file. A tool may have left a link, a pipe or something huge there;
    opening a pipe would wait for ever. Raises `OSError`."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(file, "rb") as opened:  # noqa: PTH123 - it is a descriptor
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            raise OSError(f"{path.name} is not a file of at most {most} bytes")
        return opened.read(most)


def _write_manifest(folder: Path, known: Mapping[str, str], now: float) -> None:
    existing = {name: digest for name, digest in known.items() if (folder / name).is_file()}
    written = folder / f"{_MANIFEST}.new"
    written.unlink(missing_ok=True)
    written.write_text(json.dumps(existing), encoding="utf-8")
    os.utime(written, (now, now))
    written.replace(folder / _MANIFEST)


def _folders(root: Path) -> list[Path]:
    try:
        return [path for path in root.iterdir() if path.is_dir() and not path.is_symlink()]
    except OSError:
        return []


def _last_use(folder: Path) -> float:
    for path in (folder / _MANIFEST, folder):
        with contextlib.suppress(OSError):
            return path.lstat().st_mtime
    return 0.0


def _files(folder: Path) -> list[_File]:
    """Everything in the folder, oldest first: what peers sent, and what tools have left there."""
    found = []
    for parent, _, names in os.walk(folder):
        for path in (Path(parent, name) for name in names if not name.startswith(_MANIFEST)):
            with contextlib.suppress(OSError):
                status = path.lstat()
                found.append(_File(path, max(status.st_size, _BLOCK), status.st_mtime_ns))
    return sorted(found, key=lambda file: (file.changed, file.path.name))


def _size(files: Sequence[_File]) -> int:
    return sum(file.size for file in files)


def _shrink(files: Sequence[_File], excess: int) -> list[_File]:
    """Removes the first files until they have made up for the excess; returns the others."""
    left = list(files)
    while left and excess > 0:
        file = left.pop(0)
        try:
            file.path.unlink(missing_ok=True)
            excess -= file.size
        except OSError as error:
            log.warning("could not remove %s: %s", file.path.name, error)
    return left


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
