"""HTTP servers and clients for tests, on free ports of loopback."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
from aiohttp import web

TLS = httpx.create_ssl_context()
"""For every client of the tests: loading the certificates takes more than a short test."""

_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_FIRST = 10_000 + 5_000 * (_WORKER % 4)
_ports = itertools.cycle(range(_FIRST, _FIRST + 5_000))
for _ in range(os.getpid() % 5_000):  # two test runs on one machine start at different ports
    next(_ports)


def free_port() -> int:
    """A port for a server that is started later, or for an address where nothing listens.

    It is below the system's ephemeral range and in a range of this test worker, so neither the
    system nor a test that runs at the same time takes it meanwhile.
    """
    for port in _ports:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("unreachable")


@contextlib.asynccontextmanager
async def serve(app: web.Application, port: int = 0) -> AsyncIterator[str]:
    """Serves the app, on a free port unless one is given; yields its URL without a path.

    A handler is canceled when its client disconnects or the block ends.
    """
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def few_certificates() -> dict[str, str]:
    """Has a process load one certificate authority instead of all.

    Hermes loads them for every call of a model, which takes most of the time of a short turn. No
    test speaks to a server that needs them.
    """
    known = sorted(Path("/etc/ssl/certs").glob("*.pem"))
    return {"SSL_CERT_FILE": str(known[0])} if known else {}
