"""A secret of this bridge that outlives it: chains of agents and tasks' names are made of it."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from molecule_hermes.config import Settings
from molecule_hermes.confined_files import read_regular
from molecule_hermes.errors import StartError

__all__ = ["identity_of"]

_FILE = "identity"
_BYTES = 32
_MAX = 1024


def identity_of(settings: Settings) -> bytes:
    """A file in STATE_DIR; with tasks in memory, one that ends with the process.

    Raises `StartError` if the file can be neither read nor made.
    """
    if settings.store.get_secret_value() == "memory":
        return secrets.token_bytes(_BYTES)
    path = settings.state_dir / _FILE
    try:
        _make(path)
        identity = read_regular(path, _MAX)
    except OSError as error:
        raise StartError(
            f"cannot use {path}: {error.strerror}",
            "set MOLECULE_HERMES_STATE_DIR to a folder that you can write to",
        ) from error
    if len(identity) < _BYTES:
        raise StartError(f"{path} is too short to be a secret", "remove it; a new one is made")
    return identity


def _make(path: Path) -> None:
    """Writes it aside first, so that nobody reads a part of it."""
    if path.exists():
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    aside = path.with_name(f"{_FILE}.{secrets.token_hex(8)}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_hex(_BYTES).encode())
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # another process was first
            path.hardlink_to(aside)
    finally:
        aside.unlink(missing_ok=True)
