"""HTTP over bare sockets, for requests that no client library would send."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import NamedTuple

import httpx

WAIT = 20.0
TOKEN = "alice-token-0123456789"
TOKENS = f"alice:{TOKEN}"
HEAD = b"Host: localhost\r\nContent-Type: application/json\r\nA2A-Version: 1.0\r\n"
AUTHORIZATION = f"Authorization: Bearer {TOKEN}\r\n".encode()


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class RawConnection:
    """One connection to the server, without any knowledge of HTTP beyond reading answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        """Sends the bytes; ignores that the server has closed the connection."""
        with contextlib.suppress(ConnectionError):
            self._writer.write(data)
            async with asyncio.timeout(WAIT):
                await self._writer.drain()

    async def answer(self) -> Answer:
        async with asyncio.timeout(WAIT):
            status, *lines = (await self.head()).rstrip().split("\r\n")
            headers = {n.lower(): v.strip() for n, _, v in (line.partition(":") for line in lines)}
            body = await self._reader.readexactly(int(headers.get("content-length", 0)))
        return Answer(int(status.split()[1]), headers, body)

    async def head(self) -> str:
        """Reads the status line and the headers, and leaves the body unread."""
        async with asyncio.timeout(WAIT):
            return (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")

    async def closed(self, within: float = WAIT) -> bytes:
        """Waits until the server closes the connection; returns what it sent before."""
        sent = b""
        async with asyncio.timeout(within):
            with contextlib.suppress(ConnectionError):
                while piece := await self._reader.read(2**16):
                    sent += piece
        return sent

    def close(self) -> None:
        self._writer.transport.abort()


async def connect(url: str) -> RawConnection:
    at = httpx.URL(url)
    async with asyncio.timeout(WAIT):
        return RawConnection(*await asyncio.open_connection(at.host, at.port))


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[RawConnection]:
    connection = await connect(url)
    try:
        yield connection
    finally:
        connection.close()


async def status_of(url: str, request: bytes) -> int:
    """The status that one request gets on a new connection."""
    async with connected(url) as connection:
        await connection.send(request)
        return (await connection.answer()).status


def get(path: str, *headers: bytes) -> bytes:
    return b"GET %s HTTP/1.1\r\n%s%s\r\n" % (path.encode(), HEAD, b"".join(headers))


def post(path: str, body: bytes, *headers: bytes) -> bytes:
    length = b"Content-Length: %d\r\n" % len(body)
    return b"POST %s HTTP/1.1\r\n%s%s%s\r\n%s" % (
        path.encode(),
        HEAD,
        length,
        b"".join(headers),
        body,
    )
