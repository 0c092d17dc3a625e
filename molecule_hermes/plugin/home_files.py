"""Puts the files of the bridge into Hermes's folder, whatever the tools have left there.

The folder is writable for the tools of the last run. So no symbolic link in it is followed, and
what stands in the way of a file or of one of its folders is removed. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

__all__ = ["remove", "require_inside", "write"]

_PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def require_inside(name: str) -> PurePosixPath:
    """The name as a path below a folder. Raises ValueError."""
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts or "\0" in name:
        raise ValueError(f"{name!r} is not a path below the folder")
    return path


def write(home: Path, files: Mapping[str, str], mode: int = 0o600) -> None:
    """Writes each file in one step; the names are relative to the folder. Raises OSError."""
    for name, text in files.items():
        path = require_inside(name)
        with _parent(home, path, create=True) as folder:
            assert folder is not None  # noqa: S101 - it is created
            _write(folder, path.name, text.encode(), mode)


def remove(home: Path, names: tuple[str, ...]) -> None:
    """Removes files, folders with all that is in them, and links. Raises OSError."""
    for name in names:
        path = require_inside(name)
        with _parent(home, path, create=False) as folder:
            if folder is not None:
                _remove(folder, path.name)


def _write(folder: int, name: str, content: bytes, mode: int) -> None:
    new = f".{name[:100]}.{secrets.token_hex(8)}"
    descriptor = os.open(new, _NEW_FILE, mode, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        try:
            os.replace(new, name, src_dir_fd=folder, dst_dir_fd=folder)
        except IsADirectoryError:
            _remove(folder, name)
            os.replace(new, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new, dir_fd=folder)
        raise


@contextmanager
def _parent(home: Path, path: PurePosixPath, *, create: bool) -> Iterator[int | None]:
    """The opened folder of the path; None if it is missing and is not to be created."""
    descriptor: int | None = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for step in path.parts[:-1]:
            assert descriptor is not None  # noqa: S101 - the loop ends with it
            deeper = _enter(descriptor, step, create=create)
            os.close(descriptor)
            descriptor = deeper
            if descriptor is None:
                break
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _enter(folder: int, name: str, *, create: bool) -> int | None:
    try:
        return _open_folder(folder, name)
    except FileNotFoundError:
        pass
    except OSError:
        # A link or a file. Nothing that lies behind a link belongs to this folder.
        if not create:
            return None
        os.unlink(name, dir_fd=folder)
    if not create:
        return None
    os.mkdir(name, 0o700, dir_fd=folder)
    return _open_folder(folder, name)


def _open_folder(folder: int, name: str) -> int:
    """Opens a folder, also one from which a tool has taken the permissions."""
    with contextlib.suppress(PermissionError):
        return os.open(name, _FOLDER, dir_fd=folder)
    _permit(folder, name)
    return os.open(name, _FOLDER, dir_fd=folder)


def _permit(folder: int, name: str) -> None:
    descriptor = os.open(name, _PATH, dir_fd=folder)
    try:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            # A descriptor without access cannot be changed itself, but its name in /proc can.
            Path(f"/proc/self/fd/{descriptor}").chmod(0o700)
    finally:
        os.close(descriptor)


def _remove(folder: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        _permit_all(folder, name)
        shutil.rmtree(name, dir_fd=folder)


def _permit_all(folder: int, name: str) -> None:
    """Gives back the permissions on a folder and those in it, so that it can be removed."""
    try:
        opened = _open_folder(folder, name)
    except NotADirectoryError:
        return
    try:
        _permit(folder, name)
        with os.scandir(opened) as entries:
            below = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        for deeper in below:
            _permit_all(opened, deeper)
    finally:
        os.close(opened)
