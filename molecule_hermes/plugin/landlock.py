"""Confines this process, and all that it starts, to the files and ports that its rules name.

Linux's Landlock does most of it, without privileges, and no later call can lift it. What Landlock
leaves open is closed by `privileges` and `syscall_filter`. Standard library only, because it runs
before anything of Hermes is imported.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from molecule_hermes.plugin import privileges, syscall_filter

__all__ = ["ConfinementError", "Rules", "abi", "confine", "limits", "unenforceable"]

# The numbers are the same on all architectures but Alpha.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1
_PATH_BENEATH, _NET_PORT = 1, 2

# Rights to files, include/uapi/linux/landlock.h.
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_TRUNCATE, _IOCTL_DEV, _RESOLVE_UNIX = 1 << 14, 1 << 15, 1 << 16
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV | _RESOLVE_UNIX
"""The rights that a rule on a file may have; the kernel refuses others."""
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_DEVICE = _READ_FILE | _WRITE_FILE | _IOCTL_DEV
_BIND_TCP = 1 << 0
_SCOPES = 0b11
"""Abstract sockets and signals."""

_KERNELS = {1: "5.13", 3: "6.2", 4: "6.7", 6: "6.12", 9: "7.1"}
"""The version of Linux that brought each ABI whose absence matters."""


class ConfinementError(Exception):
    """The process cannot be confined at all, or in a part that it must not run without."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a process may reach. The paths are absolute and hold no symbolic links."""

    read: tuple[str, ...] = ()
    """Files and folders that it may read and execute."""
    write: tuple[str, ...] = ()
    """Files and folders with which it may do everything."""
    devices: tuple[str, ...] = ()
    """Devices that it may read, write and control."""
    bind_ports: tuple[int, ...] | None = None
    """The TCP ports that it may listen on, besides those that the kernel picks; None means any."""

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Self:
        """Raises LookupError, TypeError or ValueError."""
        ports = data["bind_ports"]
        return cls(
            read=tuple(map(str, data["read"])),
            write=tuple(map(str, data["write"])),
            devices=tuple(map(str, data["devices"])),
            bind_ports=None if ports is None else tuple(map(int, ports)),
        )


def abi() -> int:
    """The version of Landlock in this kernel; 0 if there is none, or it is switched off."""
    if sys.platform != "linux":
        return 0
    try:
        return _call(_CREATE_RULESET, None, 0, _VERSION)
    except OSError:
        return 0


def unenforceable(rules: Rules, version: int | None = None) -> tuple[str, ...]:
    """Which parts of the rules this kernel cannot enforce, as sentences."""
    if sys.platform != "linux":
        return ("Nothing is confined: that needs Linux.",)
    version = abi() if version is None else version
    lacks = []
    if version < 1:
        lacks.append(
            "All files of this user can be read and changed: the kernel has no Landlock, or it is "
            f"switched off ({_since(1)})."
        )
    elif version < 3:
        lacks.append(f"Files outside can be emptied, though not read ({_since(3)}).")
    if version < 4 and rules.bind_ports is not None:
        lacks.append(f"Any free TCP port can be listened on ({_since(4)}).")
    if version < 6:
        lacks.append(
            f"Processes outside can be signalled, and abstract sockets reached ({_since(6)})."
        )
    return (*lacks, *syscall_filter.unenforceable())


def limits(version: int | None = None) -> tuple[str, ...]:
    """What no rule prevents on this kernel, as sentences."""
    version = abi() if version is None else version
    found = [
        "Whether a file exists, and its size, can be found out (stat).",
        "The mode and times of this user's files elsewhere can be changed (chmod).",
        "The command lines of all processes can be read.",
    ]
    if version < 9:
        found.append(
            "Unix sockets with a path, such as those of Docker or a desktop session, can be "
            f"connected to where their permissions allow it ({_since(9)})."
        )
    return tuple(found)


def _since(version: int) -> str:
    return f"needs Linux {_KERNELS[version]}"


def confine(rules: Rules) -> tuple[str, ...]:
    """Gives up all capabilities and applies the rules, for good. Linux only.

    Call it before any thread exists, because it applies to the calling thread only. Paths that do
    not exist, or that have become symbolic links, are skipped. Returns what could not be enforced;
    raises `ConfinementError` where that is neither known nor expected.
    """
    lacks = unenforceable(rules)
    if sys.platform != "linux":
        return lacks
    if len(os.listdir("/proc/self/task")) > 1:  # noqa: PTH208 - pathlib would not help
        raise ConfinementError("there are threads already, which would not be confined")
    try:
        privileges.drop()
        if version := abi():
            _restrict(rules, version)
        syscall_filter.install()
    except OSError as error:
        raise ConfinementError(f"the kernel refuses it: {error}") from error
    return lacks


def _restrict(rules: Rules, version: int) -> None:
    files = _file_rights(version)
    ports = _BIND_TCP if version >= 4 and rules.bind_ports is not None else 0
    scopes = _SCOPES if version >= 6 else 0
    # An older kernel accepts the longer structure as long as what it does not know is zero.
    ruleset = _call(_CREATE_RULESET, struct.pack("=QQQ", files, ports, scopes), 24, 0)
    try:
        everything = files & ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV)
        for paths, rights in (
            (rules.read, _READ),
            (rules.write, everything),
            (rules.devices, _DEVICE),
        ):
            for path in paths:
                _grant(ruleset, path, rights & files)
        for port in {0, *(rules.bind_ports or ())} if ports else ():
            _call(_ADD_RULE, ruleset, _NET_PORT, struct.pack("=QQ", _BIND_TCP, port), 0)
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _file_rights(version: int) -> int:
    count = {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16 if version < 9 else 17)
    return (1 << count) - 1


def _grant(ruleset: int, path: str, rights: int) -> None:
    descriptor = _open_real(path)
    if descriptor is None:
        return
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISLNK(mode):
            return
        if not stat.S_ISDIR(mode):
            rights &= _FILE_RIGHTS
        # The kernel's structure is packed.
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, descriptor), 0)
    finally:
        os.close(descriptor)


def _open_real(path: str) -> int | None:
    """Opens a path without following a link: tools could have put one where a folder was."""
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open("/", flags)
    for step in Path(path).parts[1:]:
        try:
            deeper = os.open(step, flags, dir_fd=descriptor)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        descriptor = deeper
    return descriptor


def _call(number: int, *arguments: int | bytes | None) -> int:
    """Raises OSError."""
    system_call = ctypes.CDLL(None, use_errno=True).syscall
    system_call.restype = ctypes.c_long
    as_longs = (ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)
    result = int(system_call(ctypes.c_long(number), *as_longs))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
