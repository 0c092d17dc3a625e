"""STATE_DIR: only its owner may read it, whatever the umask was, and one `up` at a time uses it."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from molecule_hermes.errors import StartError

__all__ = ["held", "holder", "make_private"]

logger = logging.getLogger(__name__)

_LOCK = "up.lock"


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Raises `StartError` if another `up` uses the folder, also one in another container."""
    path = folder / _LOCK
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StartError(
            f"cannot write to {folder}: {error.strerror}",
            "set MOLECULE_HERMES_STATE_DIR to a folder that you can write to",
        ) from error
    with contextlib.closing(os.fdopen(lock, "r+")) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = file.read(32).strip()
            raise StartError(
                f"`molecule-hermes up` (pid {pid}) already runs on {folder}",
                f"stop it (kill {pid}), or choose another MOLECULE_HERMES_STATE_DIR",
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def holder(folder: Path) -> str | None:
    """The process id of the `up` that uses the folder, as that one sees it; None if none does."""
    try:
        with (folder / _LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return (folder / _LOCK).read_text().strip()
    except OSError:
        pass
    return None


def make_private(folder: Path) -> None:
    """Creates the folder with mode 700, and removes the permissions of others from its entries.

    Also sets the umask of this process, which Hermes and its tools inherit: files that they create
    later are private, too. Ignores a folder that cannot be used: the store and Hermes's home report
    it with a hint.
    """
    os.umask(0o077)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        entries = list(folder.iterdir())
    except OSError:
        return
    for path in (folder, *entries):
        if not path.is_symlink():
            _remove_permissions_of_others(path)


def _remove_permissions_of_others(path: Path) -> None:
    """The root of a volume may belong to another user, as with Kubernetes's fsGroup: no error."""
    try:
        mode = path.stat().st_mode & 0o7777
        if mode & 0o077:
            path.chmod(mode & 0o7700)
    except OSError as error:
        logger.warning("other users can still read %s: %s", path, error.strerror)
