"""What another agent says it is doing, as progress of the turn: not too much, nothing twice."""

from __future__ import annotations

import asyncio
from typing import Self

from molecule_hermes.turns.outbound import Progress

__all__ = ["ProgressLines"]

_MOST = 50
_EVERY = 0.5
"""Seconds. Of what an agent says meanwhile, the last is shown."""


class ProgressLines:
    def __init__(self, peer: str, progress: Progress) -> None:
        self._peer = peer
        self._progress = progress
        self._last = ""
        self._waiting = ""
        self._left = _MOST
        self._timer: asyncio.TimerHandle | None = None

    def show(self, line: str) -> None:
        if line and line != self._last:
            self._waiting = self._last = line
            if self._timer is None:
                self._flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Shows no more."""
        self._left = 0
        if self._timer is not None:
            self._timer.cancel()

    def _flush(self) -> None:
        self._timer = None
        if self._waiting and self._left:
            self._left -= 1
            self._progress(f"{self._peer}: {self._waiting}")
            self._waiting = ""
            self._timer = asyncio.get_running_loop().call_later(_EVERY, self._flush)
