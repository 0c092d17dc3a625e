"""A TCP proxy that a test can stall and cut, for what a client does when its connection breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from urllib.parse import urlsplit


class Proxy:
    """Forwards connections to the bridge until they are cut."""

    def __init__(self) -> None:
        self.url = ""
        self.passes = asyncio.Event()
        """While it is cleared, what the bridge sends is held back, and so are new connections."""
        self.passes.set()
        self.holds = b""
        """A request that contains this is forwarded, but its response is held back."""
        self.is_gone = False
        self._writers: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        """Aborts every connection; new ones are accepted."""
        for writer in self._writers:
            writer.transport.abort()

    def go(self) -> None:
        """Aborts every connection, now and from now on, as a server that was killed."""
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
                    self._pump(reader, bridge_writer, self._inspect),
                    self._pump(bridge_reader, writer, self._hold),
                )
            self._writers.discard(writer)

    async def _inspect(self, request: bytes) -> None:
        if self.holds and self.holds in request:
            self.passes.clear()

    async def _hold(self, response: bytes) -> None:
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
async def proxy_to(url: str) -> AsyncIterator[Proxy]:
    """Starts a proxy to that server on a free port."""
    target, proxy = urlsplit(url), Proxy()
    assert target.hostname
    assert target.port
    host, port = target.hostname, target.port
    server = await asyncio.start_server(
        lambda reader, writer: proxy.connected(reader, writer, host, port), "127.0.0.1", 0
    )
    async with server:
        proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield proxy
        proxy.passes.set()
        proxy.cut()
