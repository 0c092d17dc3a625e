"""The seam between the executor and Hermes."""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator
from typing import Protocol, Self

from molecule_hermes.backoff import Backoff
from molecule_hermes.turns.features import Feature
from molecule_hermes.turns.model import Turn, TurnEvent

__all__ = ["BACKOFF", "QuestionGoneError", "Transport", "in_pieces"]

BACKOFF = Backoff(first=0.5, longest=2.0)
"""Between attempts to hand a message to Hermes."""

_PIECE = 2**16


class QuestionGoneError(LookupError):
    """The question no longer waits for an answer."""


class Transport(Protocol):
    """A way to reach Hermes, open for the life of the bridge."""

    @property
    def features(self) -> frozenset[Feature]:
        """What a turn can do this way."""
        ...

    @property
    def pending(self) -> int:
        """Turns that wait for something from Hermes."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *error: object) -> None: ...

    def run(self, turn: Turn) -> AsyncGenerator[TurnEvent, None]:
        """Runs the turn; the last event is exactly one of Completed, Failed and Canceled.

        Whoever closes the generator before that gives the turn up, and Hermes is told to stop.
        """
        ...

    async def cancel(self, turn: Turn) -> None:
        """Stops a running turn, whose `run` then ends with Canceled. No-op for any other."""
        ...

    async def answer(self, turn: Turn, question_id: str, answer: str) -> None:
        """Answers a question of the turn; raises `QuestionGoneError`, or a `TurnFailure`."""
        ...

    async def check(self) -> None:
        """Raises the `TurnFailure` that a turn would meet now, if Hermes is not ready."""
        ...


def in_pieces(body: bytes) -> bytes | io.BytesIO:
    """The body for aiohttp, which writes a file piece by piece and bytes in one go: with files in
    it, that would hold up the event loop."""
    return io.BytesIO(body) if len(body) > _PIECE else body
