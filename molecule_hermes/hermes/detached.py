"""A process that outlives this one: started apart from it, or found running."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

__all__ = ["DetachedProcess"]

_POLL = 0.2


class DetachedProcess:
    """Has the methods of `asyncio.subprocess.Process` that the supervisor needs.

    asyncio kills its own subprocesses when the event loop is closed.
    """

    def __init__(self, pid: int, child: subprocess.Popen[bytes] | None = None) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._child = child
        self._process: psutil.Process | None = None
        with contextlib.suppress(psutil.Error):
            self._process = psutil.Process(pid)

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        *,
        stdin: bytes,
        stdout: IO[bytes] | None,
        env: Mapping[str, str],
        cwd: Path,
    ) -> DetachedProcess:
        """Starts the command in a session of its own and writes to its standard input."""
        return await asyncio.to_thread(cls._start, command, stdin, stdout, env, cwd)

    @classmethod
    def _start(
        cls,
        command: Sequence[str],
        stdin: bytes,
        stdout: IO[bytes] | None,
        env: Mapping[str, str],
        cwd: Path,
    ) -> DetachedProcess:
        child = subprocess.Popen(  # noqa: S603 - the command is ours
            command,
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=cwd,
            start_new_session=True,
        )
        # If it died already, the supervisor restarts it.
        with contextlib.suppress(OSError):
            if child.stdin is not None:
                child.stdin.write(stdin)
                child.stdin.close()
        return cls(child.pid, child)

    async def wait(self) -> int:
        while self._is_running():  # noqa: ASYNC110 - it may not be a child of this process
            await asyncio.sleep(_POLL)
        if self.returncode is None:
            code = self._child.returncode if self._child is not None else None
            self.returncode = -1 if code is None else code
        return self.returncode

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(psutil.Error):
            if self._process is not None:
                self._process.send_signal(number)

    def kill(self) -> None:
        with contextlib.suppress(psutil.Error):
            if self._process is not None:
                self._process.kill()

    def _is_running(self) -> bool:
        if self._child is not None:
            return self._child.poll() is None
        try:
            # psutil recognises a reused pid.
            return (
                self._process is not None
                and self._process.is_running()
                and self._process.status() != psutil.STATUS_ZOMBIE
            )
        except psutil.Error:
            return False
