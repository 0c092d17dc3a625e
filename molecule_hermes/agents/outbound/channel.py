"""Deliveries as messages to peers that are agents themselves."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from a2a.types import Message, Part, Role, Task

from molecule_hermes.errors import TurnFailure
from molecule_hermes.protocol.reply import REASONING

if TYPE_CHECKING:
    from molecule_hermes.agents.outbound.calls import OutboundCalls

__all__ = ["AgentChannel"]

_IDS = uuid.UUID("5b1e0f0a-58a5-4a52-a0b3-6f1d6f5f6c3e")


class AgentChannel:
    """Sends the end of a delivery to the peer's `url` (`protocol.channels.Channel`)."""

    def __init__(self, calls: OutboundCalls) -> None:
        self._calls = calls

    def serves(self, peer: str) -> bool:
        return self._calls.remote(peer) is not None

    async def send(self, peer: str, body: dict[str, Any], ended: Task | None) -> int:
        """One attempt: the sender of notifications repeats what was not taken."""
        if ended is None or not (parts := _parts(ended)):
            return 200
        try:
            await self._calls.send(peer, _message(ended, parts), patience=0)
        except TurnFailure as failure:
            return 503 if failure.retryable else 400
        return 200


def _parts(task: Task) -> list[Part]:
    """What the agent says to its peer; why, if it says nothing because it failed."""
    answers = [each for each in task.artifacts if each.artifact_id != REASONING]
    parts = [part for each in answers for part in each.parts]
    return parts or list(task.status.message.parts)


def _message(task: Task, parts: list[Part]) -> Message:
    """With the same id each time, so that an agent that has it takes it once."""
    message = Message(
        message_id=str(uuid.uuid5(_IDS, task.id)),
        context_id=task.context_id,
        role=Role.ROLE_USER,
        parts=parts,
        metadata=task.metadata,
    )
    message.metadata.update({"deliveryTaskId": task.id})
    return message
