"""A bridge in a process of its own, whose transport does what each message says.

`say X` answers X, `hang X` streams X and never ends, `ask` asks and waits for the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import uvloop

from molecule_hermes.config import Settings
from molecule_hermes.server.bridge import Bridge
from molecule_hermes.turns.model import Completed, Question, TextDelta, Turn, TurnEvent
from tests.support.fakes import Answered, ScriptedTransport

ROOT = Path(__file__).parents[2]


class Obedient(ScriptedTransport):
    """Takes the script of each turn from its message."""

    def run(self, turn: Turn) -> AsyncGenerator[TurnEvent, None]:
        word, _, text = turn.text.partition(" ")
        said = [TextDelta(text)] if text else []
        match word:
            case "hang":
                self.script = [*said, asyncio.Event()]
            case "ask":
                question = Question("q", "approval", "may I?", ("once", "deny"))
                self.script = [*said, question, Answered(), Completed("done")]
            case _:
                self.script = [*said, Completed(text)]
        return super().run(turn)


class Process:
    """A running bridge process."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self._process = process
        self.url = url
        self.pid = process.pid

    async def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        await self._process.wait()

    async def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            return await self._process.wait()


@contextlib.asynccontextmanager
async def bridge_process(
    folder: Path, *, files: int = 0, loop: str = "asyncio", **variables: object
) -> AsyncIterator[Process]:
    """Starts a bridge on an event loop of that kind; `files` limits its open files."""
    environ = dict(os.environ) | {"PYTHONPATH": str(ROOT)}
    environ |= {"MOLECULE_HERMES_PORT": "0", "MOLECULE_HERMES_STATE_DIR": str(folder)}
    environ |= {f"MOLECULE_HERMES_{name}": str(value) for name, value in variables.items()}
    limit = ["prlimit", f"--nofile={files}"] if files else []
    command = [*limit, sys.executable, "-m", "tests.support.bridge_process", loop]
    process = await asyncio.create_subprocess_exec(*command, env=environ, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            url = (await process.stdout.readline()).decode().strip()
        assert url, "the bridge did not start"
        yield Process(process, url)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def main() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Bridge(Settings.from_env(), Obedient()) as bridge:
        sys.stdout.write(f"{bridge.url}\n")
        sys.stdout.flush()
        await stop.wait()


if __name__ == "__main__":
    factory = uvloop.new_event_loop if sys.argv[1] == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())
