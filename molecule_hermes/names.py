"""Names of files that come from outside, made safe to show and to write. Standard library only."""

from __future__ import annotations

import re

__all__ = ["safe_name"]

_UNSAFE = re.compile(r"[^\w.\- ]+")
_MAX_BYTES = 120
"""With what is put in front of it, a name stays below the 255 bytes a file system takes."""


def safe_name(name: str, default: str = "file") -> str:
    """The name without a path, control characters or anything a shell or a prompt might read."""
    last = re.split(r"[/\\]", name)[-1]
    cleaned = _UNSAFE.sub("_", last)
    # The end holds the suffix, so a long name loses its beginning.
    short = cleaned.encode("utf-8", "replace")[-_MAX_BYTES:].decode("utf-8", "ignore")
    # Neither hidden nor an option of a command.
    return short.lstrip(".- ").rstrip(". ") or default
