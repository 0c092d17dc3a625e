"""Bounded waiting: no test sleeps for a time that is hoped to be long enough."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any


async def until(condition: Callable[[], Any], timeout: float = 20.0, every: float = 0.01) -> Any:
    """Polls the condition, a function or a coroutine function, until it returns something true.

    Returns that value; raises TimeoutError after `timeout` seconds.
    """
    async with asyncio.timeout(timeout):
        while True:
            result = condition()
            if inspect.isawaitable(result):
                result = await result
            if result:
                return result
            await asyncio.sleep(every)
