"""Runs the executor under the SDK's plain request handler, without a server."""

from __future__ import annotations

from a2a.server.context import ServerCallContext
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskStatusUpdateEvent,
)

from molecule_hermes.client import message
from molecule_hermes.conversations import Conversations
from molecule_hermes.executor import HermesAgentProxyExecutor
from molecule_hermes.transports.base import Transport
from tests.peers import Turn

_CARD = AgentCard(
    name="n",
    description="d",
    version="1",
    capabilities=AgentCapabilities(streaming=True),
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
)
_FIELDS = {
    Task: "task",
    TaskStatusUpdateEvent: "status_update",
    TaskArtifactUpdateEvent: "artifact_update",
}


async def run_executor(transport: Transport, conversations: Conversations) -> Turn:
    executor = HermesAgentProxyExecutor(transport, conversations)
    handler = DefaultRequestHandler(executor, InMemoryTaskStore(), _CARD)
    turn = Turn()
    try:
        async for event in handler.on_message_send_stream(message("hi"), ServerCallContext()):
            copy = type(event)()
            copy.CopyFrom(event)
            turn.add(StreamResponse(**{_FIELDS[type(event)]: copy}))
    finally:
        await handler.aclose()
    return turn
