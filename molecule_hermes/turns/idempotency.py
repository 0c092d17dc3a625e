"""Which task a peer's message belongs to: a message that is sent again is not run again."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

__all__ = ["IdempotencyIndex"]

MAX_KNOWN = 100_000
MAX_OF_PEER = 50_000


_Known = OrderedDict[tuple[str, str], tuple[float, str]]
"""When a message came and the task it belongs to, by context and messageId, the oldest first."""


class IdempotencyIndex:
    """Messages of the last `window` seconds. No I/O; the clock is given.

    Each peer's messages are bounded, and beyond the bound on all of them the peer that has most
    loses its oldest: nobody's messages are forgotten because another peer sends many.
    """

    def __init__(
        self,
        window: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        max_known: int | None = None,
        max_of_peer: int | None = None,
    ) -> None:
        self._window = window
        self._clock = clock
        self._max_known = max_known or MAX_KNOWN
        self._max_of_peer = max_of_peer or MAX_OF_PEER
        self._of_peer: dict[str, _Known] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def find(self, peer: str, context_id: str, message_id: str) -> str | None:
        """The task that the message belongs to, if it was sent before."""
        if not message_id or not self._window:
            return None
        self._forget_the_old()
        known: _Known = self._of_peer.get(peer, OrderedDict())
        sent = known.get((context_id, message_id))
        return sent[1] if sent else None

    def claim(self, peer: str, context_id: str, message_id: str, task_id: str) -> None:
        """Takes the message for the task."""
        if not message_id or not self._window:
            return
        self._remember(peer, (context_id, message_id), self._clock(), task_id)

    def recall(self, peer: str, context_id: str, message_id: str, task_id: str, age: float) -> None:
        """A message of an earlier life of the bridge; the oldest first. Whether it named its
        context is not known any more."""
        for known_as in ("", context_id):
            self._remember(peer, (known_as, message_id), self._clock() - age, task_id)

    def forget(self, peer: str, context_id: str, message_id: str) -> None:
        """Lets the message be sent again, because it was refused."""
        self._drop(peer, (context_id, message_id))

    def rejected(self, peer: str, context_id: str, message_id: str, task_id: str) -> None:
        """Lets the message that began the task be sent again, because the task was REJECTED."""
        known: _Known = self._of_peer.get(peer, OrderedDict())
        for key in (("", message_id), (context_id, message_id)):
            if known.get(key, (0.0, ""))[1] == task_id:
                self._drop(peer, key)

    def release(self, task_id: str) -> None:
        """Lets the task's messages be sent again, because nothing came of it."""
        for peer, known in list(self._of_peer.items()):
            for key in [key for key, (_, known_task) in known.items() if known_task == task_id]:
                self._drop(peer, key)

    def _remember(self, peer: str, key: tuple[str, str], at: float, task_id: str) -> None:
        self._drop(peer, key)
        known = self._of_peer.setdefault(peer, OrderedDict())
        known[key] = at, task_id
        self._count += 1
        if len(known) > self._max_of_peer:
            self._drop(peer, next(iter(known)))
        elif self._count > self._max_known:
            greatest = max(self._of_peer, key=lambda name: len(self._of_peer[name]))
            self._drop(greatest, next(iter(self._of_peer[greatest])))

    def _drop(self, peer: str, key: tuple[str, str]) -> None:
        known = self._of_peer.get(peer)
        if known is None or known.pop(key, None) is None:
            return
        self._count -= 1
        if not known:
            del self._of_peer[peer]

    def _forget_the_old(self) -> None:
        oldest = self._clock() - self._window
        for peer, known in list(self._of_peer.items()):
            while known:
                key, (at, _) = next(iter(known.items()))
                if at >= oldest:
                    break
                self._drop(peer, key)
