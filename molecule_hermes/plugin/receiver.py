"""Which bridge takes deliveries. No I/O."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from molecule_hermes.wire import Check

__all__ = ["Receiver"]


_GRACE = 60.0
"""Seconds for which deliveries still wait after a bridge has said that it takes none. One that
starts says so until it has done with what an earlier bridge has left."""


class Receiver:
    """The bridge that takes new deliveries: the last that said so, until it takes that back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.url = ""
        self.bridge = ""
        self._clock = clock
        self._declined_at = math.inf

    @property
    def takes(self) -> bool:
        return bool(self.url)

    @property
    def declined(self) -> bool:
        """Whether a bridge has said that it takes none, and no other has taken them since. Until a
        bridge has said anything, as after a start of Hermes, deliveries wait for one."""
        return self._clock() >= self._declined_at + _GRACE

    def hear(self, check: Check) -> bool:
        """Whether the bridge that asks is the one that takes deliveries."""
        if check.deliveries:
            self.url, self.bridge = check.callback_url, check.bridge
            self._declined_at = math.inf
        elif not self.url or self._is_same(check):
            self.url = self.bridge = ""
            self._declined_at = min(self._declined_at, self._clock())
        return check.deliveries

    def _is_same(self, check: Check) -> bool:
        """A bridge that was restarted has another name, and its address another query."""
        named = bool(check.bridge) and check.bridge == self.bridge
        return named or _place(check.callback_url) == _place(self.url)


def _place(url: str) -> tuple[str, str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc, parts.path
