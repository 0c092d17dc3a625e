"""When a Hermes last showed that it lives."""

from __future__ import annotations

import time

from molecule_hermes.transports.plugin.replies import Replies

__all__ = ["SignsOfLife"]


class SignsOfLife:
    """Its answers, and its callbacks: with many turns at once, it can take long to answer."""

    def __init__(self, replies: Replies) -> None:
        self._replies = replies
        self.seen()

    def seen(self) -> None:
        self._taken, self._at = self._replies.taken, time.monotonic()

    def seconds_ago(self) -> float:
        if self._replies.taken != self._taken:
            self.seen()
        return time.monotonic() - self._at
