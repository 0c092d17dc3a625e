"""Resolves names that outsiders choose, in threads of their own.

A name server can delay its answer for as long as the system waits. In the threads that the whole
process shares, a few such names would hold up everything else.
"""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from aiohttp.abc import AbstractResolver, ResolveResult

__all__ = ["SeparateResolver"]

_THREADS = 4


class SeparateResolver(AbstractResolver):
    """Slow names hold up each other only. The caller bounds the time."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="resolve")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        kind, flags = socket.SOCK_STREAM, socket.AI_ADDRCONFIG
        lookup = partial(socket.getaddrinfo, host, port, family, kind, 0, flags)
        found = await asyncio.get_running_loop().run_in_executor(self._threads, lookup)
        return [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=port,
                family=family,
                proto=protocol,
                flags=socket.AI_NUMERICHOST,
            )
            for family, _, protocol, _, address in found
        ]

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
