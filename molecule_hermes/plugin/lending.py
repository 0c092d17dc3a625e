"""Chats whose conversation its operator goes on with elsewhere: their turns wait meanwhile.

Whoever borrows a chat renews that, so that one that died holds up nobody for long. No I/O.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from molecule_hermes.errors import Busy

__all__ = ["Lending"]

_REMEMBERED = 1024


class Lending:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lent: dict[str, tuple[str, float]] = {}
        """By chat: the lease and its end."""
        self._passing = ""
        """The chat whose conversation another platform takes, also after the lease has ended."""
        self._passed: dict[str, str] = {}
        """By chat: the platform that has taken its conversation since its last turn."""

    def lend(self, chat_id: str, lease: str, seconds: float) -> None:
        """Raises `Busy` if the chat is lent under another lease."""
        if self.is_lent(chat_id) and not self.has(chat_id, lease):
            raise Busy("the conversation is open in another terminal")
        self._lent[chat_id] = (lease, self._clock() + seconds)

    def has(self, chat_id: str, lease: str) -> bool:
        lease_of, end = self._lent.get(chat_id, ("", 0.0))
        return lease_of == lease and end > self._clock()

    def give_back(self, chat_id: str, lease: str) -> None:
        if self.has(chat_id, lease):
            del self._lent[chat_id]

    @contextlib.contextmanager
    def passing(self, chat_id: str, lease: str, platform: str) -> Iterator[None]:
        """Within it, the platform takes the conversation. Raises `Busy` if another one is taken, or
        the chat is not lent under the lease."""
        if not self.has(chat_id, lease):
            raise Busy("the conversation is not held for this")
        if self._passing:
            raise Busy("a conversation is being handed to another platform already")
        self._passing = chat_id
        try:
            yield
            self._passed[chat_id] = platform
            if len(self._passed) > _REMEMBERED:
                del self._passed[next(iter(self._passed))]
        finally:
            self._passing = ""

    def take_passed(self, chat_id: str) -> str:
        """The platform that has taken the chat's conversation, once."""
        return self._passed.pop(chat_id, "")

    def is_lent(self, chat_id: str) -> bool:
        _, end = self._lent.get(chat_id, ("", 0.0))
        if end <= self._clock():
            self._lent.pop(chat_id, None)
        return chat_id in self._lent or chat_id == self._passing
