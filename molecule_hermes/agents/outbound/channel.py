"""What an agent says unasked, as a message to its peer's own agent."""

from __future__ import annotations

import uuid
from typing import Any

from a2a.types import Message, Part, Role, Task, TaskState
from google.protobuf.json_format import MessageToDict

from molecule_hermes.agents.outbound.calls import OutboundCalls
from molecule_hermes.errors import TurnFailure
from molecule_hermes.protocol.caller import Caller
from molecule_hermes.protocol.chain import Chain, hops_of
from molecule_hermes.protocol.extensions import DELIVERIES
from molecule_hermes.protocol.reply import REASONING

__all__ = ["PeerAgentChannel", "message_of"]

_IDS = uuid.UUID("5b0c0f5e-5d53-4d0c-9d6c-0f2f3f8f3a77")
_ABOUT = ("cause", "job")


class PeerAgentChannel:
    """Implements `protocol.channels.Channel` for the peers that have a `url`."""

    def __init__(self, calls: OutboundCalls) -> None:
        self._calls = calls

    def serves(self, peer: str) -> bool:
        return self._calls.serves(peer)

    async def send(self, to: Caller, body: dict[str, Any], ended: Task | None) -> int:
        """Only the end is a message: what comes before it is for those that follow the task."""
        message = message_of(ended) if ended is not None else None
        if message is None:
            return 204
        try:
            await self._calls.send(to.peer, message, agent=to.agent)
        except TurnFailure as failure:
            return 503 if failure.retryable else 422
        return 200


def message_of(task: Task) -> Message | None:
    """The delivery as a message, with the same id each time; None if it says nothing."""
    parts = list(_said(task))
    if not parts:
        return None
    about = {name: value for name, value in MessageToDict(task.metadata).items() if name in _ABOUT}
    message = Message(
        message_id=str(uuid.uuid5(_IDS, task.id)),
        role=Role.ROLE_USER,
        context_id=task.context_id,
        parts=parts,
        extensions=[DELIVERIES],
    )
    message.metadata.update({DELIVERIES: {"taskId": task.id, **about}})
    if hops := hops_of(task):
        Chain(hops=hops).mark(message)
    return message


def _said(task: Task) -> list[Part]:
    if task.status.state == TaskState.TASK_STATE_COMPLETED:
        shown = (each for each in task.artifacts if each.artifact_id != REASONING)
        return [part for artifact in shown for part in artifact.parts]
    if task.status.state == TaskState.TASK_STATE_FAILED:
        return list(task.status.message.parts)
    return []
