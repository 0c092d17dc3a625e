"""Progress lines for everything that takes more than two seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

__all__ = ["INTERVAL", "progress"]

INTERVAL = 2.0
"""Seconds between two progress lines."""


@asynccontextmanager
async def progress(say: Callable[[str], None], text: str) -> AsyncGenerator[None, None]:
    """Says every two seconds that the work in the block still runs, and for how long."""

    async def report() -> None:
        began = time.monotonic()
        while True:
            await asyncio.sleep(INTERVAL)
            say(f"{text}, {time.monotonic() - began:.0f} s …")

    reporter = asyncio.create_task(report(), name="progress")
    try:
        yield
    finally:
        reporter.cancel()
        await asyncio.gather(reporter, return_exceptions=True)
