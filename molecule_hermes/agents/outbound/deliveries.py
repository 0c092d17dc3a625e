"""Deliveries as messages: what an agent says unasked to a peer that is an agent itself."""

from __future__ import annotations

import uuid
from typing import Any

from a2a.types import Message, Part, Role, Task, TaskState

from molecule_hermes.agents.outbound.calls import OutboundCalls
from molecule_hermes.errors import TurnFailure
from molecule_hermes.protocol.caller import Caller
from molecule_hermes.protocol.reply import REASONING

__all__ = ["AgentChannel"]

_IDS = uuid.UUID("0c1f6a52-4f4e-4b9a-9a53-7b0f3f6d2a80")
_PATIENCE = 30.0
_AGAIN, _TAKEN, _GIVEN_UP = 503, 200, 400


class AgentChannel:
    """Implements `protocol.channels.Channel`: sends what was delivered to the peer's URL."""

    def __init__(self, calls: OutboundCalls) -> None:
        self._calls = calls

    def serves(self, caller: Caller) -> bool:
        return self._calls.remote(caller.peer) is not None

    async def send(self, caller: Caller, body: dict[str, Any], ended: Task | None) -> int:
        """Only an answer is a message: what came to nothing is for the peer's people."""
        if ended is None or ended.status.state != TaskState.TASK_STATE_COMPLETED:
            return _TAKEN
        message = message_of(ended)
        if not message.parts:
            return _TAKEN
        try:
            await self._calls.send(caller.peer, message, agent=caller.agent, patience=_PATIENCE)
        except TurnFailure as failure:
            return _AGAIN if failure.retryable else _GIVEN_UP
        return _TAKEN


def message_of(task: Task) -> Message:
    """The delivery's answer and files. The same delivery is always the same message, so that the
    other agent recognises one that it gets twice."""
    message = Message(message_id=str(uuid.uuid5(_IDS, task.id)), role=Role.ROLE_USER)
    for artifact in task.artifacts:
        if artifact.artifact_id != REASONING:
            message.parts.extend(Part.FromString(p.SerializeToString()) for p in artifact.parts)
    about = {"taskId": task.id, "contextId": task.context_id}
    for name in ("cause", "job"):
        if name in task.metadata.fields:
            about[name] = task.metadata.fields[name].string_value
    message.metadata.update({"delivery": about})
    return message
