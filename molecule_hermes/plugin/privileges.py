"""Gives up the capabilities of this process for good. Standard library only, Linux only.

Landlock does not keep root with its capabilities from reading `/proc/PID/environ` of processes
outside (measured).
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

__all__ = ["capabilities", "drop"]

_PR_CAPBSET_DROP = 24
_PR_SET_SECUREBITS = 28
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_SECUREBITS = 0b1110_1111
"""Root and a change of user give no capabilities, and that cannot be changed."""
_VERSION_3 = 0x20080522
_MAX_CAPABILITY = 63


def drop() -> None:
    """Raises OSError unless the process has no capability left and can gain none."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot set no_new_privs")
    # Without CAP_SETPCAP these two are refused. It does not matter then: with no_new_privs no
    # program gains a capability that this process does not have.
    libc.prctl(_PR_SET_SECUREBITS, _SECUREBITS, 0, 0, 0)
    for number in range(_MAX_CAPABILITY + 1):
        libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    libc.capset(struct.pack("=Ii", _VERSION_3, 0), bytes(24))
    if left := capabilities():
        raise OSError(0, f"capabilities are left: {left:x}")


def capabilities(process: int | str = "self") -> int:
    """The capabilities that a process has, or can take up."""
    found = 0
    for line in os.fsdecode(Path(f"/proc/{process}/status").read_bytes()).splitlines():
        name, _, value = line.partition(":")
        if name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
            found |= int(value, 16)
    return found
