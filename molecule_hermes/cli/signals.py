"""SIGINT and SIGTERM for the commands that serve."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Self

__all__ = ["Signals"]

logger = logging.getLogger(__name__)


class Signals:
    """Turns SIGINT and SIGTERM into an event. A second signal calls the `on_second` callbacks."""

    def __init__(self) -> None:
        self._stop = asyncio.Event()
        self.on_second: list[Callable[[], None]] = []

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._received)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _ignored)
        return self

    def __exit__(self, *args: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().remove_signal_handler(number)

    @contextmanager
    def on_reload(self, callback: Callable[[], None]) -> Iterator[None]:
        """Within it, SIGHUP calls this. Before and after it, there is nothing to reload, and SIGHUP
        is ignored: it must not cut short a drain."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, callback)
        try:
            yield
        finally:
            loop.add_signal_handler(signal.SIGHUP, _ignored)

    def _received(self) -> None:
        if self._stop.is_set():
            for callback in self.on_second:
                callback()
        self._stop.set()

    async def wait(self, *others: Awaitable[None]) -> bool:
        """Waits for a signal or the first of the others, which are then canceled.

        Returns whether one of the others came first, and raises what it raised.
        """
        stop = asyncio.ensure_future(self._stop.wait())
        tasks = [asyncio.ensure_future(other) for other in others]
        try:
            await asyncio.wait({stop, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
                    return True
            return False
        finally:
            for waiter in (stop, *tasks):
                waiter.cancel()
            await asyncio.gather(stop, *tasks, return_exceptions=True)


def _ignored() -> None:
    logger.warning("SIGHUP is ignored: the bridge starts or stops")
