"""Writes the Hermes configuration, runs and supervises `hermes gateway`."""

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self
from urllib.parse import urlsplit

import psutil

from molecule_hermes.config import PREFIX, Settings, is_loopback
from molecule_hermes.errors import StartError, Unreachable, redact
from molecule_hermes.hermes_home import HermesHome
from molecule_hermes.plugin.settings import restart_settings
from molecule_hermes.providers import ModelChoice

__all__ = [
    "SECRET_VARIABLE",
    "Credentials",
    "Gateway",
    "api_address",
    "configure",
    "credentials_of",
]

logger = logging.getLogger(__name__)

SECRET_VARIABLE = "MOLECULE_A2A_PLATFORM_SHARED_SECRET"  # noqa: S105 - the name of a variable
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Credentials:
    """What the bridge needs to talk to the Hermes it configured."""

    api_key: str = field(repr=False)
    secret: str = field(repr=False)


def configure(home: HermesHome, settings: Settings, model: ModelChoice | None) -> Credentials:
    """Merges what the bridge needs into Hermes's folder.

    `model` is None when the folder has a model of its own.
    """
    host, port = api_address(settings)
    home.create()
    credentials = credentials_of(home, settings)
    if model is not None:
        home.set_model(model.block)
    limits = {"api_server": {"max_concurrent_runs": settings.max_running}}
    home.merge_config({"gateway": limits}, restart_settings() | _workplace(settings))
    home.merge_env(
        {
            "API_SERVER_ENABLED": "true",
            "API_SERVER_KEY": credentials.api_key,
            "API_SERVER_HOST": host,
            "API_SERVER_PORT": str(port),
            # In .env, which wins over the environment inside Hermes (hermes_cli/env_loader.py).
            SECRET_VARIABLE: credentials.secret,
        }
    )
    return credentials


def _workplace(settings: Settings) -> dict[str, Any]:
    """A folder for the agent's tools, and for the files that it may deliver. Without one that is
    the user's home. In a Hermes folder of the user's own it is the user's to choose."""
    if settings.hermes_home is not None:
        return {}
    folder = (settings.state_dir / "work").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return {"terminal": {"cwd": str(folder)}}


def credentials_of(home: HermesHome, settings: Settings) -> Credentials:
    """The environment's, else the folder's, else new ones."""
    key, secret = settings.api_server_key, settings.shared_secret
    return Credentials(
        key.get_secret_value() if key else home.secret("API_SERVER_KEY"),
        secret.get_secret_value() if secret else home.secret(SECRET_VARIABLE),
    )


def api_address(settings: Settings) -> tuple[str, int]:
    parts = urlsplit(settings.hermes_api_base)
    host = parts.hostname or "127.0.0.1"
    if not is_loopback(host):
        raise StartError(
            f"HERMES_API_BASE={settings.hermes_api_base!r} is not on this machine",
            "`up` runs its own Hermes on loopback; use `molecule-hermes serve` for a remote one",
        )
    return ("127.0.0.1" if host == "localhost" else host), parts.port or 80


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
        command: Sequence[str] = (sys.executable, "-m", "hermes_cli.main", "gateway", "run"),
        max_restarts: int = 5,
        restart_window: float = 300.0,
        stop_timeout: float = 10.0,
        on_change: Callable[[str], None] = logger.info,
    ) -> None:
        self.home = home
        self.log_file = log_file
        self._environ = environ
        self._command = command
        self._max_restarts = max_restarts
        self._restart_window = restart_window
        self._stop_timeout = stop_timeout
        self._on_change = on_change
        self.hasten = asyncio.Event()
        """Set to kill Hermes instead of waiting for it at the end."""
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

    async def failed(self) -> None:
        """Returns only by raising, when Hermes cannot be kept running."""
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
        # The bridge's own settings hold peers' tokens, and Hermes's tools can print their
        # environment.
        environ = {k: v for k, v in self._environ.items() if not k.startswith(PREFIX)}
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
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

    async def _supervise(self) -> None:
        while True:
            if self._process is None:
                raise StartError("Hermes was never started")
            code = await self._process.wait()
            await asyncio.to_thread(_kill, _left_by(self.home))
            self._deaths.append(time.monotonic())
            while self._deaths[0] < time.monotonic() - self._restart_window:
                self._deaths.popleft()
            if len(self._deaths) > self._max_restarts:
                raise StartError(
                    f"Hermes ended {len(self._deaths)} times in {self._restart_window:g} s "
                    f"(the last time with code {code})",
                    f"its log is {self.log_file}; the last lines:\n{self.log_tail()}",
                )
            wait = min(2.0 ** (len(self._deaths) - 1), 30.0)
            self._on_change(f"Hermes ended with code {code}; starting it again in {wait:g} s")
            await asyncio.sleep(wait)
            await self._start()

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
