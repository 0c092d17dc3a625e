"""Idempotency: which task a message belongs to, so that a resend does not run again."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["IdempotencyIndex"]

MAX_ENTRIES = 100_000
MAX_ENTRIES_OF_PEER = 50_000


class _Entry(NamedTuple):
    at: float
    task_id: str
    digest: str
    """Of the message's content. Empty matches any content: an older bridge stored the message."""


_Entries = OrderedDict[tuple[str, str], _Entry]
"""By context and messageId, the oldest first."""


class IdempotencyIndex:
    """The messages of the last `window` seconds. It does no I/O, and its clock can be replaced.

    A message is a resend if peer, context, messageId and content are the same. The entries of each
    peer are bounded. When all peers together exceed their bound, the peer with the most entries
    loses its oldest one, so a peer that sends many messages displaces only its own.
    """

    def __init__(
        self,
        window: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        max_entries: int | None = None,
        max_entries_of_peer: int | None = None,
    ) -> None:
        """With a window of 0, every message is new."""
        self.enabled = window > 0
        self._window = window
        self._clock = clock
        self._max_entries = max_entries or MAX_ENTRIES
        self._max_entries_of_peer = max_entries_of_peer or MAX_ENTRIES_OF_PEER
        self._peers: dict[str, _Entries] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def find(self, peer: str, context_id: str, message_id: str, digest: str = "") -> str | None:
        """Returns the task of the message if it is a resend."""
        entry = self._entry(peer, context_id, message_id)
        if entry is None or (entry.digest and entry.digest != digest):
            return None
        return entry.task_id

    def claim(
        self, peer: str, context_id: str, message_id: str, task_id: str, digest: str = ""
    ) -> None:
        """Assigns the message to the task."""
        if message_id and self.enabled:
            self._add(peer, (context_id, message_id), _Entry(self._clock(), task_id, digest))

    def recall(
        self,
        peer: str,
        context_id: str,
        message_id: str,
        task_id: str,
        *,
        digest: str,
        age: float,
    ) -> None:
        """Adds a message that was sent before the bridge started, the oldest first. The store does
        not say whether the message named its context, so it is found either way."""
        if not self.enabled:
            return
        for known_as in ("", context_id):
            entry = _Entry(self._clock() - age, task_id, digest)
            self._add(peer, (known_as, message_id), entry)

    def rejected(self, peer: str, context_id: str, message_id: str, task_id: str) -> None:
        """Forgets the message that began the task: a REJECTED message may be sent again."""
        entries: _Entries = self._peers.get(peer, OrderedDict())
        for key in (("", message_id), (context_id, message_id)):
            if (entry := entries.get(key)) is not None and entry.task_id == task_id:
                self._drop(peer, key)

    def release(self, task_id: str) -> None:
        """Forgets all messages of the task, because it could not be stored."""
        for peer, entries in list(self._peers.items()):
            for key in [key for key, entry in entries.items() if entry.task_id == task_id]:
                self._drop(peer, key)

    def _entry(self, peer: str, context_id: str, message_id: str) -> _Entry | None:
        if not message_id or not self.enabled:
            return None
        self._drop_expired()
        entries: _Entries = self._peers.get(peer, OrderedDict())
        return entries.get((context_id, message_id))

    def _add(self, peer: str, key: tuple[str, str], entry: _Entry) -> None:
        self._drop(peer, key)
        entries = self._peers.setdefault(peer, OrderedDict())
        entries[key] = entry
        self._count += 1
        if len(entries) > self._max_entries_of_peer:
            self._drop(peer, next(iter(entries)))
        elif self._count > self._max_entries:
            largest = max(self._peers, key=lambda name: len(self._peers[name]))
            self._drop(largest, next(iter(self._peers[largest])))

    def _drop(self, peer: str, key: tuple[str, str]) -> None:
        entries = self._peers.get(peer)
        if entries is None or entries.pop(key, None) is None:
            return
        self._count -= 1
        if not entries:
            del self._peers[peer]

    def _drop_expired(self) -> None:
        oldest = self._clock() - self._window
        for peer, entries in list(self._peers.items()):
            while entries:
                key, entry = next(iter(entries.items()))
                if entry.at >= oldest:
                    break
                self._drop(peer, key)
