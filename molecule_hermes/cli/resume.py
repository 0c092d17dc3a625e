"""`molecule-hermes resume`: a peer's conversation in Hermes's own CLI, as confined as its agent.

The CLI runs in a terminal of its own, or with pipes, whose content is passed on, so that what an
agent runs in it can neither type into the operator's terminal nor read from it.
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import fcntl
import json
import math
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import httpx

from molecule_hermes.cli.handoff import no_bridge
from molecule_hermes.config import Settings
from molecule_hermes.errors import StartError
from molecule_hermes.hermes.process import LAUNCHER
from molecule_hermes.hermes.process_tree import die_with_parent
from molecule_hermes.server.operator import RESUMES_PATH, read_access

__all__ = ["resume"]

_PASSED_ON = ("TERM", "COLORTERM", "LANG", "LC_ALL", "LC_CTYPE")
_CHUNK = 65536
_TICK = 0.2
_LEFT = 1.0
"""Seconds for what processes that outlive the CLI write meanwhile."""
_PATIENCE = 10.0
"""Seconds for a CLI that is to end."""


def resume(options: argparse.Namespace) -> int:
    """Returns the CLI's exit code."""
    settings = Settings.from_env()
    if (access := read_access(settings.state_dir)) is None:
        raise no_bridge(settings)
    url, token = access
    asked = {"context_id": options.context, "peer": options.peer, "agent": options.agent}
    headers = {"Authorization": f"Bearer {token}"}
    limits = httpx.Timeout(10.0, read=None)
    try:
        with (
            httpx.Client(timeout=limits, trust_env=False, headers=headers) as http,
            http.stream("POST", url + RESUMES_PATH, json=asked) as response,
        ):
            if response.status_code != 200:
                response.read()
                raise StartError(response.json()["error"]["message"], "")
            lines = response.iter_lines()
            return _run(json.loads(next(lines)), lines, options.text)
    except httpx.HTTPError:
        raise no_bridge(settings) from None


def _run(terminal: Mapping[str, Any], lines: Iterator[str], text: str | None) -> int:
    arguments = ["chat", "--resume", str(terminal["session_id"])]
    if text is not None:
        arguments = ["chat", "-Q", "--resume", str(terminal["session_id"]), "-q", text]
    read, write = os.pipe()
    command = [*LAUNCHER, f"--handover={read}", "hermes", *arguments]
    env = dict(terminal["environ"])
    env |= {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    interactive = text is None and sys.stdin.isatty()
    opened = _opened_in_terminal if interactive else _opened
    with opened(command, env, str(terminal["cwd"]), read) as process:
        os.close(read)
        with os.fdopen(write, "wb") as file:
            file.write(json.dumps(terminal["handover"]).encode())
        threading.Thread(target=_end_with, args=(lines, process), daemon=True).start()
        _pass_on(process)
        return process.wait()


def _end_with(lines: Iterator[str], process: _Process) -> None:
    """Ends the CLI when the bridge does: the peer's messages no longer wait then."""
    with contextlib.suppress(httpx.HTTPError):
        for _ in lines:
            pass
    if process.poll() is None:
        sys.stderr.write("\r\nmolecule-hermes: the bridge has ended\r\n")
        process.terminate()
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()


class _Process(subprocess.Popen[bytes]):
    routes: Mapping[int, int] = MappingProxyType({})
    """Where what is read from each file is written to."""


@contextlib.contextmanager
def _opened(
    command: Sequence[str], env: Mapping[str, str], cwd: str, handover: int
) -> Iterator[_Process]:
    with _Process(
        command,
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        # Never the operator's terminal: what can write to it can read from it, too.
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=(handover,),
        start_new_session=True,
        preexec_fn=die_with_parent,
    ) as process:
        if process.stdout is None or process.stderr is None:
            raise RuntimeError("it has no pipes")
        process.routes = {process.stdout.fileno(): 1, process.stderr.fileno(): 2}
        yield process


@contextlib.contextmanager
def _opened_in_terminal(
    command: Sequence[str], env: Mapping[str, str], cwd: str, handover: int
) -> Iterator[_Process]:
    master, slave = pty.openpty()
    _copy_size(master)
    before = termios.tcgetattr(0)
    try:
        with _Process(
            command,
            env=env,
            cwd=cwd,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            pass_fds=(handover,),
            start_new_session=True,
            preexec_fn=_take_terminal,
        ) as process:
            os.close(slave)
            process.routes = {0: master, master: 1}
            signal.signal(signal.SIGWINCH, lambda *_: _copy_size(master))
            tty.setraw(0)
            yield process
    finally:
        # The terminal's answers to the CLI's last output are not for the operator's shell.
        select.select([], [], [], _TICK)
        termios.tcsetattr(0, termios.TCSAFLUSH, before)
        os.close(master)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    die_with_parent()


def _copy_size(master: int) -> None:
    with contextlib.suppress(OSError):
        size = fcntl.ioctl(0, termios.TIOCGWINSZ, b"\0" * 8)
        fcntl.ioctl(master, termios.TIOCSWINSZ, size)


def _pass_on(process: _Process) -> None:
    """Until the CLI has ended and all that it wrote is shown."""
    in_terminal = 0 in process.routes  # of its own, whose content is more than text
    shown = () if in_terminal else process.routes.items()
    plain = {fd: _Plain() for fd, to in shown if os.isatty(to)}
    sources, until = set(process.routes), math.inf
    while sources and time.monotonic() < until:
        ready, _, _ = select.select(sources, [], [], _TICK)
        if process.poll() is not None:
            if not ready:
                return
            until = min(until, time.monotonic() + _LEFT)
        for fd in ready:
            try:
                data = os.read(fd, _CHUNK)
            except OSError:  # the other side of the terminal is closed
                return
            if not data:
                sources.remove(fd)
            else:
                _write(process.routes[fd], plain[fd].of(data) if fd in plain else data)


class _Plain:
    """What a terminal acts on is left out of an answer: it has asked for nothing but the text."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def of(self, data: bytes) -> bytes:
        text = self._decoder.decode(data)
        return "".join(c for c in text if c.isprintable() or c in "\n\t").encode()


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
