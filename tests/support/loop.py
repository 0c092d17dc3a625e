"""How long an attack keeps the event loop from everybody else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Stall:
    """`longest` is the longest time, in seconds, in which nothing else could run."""

    longest = 0.0


@asynccontextmanager
async def stall(every: float = 0.01) -> AsyncIterator[Stall]:
    measured = Stall()

    async def watch() -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(every)
            measured.longest = max(measured.longest, time.monotonic() - before - every)

    watcher = asyncio.create_task(watch())
    try:
        yield measured
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
