"""Reads files below a folder. A name from outside never leads out of it.

Standard library only.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

__all__ = ["ConfinedFileError", "OversizedFileError", "read_below", "read_part", "read_regular"]

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A named pipe that is opened without O_NONBLOCK waits for a writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_NAME = 4096
"""No path of Linux is longer, and the time to resolve one grows with the square of its length."""


class ConfinedFileError(ValueError):
    """The file cannot be read. The text says why, and is the same for everything outside."""


class OversizedFileError(ConfinedFileError):
    """The file exceeds the limit."""


def read_regular(path: Path, limit: int = 16 * 2**20) -> bytes:
    """Reads a file that somebody else may have replaced by a pipe, which would wait for ever, or by
    something huge. Follows links. Raises `OSError`."""
    content = read_part(path, 0, limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit} bytes", str(path))
    return content


def read_part(path: Path, start: int, limit: int) -> bytes:
    """As `read_regular`, but at most `limit` bytes from there; before 0, from the end. A file that
    has become shorter than that is read from its beginning."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a file", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            file.seek(max(0, status.st_size + start) if start < 0 else start)
            if start > status.st_size:
                file.seek(0)
            return file.read(limit)
    finally:
        os.close(descriptor)


def read_below(folder: Path, name: str, limit: int) -> bytes:
    """Reads a regular file of at most `limit` bytes. Raises `ConfinedFileError`.

    Links are followed if they stay inside the folder. The resolved path is then opened step by
    step without following links, so that a link that is made meanwhile does not lead outside.
    """
    if len(name) > _MAX_NAME or _leaves(name):
        raise ConfinedFileError("it is not inside the folder")
    try:
        top = folder.resolve()
        path = (top / name.lstrip("/")).resolve()
        inside = path.relative_to(top)
    except (OSError, ValueError, RuntimeError):
        raise ConfinedFileError("it is not inside the folder") from None
    try:
        return _read(top, inside, limit)
    except OSError as error:
        raise ConfinedFileError("it is not a file that can be read") from error


def _leaves(name: str) -> bool:
    """Whether the name leaves the folder, even if it returns: that would tell what is outside."""
    depth = 0
    for step in name.split("/"):
        depth += {"": 0, ".": 0, "..": -1}.get(step, 1)
        if depth < 0:
            return True
    return False


def _read(top: Path, inside: Path, limit: int) -> bytes:
    folder = os.open(top, _FOLDER)
    try:
        for step in inside.parts[:-1]:
            deeper = os.open(step, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = deeper
        descriptor = os.open(inside.name or ".", _FILE, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ConfinedFileError("it is not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(limit + 1)
    finally:
        os.close(descriptor)
    if len(content) > limit:
        raise OversizedFileError("it is too large")
    return content
