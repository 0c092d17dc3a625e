"""Runs and supervises `hermes gateway`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from molecule_hermes.backoff import Backoff
from molecule_hermes.errors import StartError, TurnFailure, Unreachable
from molecule_hermes.hermes.confinement import uses_user_site
from molecule_hermes.hermes.credentials import public_environment
from molecule_hermes.hermes.detached import DetachedProcess
from molecule_hermes.hermes.gateway_log import GatewayLog
from molecule_hermes.hermes.home import HermesHome
from molecule_hermes.hermes.pid_record import PidRecord
from molecule_hermes.hermes.process_tree import (
    descendants,
    die_with_parent,
    kill,
    kill_leftovers,
    supervisor_of,
)
from molecule_hermes.hermes.respawn import RespawnPause, RespawnWatch
from molecule_hermes.hermes.terminal import Terminal, for_cli
from molecule_hermes.plugin.handover import Handover

__all__ = ["COMMAND", "LAUNCHER", "Gateway"]

logger = logging.getLogger(__name__)

LAUNCHER = (
    sys.executable,
    # Do not import from the current folder, nor from ~/.local: tools can write to both, as a
    # confined Hermes has a home of its own.
    *(("-P",) if uses_user_site() else ("-P", "-s")),
    *("-m", "molecule_hermes.plugin.launcher"),
)
COMMAND = (*LAUNCHER, "hermes", "gateway", "run")

_CHECK_INTERVAL = 0.2
_CHECK_TIMEOUT = 5.0
_LOG_CHECK_INTERVAL = 30.0
_HANDOVER_TIMEOUT = 10.0
_RESTART = Backoff(first=1.0, longest=30.0)

Check = Callable[[], Awaitable[None]]


class Gateway:
    """The `hermes gateway` process: started on enter, restarted when it dies, stopped on exit.

    With `keep`, it is not stopped on exit, nor when this process is killed, and one that runs
    already is adopted on enter. `record` says which one that is, if not Hermes itself does.
    `on_change` receives a line for the terminal whenever Hermes is restarted.
    """

    def __init__(
        self,
        home: HermesHome,
        log_file: Path,
        *,
        environ: Mapping[str, str],
        handover: Handover | None = None,
        command: Sequence[str] = COMMAND,
        record: PidRecord | None = None,
        keep: bool = False,
        max_restarts: int = 5,
        restart_window: float = 300.0,
        stop_timeout: float = 10.0,
        start_timeout: float = 120.0,
        backoff: Backoff = _RESTART,
        on_change: Callable[[str], None] = logger.info,
    ) -> None:
        self.home = home
        self._log = GatewayLog(log_file)
        self._environ = environ
        self.handover = handover or Handover()
        """Sent to each new process over its standard input."""
        self._command = command
        self._record = record
        self._keep = keep
        self._max_restarts = max_restarts
        self._restart_window = restart_window
        self._stop_timeout = stop_timeout
        self._start_timeout = start_timeout
        self._backoff = backoff
        self._on_change = on_change
        self.hasten = asyncio.Event()
        """Set to kill Hermes on exit instead of waiting for it."""
        self.repair: Callable[[], None] = _nothing
        """Called in a thread before each restart."""
        self.leaves = keep
        """Whether Hermes goes on when this is exited."""
        self.restarts = 0
        self._check: Check | None = None
        self.has_served = False
        """Whether Hermes was able to serve turns, so that a later failure may be temporary."""
        self._deaths: deque[float] = deque()
        self._process: asyncio.subprocess.Process | DetachedProcess | None = None
        self._respawn: RespawnWatch | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._stack = contextlib.ExitStack()

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    @property
    def log_file(self) -> Path:
        return self._log.path

    def log_tail(self, lines: int = 8) -> str:
        """The last lines of the current process's output, without secrets."""
        return self._log.tail(lines)

    async def check(self) -> None:
        """Raises `Unreachable` while the process is not running."""
        if self.pid is None:
            raise Unreachable(
                "the Hermes gateway is not running", hint=f"its log is {self.log_file}"
            )

    def watch(self, check: Check) -> None:
        """Sets the check that passes once Hermes serves turns.

        A death after that does not count as a failed start.
        """
        self._check = check

    def respawn_pause(self) -> RespawnPause | None:
        """The pause that the current process makes before it boots, if it reported one."""
        return self._respawn.pause() if self._respawn is not None else None

    async def failed(self) -> None:
        """Waits until Hermes cannot be started, then raises `StartError`."""
        if self._supervisor is not None:
            await asyncio.shield(self._supervisor)

    @property
    def adoptable(self) -> int | None:
        """The process id of a running gateway that this one would adopt."""
        return self._running() if self._keep else None

    def _running(self) -> int | None:
        return self.home.running_gateway() if self._record is None else self._record.read()

    def require_alone(self) -> None:
        """Raises `StartError` if a gateway already runs on this folder; a second one would exit."""
        if (pid := self._running()) and not self._keep:
            raise StartError(
                f"a Hermes gateway (pid {pid}) already runs on {self.home.path}",
                f"stop it (kill {supervisor_of(pid)}), use it with `molecule-hermes serve`, choose "
                "another HERMES_HOME, or, if `up` with MOLECULE_HERMES_KEEP_WORKER=true left it, "
                "start with that setting to adopt it",
            )

    async def __aenter__(self) -> Self:
        self.require_alone()
        self.has_served = False
        self._deaths.clear()
        self._stack.enter_context(self._log)
        if pid := self.adoptable:
            self._process = DetachedProcess(pid)
        else:
            await asyncio.to_thread(kill_leftovers, self.home)
            await self._start()
        self._supervisor = asyncio.create_task(self._supervise(), name="hermes-supervisor")
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError, StartError):
                await self._supervisor
        if not self.leaves:
            await self._stop()
        self._stack.close()

    async def _start(self) -> None:
        environ = self._environment()
        self._respawn = RespawnWatch(self.home)
        await asyncio.to_thread(self._log.mark_start)
        if self._keep:
            self._process = await DetachedProcess.start(
                self._command,
                stdin=self.handover.to_bytes(),
                stdout=self._log.file,
                env=environ,
                cwd=self.home.path,
            )
            self._note(self._process.pid)
            return
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=self._log.file,
            stderr=asyncio.subprocess.STDOUT,
            env=environ,
            cwd=self.home.path,
            # In its own session, so that Ctrl-C in a terminal reaches only the bridge, which then
            # stops Hermes in order.
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        self._note(self._process.pid)
        await self._hand_over(self._process)

    def _environment(self) -> dict[str, str]:
        environ = public_environment(self._environ)
        environ |= _no_proxy_for_loopback(environ)
        return environ | {"HERMES_HOME": str(self.home.path), "PYTHONUNBUFFERED": "1"}

    def terminal(self, session_id: str) -> Terminal:
        """What Hermes's CLI needs to go on with a session of this Hermes."""
        return Terminal(
            session_id, self._environment(), str(self.home.path), for_cli(self.handover)
        )

    def _note(self, pid: int) -> None:
        if self._record is not None:
            self._record.write(pid)

    async def _hand_over(self, process: asyncio.subprocess.Process) -> None:
        if process.stdin is None:
            return
        # If the process dies meanwhile, the supervisor restarts it. uvloop raises RuntimeError for
        # a pipe that is already closed.
        with contextlib.suppress(ConnectionError, RuntimeError, TimeoutError):
            async with asyncio.timeout(_HANDOVER_TIMEOUT):
                process.stdin.write(self.handover.to_bytes())
                await process.stdin.drain()
                process.stdin.close()
                await process.stdin.wait_closed()

    async def _supervise(self) -> None:
        """Restarts Hermes whenever it dies, with a growing delay.

        A tool in one peer's turn can kill Hermes, or take its port while it is down, as often as
        it likes. That must not stop the bridge for the other peers, so the supervisor gives up
        after MAX_RESTARTS only if Hermes never served.
        """
        while True:
            if self._process is None:
                raise StartError("Hermes was never started")
            await self._wait_for_end(self._process)
            code = self._process.returncode
            await asyncio.to_thread(kill_leftovers, self.home)
            deaths = self._count_death()
            if not self.has_served and deaths > self._max_restarts:
                raise StartError(
                    f"Hermes ended {deaths} times in {self._restart_window:g} s before it was "
                    f"ready (the last time with code {code})",
                    f"its log is {self.log_file}; the last lines:\n{self.log_tail()}",
                )
            delay = self._backoff.delay(deaths)
            self._on_change(f"Hermes ended with code {code}; restarting it in {delay:g} s")
            await asyncio.sleep(delay)
            self.restarts += 1
            await self._start_again()

    async def _start_again(self) -> None:
        """A tool can have made Hermes's folder unusable; the next attempt comes with the next
        delay."""
        while True:
            try:
                await asyncio.to_thread(self.repair)
                return await self._start()
            except OSError as error:
                delay = self._backoff.delay(self._count_death())
                logger.warning("Hermes could not be started: %s; again in %g s", error, delay)
                await asyncio.sleep(delay)

    async def _wait_for_end(self, process: asyncio.subprocess.Process | DetachedProcess) -> None:
        """Waits for the end of the process, and kills one that no longer gets to serve turns.

        Hermes keeps running without a platform whose port was in use.
        """
        ended = asyncio.create_task(process.wait())
        deadline = time.monotonic() + self._start_timeout
        try:
            while not ended.done():
                await asyncio.wait({ended}, timeout=_CHECK_INTERVAL)
                if not ended.done() and await self._serves():
                    self.has_served = True
                    await self._keep_log_small_until(ended)
                elif not ended.done() and self.has_served and self._is_overdue(deadline):
                    logger.warning("Hermes runs, but does not serve turns; killing it")
                    process.kill()
                    await ended
        finally:
            ended.cancel()

    async def _keep_log_small_until(self, ended: asyncio.Task[int]) -> None:
        while not ended.done():
            await asyncio.wait({ended}, timeout=_LOG_CHECK_INTERVAL)
            await asyncio.to_thread(self._log.rotate_if_large)

    def _is_overdue(self, deadline: float) -> bool:
        if time.monotonic() <= deadline:
            return False
        pause = self.respawn_pause()
        return pause is None or time.monotonic() > deadline + pause.seconds

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
        """The number of deaths within RESTART_WINDOW, including this one."""
        now = time.monotonic()
        self._deaths.append(now)
        while self._deaths[0] < now - self._restart_window:
            self._deaths.popleft()
        return len(self._deaths)

    async def _stop(self) -> None:
        process, pid = self._process, self.pid
        if process is None or pid is None:
            return
        family = descendants(pid)
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
        await asyncio.to_thread(kill, family)
        await asyncio.to_thread(kill_leftovers, self.home)


def _nothing() -> None:
    pass


def _no_proxy_for_loopback(environ: Mapping[str, str]) -> dict[str, str]:
    """Hermes reaches a model on this machine, such as the demo model, without a proxy."""
    known = environ.get("NO_PROXY") or environ.get("no_proxy")
    hosts = f"{known},127.0.0.1,localhost" if known else "127.0.0.1,localhost"
    return {"NO_PROXY": hosts, "no_proxy": hosts}
