"""Protects this process from other processes of the same user. Standard library only.

The agent's tools run as the user that runs the bridge and Hermes. Unprotected, their environment
and memory can be read through `/proc`.
"""

from __future__ import annotations

import ctypes
import sys

__all__ = ["forbid_inspection"]

_PR_SET_DUMPABLE = 4


def forbid_inspection() -> bool:
    """Makes the process undumpable; returns whether that worked (Linux only).

    Other processes without CAP_SYS_PTRACE then cannot read its `/proc/PID/environ`, `mem` or
    `fd`, nor attach to it, and it leaves no core dump. Threads and forks share the setting, and
    `execve` resets it, so each program has to call this itself.
    """
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0)
