"""Which task a peer's message belongs to: a message that is sent again is not run again."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

__all__ = ["Retries", "SentBeforeError"]

MAX_KNOWN = 100_000


class SentBeforeError(Exception):
    """The message was sent before; `task_id` is what it began, or answered."""

    def __init__(self, task_id: str) -> None:
        super().__init__(task_id)
        self.task_id = task_id


class Retries:
    """Messages of the last `window` seconds. No I/O; the clock is given."""

    def __init__(self, window: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._window = window
        self._clock = clock
        self._known: OrderedDict[tuple[str, str, str], tuple[float, str]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def claim(self, peer: str, context_id: str, message_id: str, task_id: str) -> None:
        """Takes the message for the task; raises `SentBeforeError` if another has it."""
        if not message_id or not self._window:
            return
        self._forget_the_old()
        key = (peer, context_id, message_id)
        if known := self._known.get(key):
            raise SentBeforeError(known[1])
        self._known[key] = self._clock(), task_id

    def recall(self, peer: str, context_id: str, message_id: str, task_id: str, age: float) -> None:
        """A message of an earlier life of the bridge; the oldest first. Whether it named its
        context is not known any more."""
        for known_as in ("", context_id):
            self._known[peer, known_as, message_id] = self._clock() - age, task_id

    def forget(self, peer: str, context_id: str, message_id: str) -> None:
        """Lets the message be sent again, because it was refused."""
        self._known.pop((peer, context_id, message_id), None)

    def release(self, task_id: str) -> None:
        """Lets the task's messages be sent again, because nothing came of it."""
        for key in [key for key, (_, known) in self._known.items() if known == task_id]:
            del self._known[key]

    def _forget_the_old(self) -> None:
        oldest = self._clock() - self._window
        while self._known:
            key, (at, _) = next(iter(self._known.items()))
            if at >= oldest and len(self._known) < MAX_KNOWN:
                return
            del self._known[key]
