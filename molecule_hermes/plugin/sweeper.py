"""Cleans up in the background: from time to time, and when something has ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

__all__ = ["Sweeper"]

log = logging.getLogger(__name__)


class Sweeper:
    """Runs `sweep` in a thread: at once, every `every` seconds, after `wake`, and at the end."""

    def __init__(self, sweep: Callable[[], None], every: float = 3600.0) -> None:
        self._sweep = sweep
        self._every = every
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="sweeper")

    def wake(self) -> None:
        self._woken.set()

    async def close(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait({self._task})
        self._task = None
        await self._once()

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            await self._once()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), self._every)

    async def _once(self) -> None:
        try:
            await asyncio.to_thread(self._sweep)
        except Exception:
            log.exception("cleaning up failed")
