"""A transport without Hermes, for images that are started only to test that they start."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Self

from molecule_hermes.errors import Unreachable
from molecule_hermes.transports.base import Attached, QuestionGoneError
from molecule_hermes.transports.deliveries import Receiver
from molecule_hermes.turns.features import Feature
from molecule_hermes.turns.model import Failed, Place, Turn, TurnEvent
from molecule_hermes.wire import Steered

__all__ = ["SmokeTransport"]


class SmokeTransport:
    """Never ready. Every turn fails at once and says why."""

    features = frozenset({Feature.TEXT})
    pending = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    async def run(self, turn: Turn) -> AsyncGenerator[TurnEvent, None]:
        yield Failed(_no_hermes())

    async def cancel(self, turn: Turn) -> None:
        """No turn runs long enough to be canceled."""

    async def answer(self, turn: Turn, question_id: str, answer: str) -> None:
        raise QuestionGoneError(question_id)

    def place(self, turn: Turn) -> Place:
        return Place()

    def take_deliveries(self, receiver: Receiver) -> None:
        """There are none."""

    def leave_turns(self) -> None:
        """No turn runs."""

    async def attach(self, turn: Turn, place: Place) -> Attached:
        raise _no_hermes()

    async def steer(self, turn: Turn, text: str) -> Steered:
        return Steered(False, _no_hermes().message)

    async def check(self) -> None:
        raise _no_hermes()


def _no_hermes() -> Unreachable:
    return Unreachable(
        "smoke mode: the bridge runs without Hermes",
        hint="unset MOLECULE_SMOKE_MODE and start it again",
        retryable=False,
    )
