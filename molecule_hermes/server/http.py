"""The HTTP server: uvicorn as an async context manager, with limits on its connections."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NoReturn, Self

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from molecule_hermes.errors import StartError
from molecule_hermes.server.connections import ConnectionTable, Phase, network_of

__all__ = ["HttpServer", "Listener"]

_SHUTDOWN = 5
_KEEP_ALIVE = 90
"""Seconds, more than the table allows an idle connection: uvicorn loses its own timer when the rest
of a body arrives after the response."""
_MAX_HEAD = 2**19
"""More than one read from the socket, which may end in the middle of the headers."""
_MAX_PIPELINE = 16
"""Requests that may wait on a connection until the previous ones are complete."""


class HttpServer:
    """Serves an application. It installs no signal handlers.

    Connections over the limits are served by `overload` instead of `app`. `on_closed` is called
    with the reason whenever the server itself closes a connection.
    """

    def __init__(
        self,
        app: ASGIApp,
        overload: ASGIApp,
        listener: socket.socket,
        table: ConnectionTable[Any],
        on_closed: Callable[[str], None],
        *,
        backlog: int = 2048,
    ) -> None:
        self.overload = overload
        self.table = table
        self.on_closed = on_closed
        self._listener = listener
        self._server = _Server(self, self._config(app, backlog))
        self._task: asyncio.Task[None] | None = None

    def _config(self, app: ASGIApp, backlog: int) -> uvicorn.Config:
        return uvicorn.Config(
            app,
            interface="asgi3",
            http=partial(_HttpConnection, self),  # type: ignore[arg-type]
            ws="none",
            backlog=backlog,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=2 * _SHUTDOWN,
            server_header=False,
        )

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._server.serve([self._listener]), name="uvicorn")
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise StartError("the HTTP server did not start")
            await asyncio.sleep(0.01)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=_SHUTDOWN)
            for connection in list(self._server.server_state.connections):
                # The client does not read. uvicorn would cancel the request and log a stack trace.
                connection.transport.abort()
            await self._task

    def close_overdue(self) -> None:
        for connection, phase in self.table.overdue(asyncio.get_running_loop().time()):
            connection.cut(f"{phase.value}_timeout")


class _Server(uvicorn.Server):
    def __init__(self, http_server: HttpServer, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._http_server = http_server

    async def on_tick(self, counter: int) -> bool:
        """uvicorn calls this ten times a second."""
        self._http_server.close_overdue()
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _HttpConnection(HttpToolsProtocol):
    """A connection whose requests are bounded in size, time and number.

    httptools and uvicorn have none of these limits. Measured with one connection and no token: 100
    MiB of trailers took 850 MiB of memory, 20 MiB of pipelined requests 1.9 GiB.
    """

    # The attributes of the base class fill the key table that CPython shares between instances.
    __slots__ = ("_http_server", "_part", "_unfinished", "network", "phase", "spare")

    def __init__(self, http_server: HttpServer, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._http_server = http_server
        self._part: Phase | None = None
        """The part of a request that is being parsed: HEAD, BODY, or None."""
        self._unfinished = 0
        """Bytes that the parser has consumed since its last callback."""
        self.network = ""
        self.phase: Phase | None = None
        self.spare = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.network = network_of(self.client[0] if self.client else "")
        victim = self._http_server.table.add(self, self.loop.time())
        if victim is not None:
            victim.cut("evicted")
        if self.spare:
            self.app = self._http_server.overload
            self._http_server.on_closed("over_limit")

    def connection_lost(self, exc: Exception | None) -> None:
        self._http_server.table.remove(self)
        super().connection_lost(exc)

    def cut(self, reason: str) -> None:
        """Closes the connection without waiting for a client that may not read."""
        self._http_server.table.remove(self)
        self._http_server.on_closed(reason)
        self.transport.abort()

    def _refuse(self, reason: str) -> NoReturn:
        """Closes the connection and stops parsing, from within one of the parser's callbacks."""
        self.cut(reason)
        raise _RefusedError(reason)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self.phase is Phase.IDLE:
            self._http_server.table.enter(self, Phase.HEAD, self.loop.time())
        super().data_received(data)
        if self._part is not None:
            self._unfinished += len(data)
            if self._unfinished > _MAX_HEAD:
                self._end_without_progress()
        self._update_phase()

    def _end_without_progress(self) -> None:
        """Ends headers, trailers and chunk extensions that exceed the limit."""
        if self._part is Phase.BODY:
            self.cut("trailers")
        elif not self.transport.is_closing():
            self._http_server.on_closed("head_too_large")
            self.send_400_response("The request's headers are too large.")

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():
            super().send_400_response(msg)

    def _update_phase(self) -> None:
        self._http_server.table.enter(self, self._current_phase(), self.loop.time())

    def _current_phase(self) -> Phase:
        if self.transport.is_closing():
            return Phase.LINGER
        if self.flow.write_paused:
            return Phase.WRITE
        if self.cycle is not None and not self.cycle.response_complete:
            return Phase.BODY if self._part is Phase.BODY else Phase.RESPONSE
        if self._part is Phase.BODY:
            return Phase.LINGER
        if self._part is Phase.HEAD or self.phase is Phase.HEAD:
            return Phase.HEAD
        return Phase.IDLE

    def pause_writing(self) -> None:
        super().pause_writing()
        self._update_phase()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._update_phase()

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= _MAX_PIPELINE:
            self._refuse("pipelining")
        self._part = Phase.HEAD
        self._unfinished = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._part is not Phase.HEAD:
            # A trailer. uvicorn would add it to the headers that the application reads.
            self._refuse("trailers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._part = Phase.BODY
        self._unfinished = 0
        super().on_headers_complete()
        if self.spare:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._unfinished = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._part = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_phase()


class _RefusedError(Exception):
    """The parser catches it and raises an error of its own."""


class Listener(socket.socket):
    """A listening socket that closes new connections when the process is out of file descriptors.

    asyncio would log every failed attempt and stop accepting for a second. With uvloop, libuv
    already does what this class does for asyncio.
    """

    _spare = -1

    def listen(self, backlog: int = 128, /) -> None:
        super().listen(backlog)
        self._reserve()

    def accept(self) -> tuple[socket.socket, Any]:
        try:
            return super().accept()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or self._spare < 0:
                raise
            self._close_next()
            raise BlockingIOError(errno.EAGAIN, "a connection was closed") from error

    def _close_next(self) -> None:
        self._release()
        with contextlib.suppress(OSError):
            super().accept()[0].close()
        self._reserve()

    def _reserve(self) -> None:
        if self._spare < 0:
            with contextlib.suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _release(self) -> None:
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1

    def close(self) -> None:
        self._release()
        super().close()
