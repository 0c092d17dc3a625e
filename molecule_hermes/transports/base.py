"""The seam between the executor and Hermes."""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol, Self

from molecule_hermes.backoff import Backoff
from molecule_hermes.transports.deliveries import Receiver
from molecule_hermes.turns.features import Feature
from molecule_hermes.turns.model import Place, Turn, TurnEvent
from molecule_hermes.wire import Steered

__all__ = [
    "BACKOFF",
    "Attached",
    "NotSentError",
    "QuestionGoneError",
    "Transport",
    "as_payload",
]

BACKOFF = Backoff(first=0.5, longest=2.0)
"""The delays between attempts to send a message to Hermes."""

_LARGE = 2**16


class QuestionGoneError(LookupError):
    """Hermes no longer waits for an answer to the question."""


class NotSentError(LookupError):
    """Hermes has run without a break since the message was to be sent, and does not know it."""


@dataclass(frozen=True, slots=True)
class Attached:
    """A turn that goes on."""

    events: AsyncGenerator[TurnEvent, None]
    """As those of `Transport.run`."""
    questions: frozenset[str] = frozenset()
    """The ids of the questions that are open."""


class Transport(Protocol):
    """A connection to Hermes, open for the life of the bridge."""

    @property
    def features(self) -> frozenset[Feature]:
        """What turns can do through this transport."""
        ...

    @property
    def pending(self) -> int:
        """The number of turns that Hermes has not ended."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *error: object) -> None: ...

    def run(self, turn: Turn) -> AsyncGenerator[TurnEvent, None]:
        """Runs the turn. The last event is exactly one of Completed, Failed and Canceled.

        Closing the generator before that event stops the turn.
        """
        ...

    async def cancel(self, turn: Turn) -> None:
        """Stops a running turn; its `run` then ends with Canceled. Does nothing for other turns."""
        ...

    async def answer(self, turn: Turn, question_id: str, answer: str) -> None:
        """Answers a question of the turn. Raises `QuestionGoneError` or a `TurnFailure`."""
        ...

    def place(self, turn: Turn) -> Place:
        """Where the turn runs, or will run when it is sent now."""
        ...

    def leave_turns(self) -> None:
        """From now on, closing `run` leaves the turn to Hermes: another bridge attaches to it."""
        ...

    async def attach(self, turn: Turn, place: Place) -> Attached:
        """Goes on with a turn that another bridge has sent, after the event with `place.seq`.

        Raises `NotSentError` if the message never reached Hermes, so that it can be sent now, and a
        `TurnFailure` if the turn is lost.
        """
        ...

    def take_deliveries(self, receiver: Receiver) -> None:
        """From now on, deliveries of Hermes go to the receiver, if the transport has any."""
        ...

    async def steer(self, turn: Turn, text: str) -> Steered:
        """Passes a text to a running turn. The result says whether the turn takes it, and if not,
        why. Raises a `TurnFailure` if Hermes cannot be asked."""
        ...

    async def check(self) -> None:
        """Raises the `TurnFailure` that a turn would end with now; returns if Hermes is ready."""
        ...


def as_payload(body: bytes) -> bytes | io.BytesIO:
    """Wraps a large body in a file: aiohttp writes files in chunks, but bytes in a single write,
    which blocks the event loop."""
    return io.BytesIO(body) if len(body) > _LARGE else body
