"""Runs and supervises `hermes gateway`."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Self

import psutil

from molecule_hermes.backoff import Backoff
from molecule_hermes.errors import StartError, TurnFailure, Unreachable
from molecule_hermes.hermes.credentials import public_environment
from molecule_hermes.hermes.home import HermesHome
from molecule_hermes.plugin.handover import Handover
from molecule_hermes.text import redact

__all__ = ["COMMAND", "Gateway"]

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_CHECK_EVERY = 0.2
_CHECK_TIMEOUT = 5.0
_RESTART = Backoff(first=1.0, longest=30.0)
_HANDOVER_TAKES = 10.0

Check = Callable[[], Awaitable[None]]


COMMAND = (
    sys.executable,
    # Not from the folder in which it starts, Hermes's: tools can write there.
    "-P",
    *("-m", "molecule_hermes.plugin.launcher"),
    *("hermes", "gateway", "run"),
)


class Gateway:
    """The `hermes gateway` process: started on enter, restarted when it dies, ended on exit.

    `on_change` is told in a few words what happens, for the terminal.
    """

    def __init__(
        self,
        home: HermesHome,
        log_file: Path,
        *,
        environ: Mapping[str, str],
        handover: Handover | None = None,
        command: Sequence[str] = COMMAND,
        max_restarts: int = 5,
        restart_window: float = 300.0,
        stop_timeout: float = 10.0,
        start_timeout: float = 120.0,
        backoff: Backoff = _RESTART,
        on_change: Callable[[str], None] = logger.info,
    ) -> None:
        self.home = home
        self.log_file = log_file
        self._environ = environ
        self.handover = handover or Handover()
        """Given to each process that is started, over its standard input."""
        self._command = command
        self._max_restarts = max_restarts
        self._restart_window = restart_window
        self._stop_timeout = stop_timeout
        self._start_timeout = start_timeout
        self._backoff = backoff
        self._on_change = on_change
        self.hasten = asyncio.Event()
        """Set to kill Hermes instead of waiting for it at the end."""
        self.restarts = 0
        """How often Hermes was started again."""
        self._check: Check | None = None
        self._has_served = False
        """It can start here, so whatever keeps it from that now may pass."""
        self._deaths: deque[float] = deque()
        self._process: asyncio.subprocess.Process | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._log: IO[bytes] | None = None

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def check(self) -> None:
        """Raises `Unreachable` while the process does not run."""
        if self.pid is None:
            raise Unreachable(
                "the Hermes gateway is not running", hint=f"its log is {self.log_file}"
            )

    def watch(self, check: Check) -> None:
        """`check` passes once Hermes serves turns. A death after that is not a failed start."""
        self._check = check

    async def failed(self) -> None:
        """Returns only by raising, when Hermes cannot be started."""
        if self._supervisor is not None:
            await asyncio.shield(self._supervisor)

    def log_tail(self, lines: int = 8) -> str:
        """The last lines of Hermes's output, without secrets."""
        try:
            text = self.log_file.read_text(encoding="utf-8", errors="replace")[-20_000:]
        except OSError:
            return ""
        kept = [line for line in text.splitlines() if line.strip()]
        return redact("\n".join(kept[-lines:]))

    def require_alone(self) -> None:
        """Raises `StartError` when another gateway runs on this home; Hermes would exit."""
        if pid := self.home.running_gateway():
            raise StartError(
                f"a Hermes gateway (pid {pid}) already runs on {self.home.path}",
                f"stop it (kill {_who_keeps(pid)}), talk to it with `molecule-hermes serve`, "
                "or choose another HERMES_HOME",
            )

    async def __aenter__(self) -> Self:
        self.require_alone()
        await asyncio.to_thread(_kill, _left_by(self.home))
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        self._log = self.log_file.open("wb")
        self.log_file.chmod(0o600)
        await self._start()
        self._supervisor = asyncio.create_task(self._supervise(), name="hermes-supervisor")
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError, StartError):
                await self._supervisor
        await self._stop()
        if self._log is not None:
            self._log.close()

    async def _start(self) -> None:
        environ = public_environment(self._environ)
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=self._log,
            stderr=asyncio.subprocess.STDOUT,
            env=environ
            | _without_proxy(environ)
            | {"HERMES_HOME": str(self.home.path), "PYTHONUNBUFFERED": "1"},
            cwd=self.home.path,
            # A group of its own, so that Ctrl-C in a terminal reaches only the bridge, which
            # then stops Hermes in order.
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        await self._hand_over(self._process)

    async def _hand_over(self, process: asyncio.subprocess.Process) -> None:
        if process.stdin is None:
            return
        # If it dies meanwhile, the supervisor sees to it.
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(_HANDOVER_TAKES):
                process.stdin.write(self.handover.to_bytes())
                await process.stdin.drain()
                process.stdin.close()
                await process.stdin.wait_closed()

    async def _supervise(self) -> None:
        """Starts Hermes again whenever it dies, ever later; gives up only if it cannot start.

        A tool of one peer's turn can kill Hermes as often as it likes. That must not end the
        bridge for all others, so a death counts against MAX_RESTARTS only if Hermes never served.
        Nor must a tool that takes Hermes's port while it is down.
        """
        while True:
            if self._process is None:
                raise StartError("Hermes was never started")
            await self._lifetime(self._process)
            code = self._process.returncode
            await asyncio.to_thread(_kill, _left_by(self.home))
            deaths = self._count_death()
            if not self._has_served and deaths > self._max_restarts:
                raise StartError(
                    f"Hermes ended {deaths} times in {self._restart_window:g} s before it was "
                    f"ready (the last time with code {code})",
                    f"its log is {self.log_file}; the last lines:\n{self.log_tail()}",
                )
            wait = self._backoff.delay(deaths)
            self._on_change(f"Hermes ended with code {code}; starting it again in {wait:g} s")
            await asyncio.sleep(wait)
            self.restarts += 1
            await self._start()

    async def _lifetime(self, process: asyncio.subprocess.Process) -> None:
        """Waits for the end of the process, and ends one that no longer comes to serve turns:
        Hermes runs on without a platform whose port it found taken."""
        ended = asyncio.create_task(process.wait())
        overdue = time.monotonic() + self._start_timeout
        try:
            while not ended.done():
                await asyncio.wait({ended}, timeout=_CHECK_EVERY)
                if not ended.done() and await self._serves():
                    self._has_served = True
                    await ended
                elif self._has_served and time.monotonic() > overdue and not ended.done():
                    logger.warning("Hermes runs, but does not serve turns; killing it")
                    process.kill()
                    await ended
        finally:
            ended.cancel()

    async def _serves(self) -> bool:
        if self._check is None:
            return False
        try:
            async with asyncio.timeout(_CHECK_TIMEOUT):
                await self._check()
        except (TurnFailure, TimeoutError):
            return False
        return True

    def _count_death(self) -> int:
        """How many lie within RESTART_WINDOW, this one included."""
        now = time.monotonic()
        self._deaths.append(now)
        while self._deaths[0] < now - self._restart_window:
            self._deaths.popleft()
        return len(self._deaths)

    async def _stop(self) -> None:
        process, pid = self._process, self.pid
        if process is None or pid is None:
            return
        family = _descendants(pid)
        process.send_signal(signal.SIGTERM)
        ended = asyncio.create_task(process.wait())
        hastened = asyncio.create_task(self.hasten.wait())
        await asyncio.wait(
            {ended, hastened},
            timeout=self._stop_timeout,
            return_when=asyncio.FIRST_COMPLETED,
        )
        hastened.cancel()
        if not ended.done():
            logger.warning("Hermes did not stop in time; killing it")
            process.kill()
        await ended
        await asyncio.to_thread(_kill, family + _left_by(self.home))


