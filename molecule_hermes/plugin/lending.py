"""Chats whose conversation its operator goes on with in a terminal: their turns wait meanwhile.

Whoever borrows a chat renews that, so that one that died holds up nobody for long. No I/O.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from molecule_hermes.errors import Busy

__all__ = ["Lending"]


class Lending:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lent: dict[str, tuple[str, float]] = {}
        """By chat: the lease and its end."""

    def lend(self, chat_id: str, lease: str, seconds: float) -> None:
        """Raises `Busy` if the chat is lent under another lease."""
        if self.is_lent(chat_id) and not self.has(chat_id, lease):
            raise Busy("the conversation is open in another terminal")
        self._lent[chat_id] = (lease, self._clock() + seconds)

    def has(self, chat_id: str, lease: str) -> bool:
        return self.is_lent(chat_id) and self._lent[chat_id][0] == lease

    def give_back(self, chat_id: str, lease: str) -> None:
        if self.has(chat_id, lease):
            del self._lent[chat_id]

    def is_lent(self, chat_id: str) -> bool:
        _, end = self._lent.get(chat_id, ("", 0.0))
        if end <= self._clock():
            self._lent.pop(chat_id, None)
            return False
        return True
