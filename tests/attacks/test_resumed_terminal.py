"""What an agent runs in a resumed conversation gets nothing of the operator's terminal."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil

from tests.support.terminal import AtTerminal
from tests.support.waiting import until

_RUN = """
import sys
from molecule_hermes.cli import resume

def lines():
    if {bridge_ends}:
        while not ready.exists():
            time.sleep(0.01)
        return
    threading.Event().wait()
    yield

import pathlib, threading, time
ready = pathlib.Path({ready!r})
resume.LAUNCHER = (sys.executable, "-c", {cli!r})
resume._PATIENCE = 0.2
terminal = {{"session_id": "s", "environ": {{}}, "cwd": "/", "handover": {{}}}}
sys.exit(resume._run(terminal, lines(), {text!r}))
"""

_STUBBORN = """
import os, pathlib, signal, time
for each in (signal.SIGHUP, signal.SIGTERM):
    signal.signal(each, signal.SIG_IGN)
pathlib.Path({ready!r}).write_text(str(os.getpid()))
time.sleep(600)
"""


def _at_terminal(
    cli: str, *, text: str | None = None, ready: Path | None = None, bridge_ends: bool = False
) -> AtTerminal:
    script = _RUN.format(cli=cli, text=text, ready=str(ready or ""), bridge_ends=bridge_ends)
    return AtTerminal("-c", script, program=sys.executable)


async def test_a_single_answer_is_written_without_the_operators_terminal() -> None:
    cli = "import os; print('terminals:', [fd for fd in range(100) if os.isatty(fd)])"
    async with _at_terminal(cli, text="hello") as terminal:
        await terminal.shows("terminals: []")
        assert await terminal.ends() == 0


async def test_a_single_answer_does_not_steer_the_operators_terminal() -> None:
    said = "before \x1b]52;c;AAAA\x07\x9b2J\x1b[6nüber\tafter\n"
    cli = f"import sys; sys.stdout.buffer.write({said!r}.encode())"
    async with _at_terminal(cli, text="hello") as terminal:
        await terminal.shows("after")
        assert await terminal.ends() == 0
        assert "über" in terminal.seen
        assert not {"\x1b", "\x07", "\x9b"} & set(terminal.seen)


async def test_errors_and_the_exit_code_of_a_single_answer_reach_the_operator() -> None:
    cli = "import sys; sys.stderr.write('it went wrong'); sys.exit(7)"
    async with _at_terminal(cli, text="hello") as terminal:
        await terminal.shows("it went wrong")
        assert await terminal.ends() == 7


async def test_a_process_that_outlives_the_cli_does_not_hold_the_command_up() -> None:
    cli = "import subprocess; subprocess.Popen(['timeout', '30', 'yes'])"
    async with _at_terminal(cli, text="hello") as terminal:
        assert await terminal.ends() == 0


async def test_a_cli_that_ignores_signals_dies_with_the_command(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    async with _at_terminal(_STUBBORN.format(ready=str(ready)), ready=ready) as terminal:
        await until(lambda: ready.exists() and ready.read_text() != "")
        process = psutil.Process(int(ready.read_text()))
        try:
            parent = process.ppid()
            os.kill(parent, signal.SIGKILL)
            await until(lambda: _is_gone(process))
        finally:
            if not _is_gone(process):
                process.kill()
        del terminal


async def test_a_cli_that_ignores_signals_ends_with_the_bridge(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    cli = _STUBBORN.format(ready=str(ready))
    async with _at_terminal(cli, ready=ready, bridge_ends=True) as terminal:
        await terminal.shows("the bridge has ended")
        assert await terminal.ends() == -signal.SIGKILL % 256


def _is_gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
