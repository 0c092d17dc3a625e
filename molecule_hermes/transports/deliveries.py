"""What a transport passes on when an agent speaks without a message of its peer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from molecule_hermes.turns.model import Place
from molecule_hermes.wire import Cause, Origin

__all__ = ["Opening", "Received", "Receiver"]

Received: TypeAlias = Literal["new", "known", "over"]
"""A delivery that came again is known, or over if it has ended."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A turn that Hermes has begun, or will begin, by itself."""

    push_id: str
    """Its name on the wire, as a message's."""
    conversation: str
    """Hermes's name for it (`turns.model.conversation_id`)."""
    cause: Cause
    place: Place
    origin: Origin = Origin()  # noqa: RUF009 - it cannot be changed
    job: str = ""


class Receiver(Protocol):
    """Takes the deliveries of an agent, or of one peer of it."""

    @property
    def wanted(self) -> bool:
        """Whether deliveries are taken at all. The transport tells Hermes, also when it changes."""

    def of_peer(self, peer: str | None) -> Receiver:
        """For a Hermes that serves only this peer; None if all peers of the agent share it."""

    async def receive(self, opening: Opening) -> Received:
        """Returns when the delivery is stored; `Transport.attach` follows it unless it is over.

        Raises a `TurnFailure`: `Draining` and `StorageFailure` if it is to come again, any other
        if it is refused.
        """
