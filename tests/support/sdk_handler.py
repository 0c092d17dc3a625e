"""The executor under the SDK's own request handler and store, without a server."""

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
from a2a.utils.errors import UnsupportedOperationError

from molecule_hermes.client.connection import message
from molecule_hermes.executor import HermesAgentProxyExecutor
from molecule_hermes.storage.contents import merge_text
from molecule_hermes.transports.base import Transport
from molecule_hermes.turns.scheduler import Scheduler
from tests.support.peers import Turn

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


async def run_executor(transport: Transport, conversations: Scheduler) -> Turn:
    """Runs one turn to its end; answers each question with "deny"."""
    executor = HermesAgentProxyExecutor(transport, conversations)
    store = InMemoryTaskStore()
    handler = DefaultRequestHandler(executor, store, _CARD)
    turn, context, request = Turn(), ServerCallContext(), message("hi")
    try:
        while True:
            async for event in handler.on_message_send_stream(request, context):
                copy = type(event)()
                copy.CopyFrom(event)
                turn.add(StreamResponse(**{_FIELDS[type(event)]: copy}))
            if turn.states[-1] != "INPUT_REQUIRED":
                return turn
            request = message("deny", turn.context_id, turn.task_id)
    except UnsupportedOperationError:
        # The turn ended before its question was answered.
        stored = await store.get(turn.task_id, context)
        assert stored is not None
        merge_text(stored)
        turn.add(StreamResponse(task=stored))
        return turn
    finally:
        await handler.aclose()
