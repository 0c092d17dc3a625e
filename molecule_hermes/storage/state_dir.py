"""STATE_DIR belongs to its owner alone, whatever the umask was."""

from __future__ import annotations

import logging
import os
from pathlib import Path

__all__ = ["make_private"]

logger = logging.getLogger(__name__)


def make_private(folder: Path) -> None:
    """Creates the folder with mode 700 and takes others' permissions from what is in it.

    It also sets this process's umask, which Hermes and its tools inherit, so that whatever they
    create later is private too. A folder that cannot be used is left to those who need it: the
    store and Hermes's home each report that with what to do.
    """
    os.umask(0o077)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        entries = list(folder.iterdir())
    except OSError:
        return
    for path in (folder, *entries):
        if not path.is_symlink():
            _take_from_others(path)


def _take_from_others(path: Path) -> None:
    """A volume's root may belong to another user, as with Kubernetes's fsGroup: no error."""
    try:
        mode = path.stat().st_mode & 0o7777
        if mode & 0o077:
            path.chmod(mode & 0o7700)
    except OSError as error:
        logger.warning("%s stays open to other users: %s", path, error.strerror)
