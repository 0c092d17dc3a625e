"""Refuses the few system calls by which a confined process could harm one outside.

Landlock's scopes stop signals, but not `prlimit`, by which a process ends any other of its user
(RLIMIT_CPU), nor changes of its priority. The kernel's keyrings are shared by all processes of a
user, and Landlock's rules for TCP ports do not count for MPTCP and SMC. By inotify and fanotify a
process learns the names of the files that are made in folders which it may not list. Standard
library only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from dataclasses import dataclass

__all__ = ["install", "unenforceable"]

_PR_SET_SECCOMP, _FILTER_MODE = 22, 2
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_X32 = 0x40000000
_IPPROTO_SMC, _IPPROTO_MPTCP = 256, 262
_AF_VSOCK, _AF_SMC = 40, 43
_USER = {"setpriority": 2, "ioprio_set": 3}
"""The value of the first argument that means all processes of a user."""


@dataclass(frozen=True, slots=True)
class _Machine:
    architecture: int
    calls: dict[str, int]


_MACHINES = {
    "x86_64": _Machine(
        0xC000003E,
        {
            "socket": 41,
            "setpriority": 141,
            "sched_setparam": 142,
            "sched_setscheduler": 144,
            "add_key": 248,
            "request_key": 249,
            "keyctl": 250,
            "ioprio_set": 251,
            "inotify_init": 253,
            "inotify_init1": 294,
            "fanotify_init": 300,
            "prlimit64": 302,
            "sched_setattr": 314,
            "io_uring_setup": 425,
        },
    ),
    "aarch64": _Machine(
        0xC00000B7,
        {
            "inotify_init1": 26,
            "ioprio_set": 30,
            "sched_setparam": 118,
            "sched_setscheduler": 119,
            "setpriority": 140,
            "socket": 198,
            "add_key": 217,
            "request_key": 218,
            "keyctl": 219,
            "prlimit64": 261,
            "fanotify_init": 262,
            "sched_setattr": 274,
            "io_uring_setup": 425,
        },
    ),
}
_Instruction = tuple[int, int, int, int]
"""Operation, how many to skip if true, and if false, and the operand."""


def unenforceable() -> tuple[str, ...]:
    if sys.platform == "linux" and platform.machine() not in _MACHINES:
        return (
            "The resource limits and priorities of processes outside can be changed: there is no "
            f"list of system calls for {platform.machine()}.",
        )
    return ()


def install() -> None:
    """Applies the filter to this process and all that it starts. Raises OSError.

    Needs no_new_privs. Does nothing on a machine whose system calls are not known.
    """
    machine = _MACHINES.get(platform.machine())
    # A 32-bit Python has other numbers.
    if machine is None or sys.maxsize < 2**32:
        return
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in _program(machine))
    instructions = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _FILTER_MODE, program, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _program(machine: _Machine) -> list[_Instruction]:
    # Programs for another architecture, such as 32-bit ones, have other numbers: none runs.
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, machine.architecture),
        _refuse(errno.ENOSYS),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if platform.machine() == "x86_64":
        program += [(_JUMP_AT_LEAST, 0, 1, _X32), _refuse(errno.ENOSYS)]
    for name, number in machine.calls.items():
        rule = [*_rule(name), (_RETURN, 0, 0, _ALLOW)]
        program += [(_JUMP_EQUAL, 0, len(rule), number), *rule]
    return [*program, (_RETURN, 0, 0, _ALLOW)]


def _rule(name: str) -> list[_Instruction]:
    """What follows once the call is known to be that one; what it does not refuse is allowed."""
    match name:
        case "add_key" | "request_key" | "keyctl" | "io_uring_setup":
            # By io_uring a process makes sockets without a system call.
            return [_refuse(errno.ENOSYS)]
        case "inotify_init" | "inotify_init1" | "fanotify_init":
            # Programs such as `tail -f` look again and again then.
            return [_refuse(errno.ENOSYS)]
        case "socket":
            return [
                _load(0),
                *_refuse_if(_AF_VSOCK, errno.EAFNOSUPPORT),
                *_refuse_if(_AF_SMC, errno.EAFNOSUPPORT),
                _load(2),
                *_refuse_if(_IPPROTO_SMC, errno.EPROTONOSUPPORT),
                *_refuse_if(_IPPROTO_MPTCP, errno.EPROTONOSUPPORT),
            ]
        case "setpriority" | "ioprio_set":
            return [_load(0), *_refuse_if(_USER[name], errno.EPERM), _load(1), *_refuse_unless_0()]
        case "prlimit64":
            # Reading the limits of another process is harmless: then the new limit is NULL.
            return [
                _load(0),
                (_JUMP_EQUAL, 5, 0, 0),
                _load(2),
                (_JUMP_EQUAL, 0, 2, 0),
                _load(2, high=True),
                (_JUMP_EQUAL, 1, 0, 0),
                _refuse(errno.EPERM),
            ]
        case _:
            return [_load(0), *_refuse_unless_0()]


def _load(argument: int, *, high: bool = False) -> _Instruction:
    """Half of an argument; both machines are little-endian."""
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * argument + (4 if high else 0))


def _refuse(error: int) -> _Instruction:
    return (_RETURN, 0, 0, _ERROR | error)


def _refuse_if(value: int, error: int) -> list[_Instruction]:
    return [(_JUMP_EQUAL, 0, 1, value), _refuse(error)]


def _refuse_unless_0() -> list[_Instruction]:
    return [(_JUMP_EQUAL, 1, 0, 0), _refuse(errno.EPERM)]
