"""Reports each step, its duration and its result, while it runs and as a table at the end."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
_TICK = 15.0


class CheckError(Exception):
    """A check failed; the message says what was seen."""


class StopError(Exception):
    """The remaining steps cannot be checked."""


class Report:
    def __init__(self) -> None:
        self._began = time.monotonic()
        self._rows: list[tuple[bool, float, str, str]] = []

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._began:5.0f} s] {text}", flush=True)

    def check(self, what: str, work: Callable[[], T]) -> T | None:
        """Runs a step. A failure does not prevent the next steps."""
        try:
            return self.need(what, work)
        except StopError:
            return None

    def need(self, what: str, work: Callable[[], T]) -> T:
        """Runs a step that all later steps need; raises `StopError` if it fails."""
        self.say(f"…    {what}")
        began = time.monotonic()
        try:
            result = work()
        except Exception as error:
            self._row(False, began, what, f"{type(error).__name__}: {error}")
            raise StopError(what) from error
        self._row(True, began, what, str(result) if isinstance(result, str) else "")
        return result

    def _row(self, ok: bool, began: float, what: str, detail: str) -> None:
        took = time.monotonic() - began
        self._rows.append((ok, took, what, detail))
        self.say(f"{_mark(ok)} {what} ({took:.1f} s){': ' if detail else ''}{detail}")

    def summary(self) -> int:
        failed = sum(not ok for ok, *_ in self._rows)
        width = max((len(what) for _, _, what, _ in self._rows), default=0)
        print(f"\n{'':4}  {'seconds':>7}  what")
        for ok, took, what, detail in self._rows:
            told = [line for line in detail.splitlines() if line.strip()]
            print(f"{_mark(ok)}  {took:7.1f}  {what:{width}}  {''.join(told[-1:])}".rstrip())
        took = time.monotonic() - self._began
        print(f"{len(self._rows) - failed} passed, {failed} failed in {took:.0f} s", flush=True)
        return 1 if failed or not self._rows else 0


def _mark(ok: bool) -> str:
    return "ok  " if ok else "FAIL"


class Job:
    """A background command: `with Job([...]) as job: …; job.result(limit=60)`.

    It runs in its own session: Ctrl-C reaches only this script, which then kills the whole group.
    """

    def __init__(self, command: Sequence[object], environ: Mapping[str, str] | None = None) -> None:
        self._words = [str(word) for word in command]
        self._out = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the job
        self._process = subprocess.Popen(
            self._words,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=subprocess.STDOUT,
            env=os.environ | (environ or {}),
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._out.close()

    def result(self, limit: float) -> str:
        """Returns the output; raises `CheckError` with its end on failure or timeout."""
        code = self._wait(limit)
        self._out.seek(0)
        output = self._out.read().decode(errors="replace")
        if code != 0:
            why = f"took longer than {limit:g} s" if code is None else f"ended with {code}"
            raise CheckError(f"{' '.join(self._words[:4])} … {why}:\n{output[-3000:]}")
        return output

    def _wait(self, limit: float) -> int | None:
        """Returns the exit code, or None on timeout; prints a line of progress now and then."""
        began = time.monotonic()
        while (left := began + limit - time.monotonic()) > 0:
            try:
                return self._process.wait(min(_TICK, left))
            except subprocess.TimeoutExpired:
                print(f"{'':10}{self._last_line()}", flush=True)
        return None

    def _last_line(self) -> str:
        """Returns the last line of output, without moving the command's file position."""
        end = os.fstat(self._out.fileno()).st_size
        tail = os.pread(self._out.fileno(), 2000, max(0, end - 2000)).decode(errors="replace")
        return (tail.split("\n")[-2:-1] or [Path(self._words[0]).name])[0][:90]


def run(
    command: Sequence[object], *, limit: float, environ: Mapping[str, str] | None = None
) -> str:
    with Job(command, environ) as job:
        return job.result(limit)


def until(what: str, limit: float, true: Callable[[], T | None]) -> T:
    """Polls until the callable returns a value; raises `CheckError` on timeout."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        if (result := true()) is not None:
            return result
        time.sleep(0.05)
    raise CheckError(f"{what} did not happen in {limit:g} s")
