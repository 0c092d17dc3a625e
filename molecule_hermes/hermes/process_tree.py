"""The processes that Hermes and its tools start."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time

import psutil

from molecule_hermes.hermes.home import HermesHome

__all__ = ["descendants", "die_with_parent", "kill", "kill_leftovers", "supervisor_of"]

_PR_SET_PDEATHSIG = 1
_SCANS = 3
_READS = 50
_NEW = 5.0
"""Seconds for which an empty environment may be that of a process during exec."""
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """Makes the kernel kill this process when its parent dies, so that no orphan holds its port.

    SIGKILL, because Hermes waits for its running tools after a SIGTERM (more than a minute, as
    measured).
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def supervisor_of(pid: int) -> int:
    """The bridge that would restart this gateway, or the gateway itself."""
    try:
        parent = psutil.Process(pid).parent()
        if parent is not None and "molecule" in " ".join(parent.cmdline()):
            return parent.pid
    except psutil.Error:
        pass
    return pid


def descendants(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return []


def kill(processes: list[psutil.Process]) -> None:
    """Kills the processes and waits for their end; psutil recognises a reused pid."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(processes, 3.0)


def kill_leftovers(home: HermesHome) -> None:
    """Kills what the tools of a gateway on this folder started, even if the gateway is gone.

    It scans again until a scan finds nothing, because a process can fork during a scan.
    """
    for _ in range(_SCANS):
        if not (found := _leftovers(home)):
            return
        kill(found)


def _leftovers(home: HermesHome) -> list[psutil.Process]:
    """Hermes marks the environment of what its tools start (measured on 0.19.0)."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            environ = _environ(process) if process.pid != os.getpid() else {}
            marked = "_HERMES_GATEWAY" in environ and environ.get("HERMES_HOME") == str(home.path)
            if marked and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _environ(process: psutil.Process) -> dict[str, str]:
    """The environment of a process, also of one that has only just been started.

    During exec the kernel shows an empty environment for a moment, which becomes long under load.
    """
    for _ in range(_READS):
        environ = process.environ()
        if environ or not _may_be_in_exec(process):
            return environ
        time.sleep(0.01)
    return {}


def _may_be_in_exec(process: psutil.Process) -> bool:
    """Kernel threads and zombies have no environment either, but no executable."""
    return time.time() - process.create_time() < _NEW and process.exe() != ""
