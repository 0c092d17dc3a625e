"""How long a request blocks the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Stall:
    """The longest time in seconds for which the loop ran nothing else."""

    longest = 0.0


@asynccontextmanager
async def stall(every: float = 0.01) -> AsyncIterator[Stall]:
    """Measures the longest stall of the running loop inside the block."""
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
