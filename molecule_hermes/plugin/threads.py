"""The threads in which turns over Hermes's API run."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor

__all__ = ["widen_default_executor"]


def widen_default_executor(loop: asyncio.AbstractEventLoop, turns: int) -> None:
    """Lets the loop run this many turns at once besides its other work.

    A turn over the API keeps one thread of the loop's default executor for its agent
    (gateway/platforms/api_server.py:4703) and one for its stream (3063). By default there are four
    more than processors.
    """
    threads = 2 * turns + min(32, (os.cpu_count() or 1) + 4)
    loop.set_default_executor(ThreadPoolExecutor(threads, "asyncio"))
