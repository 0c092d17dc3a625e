"""One message at a time in each chat, chats side by side."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from molecule_hermes.plugin.ledger import Ledger, Turn

__all__ = ["Chats"]

log = logging.getLogger(__name__)


class Chats:
    """A task for each chat that has something to do; it runs the turns one after another.

    `run` takes a turn through Hermes and returns when Hermes is ready for the chat's next one.
    """

    def __init__(self, ledger: Ledger, run: Callable[[Turn], Awaitable[None]]) -> None:
        self._ledger = ledger
        self._run = run
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def wake(self, chat_id: str) -> None:
        """Something waits in the chat."""
        if chat_id in self._tasks:
            return
        self._tasks[chat_id] = asyncio.get_running_loop().create_task(self._work(chat_id))

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, chat_id: str) -> None:
        try:
            # No await between the last `begin` and leaving: `wake` finds the task or makes one.
            while turn := self._ledger.begin(chat_id):
                await self._run(turn)
        finally:
            del self._tasks[chat_id]
