"""`molecule-hermes` as people run it, at a terminal."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import sys
import termios
from typing import Self

_WAIT = 60.0
_MARK = b"\0end of the output\0"


class AtTerminal:
    """Runs the command with a pseudo-terminal of its own for input, output and errors."""

    def __init__(
        self, *arguments: str, env: dict[str, str] | None = None, program: str = ""
    ) -> None:
        ours = [sys.executable, "-m", "molecule_hermes"]
        self._command = [*([program] if program else ours), *arguments]
        self._env = env or {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
        self._seen = b""
        self._more = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._master, self._slave = pty.openpty()
        self._before = termios.tcgetattr(self._slave)
        os.set_blocking(self._master, False)
        asyncio.get_running_loop().add_reader(self._master, self._read)
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env=self._env,
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        asyncio.get_running_loop().remove_reader(self._master)
        os.close(self._master)
        os.close(self._slave)

    def _read(self) -> None:
        self._seen += os.read(self._master, 65536)
        self._more.set()

    @property
    def seen(self) -> str:
        """Everything that the terminal has shown so far."""
        return self._seen.decode(errors="replace").replace("\r\n", "\n")

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def interrupt(self) -> None:
        self.type("\x03")

    async def shows(self, text: str, times: int = 1) -> None:
        """Waits until the terminal has shown the text that many times."""
        try:
            async with asyncio.timeout(_WAIT):
                while self.seen.count(text) < times:
                    self._more.clear()
                    await self._more.wait()
        except TimeoutError:
            raise AssertionError(f"{text!r} is not in {self.seen!r}") from None

    async def _drained(self) -> None:
        """Waits for what is still on its way through the kernel: a mark comes after all of it."""
        os.write(self._slave, _MARK)
        async with asyncio.timeout(_WAIT):
            while not self._seen.endswith(_MARK):
                self._more.clear()
                await self._more.wait()
        self._seen = self._seen.removesuffix(_MARK)

    async def ends(self) -> int:
        """Waits for the end of the command; returns its exit code."""
        try:
            async with asyncio.timeout(_WAIT):
                code = await self._process.wait()
        except TimeoutError:
            raise AssertionError(f"it does not end after {self.seen!r}") from None
        await self._drained()
        assert "Traceback" not in self.seen
        assert termios.tcgetattr(self._slave) == self._before
        assert os.get_blocking(self._slave), "the terminal is left as it was found"
        return code