def _who_keeps(pid: int) -> int:
    """The bridge that runs a gateway and would start it again; else the gateway itself."""
    try:
        parent = psutil.Process(pid).parent()
        if parent is not None and "molecule" in " ".join(parent.cmdline()):
            return parent.pid
    except psutil.Error:
        pass
    return pid


def _without_proxy(environ: Mapping[str, str]) -> dict[str, str]:
    """No proxy stands between Hermes and a model on this machine, such as the demo model."""
    known = environ.get("NO_PROXY") or environ.get("no_proxy")
    hosts = f"{known},127.0.0.1,localhost" if known else "127.0.0.1,localhost"
    return {"NO_PROXY": hosts, "no_proxy": hosts}


def _kill(family: list[psutil.Process]) -> None:
    """Ends what tools started and Hermes left behind; psutil knows a reused pid."""
    for member in family:
        with contextlib.suppress(psutil.Error):
            member.kill()
    psutil.wait_procs(family, 3.0)


def _left_by(home: HermesHome) -> list[psutil.Process]:
    """What the tools of a gateway on this home run, also when the gateway itself is gone.

    Hermes marks the environment of what its tools start (measured on 0.19.0).
    """
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            environ = process.environ() if process.pid != os.getpid() else {}
            if "_HERMES_GATEWAY" in environ and environ.get("HERMES_HOME") == str(home.path):
                left.append(process)
    return left


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return []


_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _die_with_parent() -> None:
    """Has the kernel end Hermes when the bridge is killed, so that no orphan holds its port.

    SIGKILL: after a SIGTERM Hermes waits for its running tools (measured, more than a minute).
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
