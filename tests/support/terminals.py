"""`molecule-hermes` as people run it, at a terminal; and a line between it and the bridge."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import sys
import termios
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from typing import Self
from urllib.parse import urlsplit


class AtTerminal:
    """The command with a terminal of its own for input, output and errors."""

    def __init__(self, *arguments: str) -> None:
        self._command = [sys.executable, "-m", "molecule_hermes", *arguments]
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
            env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"},
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
        return self._seen.decode().replace("\r\n", "\n")

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def interrupt(self) -> None:
        self.type("\x03")

    async def shows(self, text: str, times: int = 1) -> None:
        try:
            async with asyncio.timeout(20):
                while self.seen.count(text) < times:
                    self._more.clear()
                    await self._more.wait()
        except TimeoutError:
            raise AssertionError(f"{text!r} is not in {self.seen!r}") from None

    async def ends(self) -> int:
        try:
            async with asyncio.timeout(20):
                code = await self._process.wait()
        except TimeoutError:
            raise AssertionError(f"it does not end after {self.seen!r}") from None
        await asyncio.sleep(0.05)  # what it wrote last is on its way
        assert "Traceback" not in self.seen
        assert termios.tcgetattr(self._slave) == self._before
        assert os.get_blocking(self._slave), "the terminal is left as it was found"
        return code


class Line:
    """Passes connections on to the bridge, until they are cut."""

    def __init__(self) -> None:
        self.url = ""
        self.passes = asyncio.Event()
        """While it is not set, what the bridge says waits, and so do new connections."""
        self.passes.set()
        self.holds = b""
        """A request with this in it is passed on, but its answer waits."""
        self.is_gone = False
        self._writers: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def go(self) -> None:
        """For good, as a server that was killed."""
        self.is_gone = True
        self.cut()

    async def connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int
    ) -> None:
        with closing(writer):
            self._writers.add(writer)
            await self.passes.wait()
            if self.is_gone:
                writer.transport.abort()
                return
            bridge_reader, bridge_writer = await asyncio.open_connection(host, port)
            with closing(bridge_writer):
                await asyncio.gather(
                    self._pump(reader, bridge_writer, self._look),
                    self._pump(bridge_reader, writer, self._wait),
                )
            self._writers.discard(writer)

    async def _look(self, piece: bytes) -> None:
        if self.holds and self.holds in piece:
            self.passes.clear()

    async def _wait(self, piece: bytes) -> None:
        await self.passes.wait()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        before: Callable[[bytes], Awaitable[None]],
    ) -> None:
        try:
            while piece := await reader.read(65536):
                await before(piece)
                writer.write(piece)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def line_to(url: str) -> AsyncIterator[Line]:
    to, line = urlsplit(url), Line()
    assert to.hostname
    assert to.port
    host, port = to.hostname, to.port
    server = await asyncio.start_server(
        lambda reader, writer: line.connected(reader, writer, host, port), "127.0.0.1", 0
    )
    async with server:
        line.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield line
        line.passes.set()
        line.cut()
