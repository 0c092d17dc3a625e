"""`molecule-hermes up` in a process of its own, with the real Hermes and the demo model."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import psutil

from molecule_hermes.hermes.pid_record import PidRecord
from tests.support.serving import TLS, few_certificates, free_port
from tests.support.waiting import until

READY = 90.0


class Stack:
    """A running `molecule-hermes up` and its output."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, log: Path) -> None:
        self.process = process
        self.url = url
        self.log = log

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def hermes_pid(self, peer: str = "") -> int:
        """The peer's own Hermes, or the only one. Raises StopIteration while it does not run."""
        if peer:
            records = self.log.parent.glob(f"workers/main@{peer}-*/gateway.json")
            return next(pid for record in records if (pid := PidRecord(record).read()))
        pids = self.hermes_pids()
        assert len(pids) <= 1, "name the peer"
        return next(iter(pids))

    def hermes_pids(self) -> list[int]:
        children = psutil.Process(self.process.pid).children()
        return [c.pid for c in children if "hermes" in " ".join(c.cmdline())]

    async def until_ready(self, ready: bool = True, timeout: float = READY) -> dict[str, object]:
        """Waits until `/readyz` answers ready, or not ready; returns its report."""

        async def report() -> dict[str, object] | None:
            assert self.process.returncode is None, self.output
            with contextlib.suppress(httpx.TransportError):
                answer = await http.get(self.url + "/readyz")
                if (answer.status_code == 200) is ready:
                    return dict(answer.json())
            return None

        async with httpx.AsyncClient(timeout=10, verify=TLS) as http:
            return dict(await until(report, timeout, every=0.05))

    async def stop(self, number: int = signal.SIGTERM) -> int:
        """Sends the signal; returns the exit code."""
        with contextlib.suppress(ProcessLookupError):  # it has ended a moment ago
            self.process.send_signal(number)
        return await self.ended()

    async def ended(self) -> int:
        async with asyncio.timeout(60):
            return await self.process.wait()


def environment(state_dir: Path, **more: str) -> dict[str, str]:
    """The environment of a new user: no model key, an empty home; and free ports."""
    # Hermes's terminal tool starts in the home folder, which must exist.
    (state_dir / "user").mkdir(parents=True, exist_ok=True)
    kept = {k: os.environ[k] for k in ("PATH", "LANG", "TMPDIR") if k in os.environ}
    return (
        few_certificates()
        | kept
        | {
            "HOME": str(state_dir / "user"),
            "MOLECULE_HERMES_STATE_DIR": str(state_dir),
            "MOLECULE_HERMES_PORT": str(free_port()),
            "HERMES_API_BASE": f"http://127.0.0.1:{free_port()}/v1",
            "MOLECULE_A2A_PLATFORM_PORT": str(free_port()),
            "MOLECULE_A2A_CALLBACK_PORT": str(free_port()),
            **more,
        }
    )


@asynccontextmanager
async def up(
    environ: dict[str, str],
    *options: str,
    ready: bool = True,
    python: str = sys.executable,
    command: str = "up",
    through: Sequence[str] = (),
) -> AsyncIterator[Stack]:
    """Starts the command and waits until it is ready; on exit stops it and what it started.

    `through` is a command that runs it, such as one that drops privileges.
    """
    state_dir = Path(environ["MOLECULE_HERMES_STATE_DIR"])
    state_dir.mkdir(parents=True, exist_ok=True)
    log = state_dir / f"{command}.log"
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *through,
            python,
            "-m",
            "molecule_hermes",
            command,
            *options,
            env=environ,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    stack = Stack(process, f"http://127.0.0.1:{environ['MOLECULE_HERMES_PORT']}", log)
    try:
        if ready:
            await stack.until_ready()
        yield stack
    finally:
        family: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):  # it was killed a moment ago
            family = psutil.Process(process.pid).children(recursive=True)
        try:
            await stack.stop()
        finally:
            for member in family:
                if member.is_running():
                    member.kill()


def processes(mark: str) -> list[psutil.Process]:
    """The `sleep` processes with that mark among their arguments."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if process.info["cmdline"]
        and process.info["cmdline"][0] in ("sleep", "/bin/sleep", "/usr/bin/sleep")
        and mark in process.info["cmdline"]
    ]


def secrets_in(environ: dict[str, str]) -> list[str]:
    """The secrets that the environment gives to a stack."""
    names = ("API_SERVER_KEY", "MOLECULE_A2A_PLATFORM_SHARED_SECRET")
    tokens = environ.get("MOLECULE_HERMES_PEER_TOKENS", "")
    given = [environ[name] for name in names if name in environ]
    return given + [entry.split(":", 1)[1] for entry in tokens.split(",") if entry]
