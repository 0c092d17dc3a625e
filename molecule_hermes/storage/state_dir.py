"""Permissions of STATE_DIR: only its owner may read it, whatever the umask was."""

from __future__ import annotations

import logging
import os
from pathlib import Path

__all__ = ["make_private"]

logger = logging.getLogger(__name__)


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
