"""A peer: the SDK's client over real sockets, and what it saw of a turn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.helpers import get_text_parts
from a2a.types import (
    AgentCard,
    Part,
    SendMessageRequest,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
)
from google.protobuf import json_format

from molecule_hermes.client.connection import message
from molecule_hermes.protocol.reply import REPLY
from tests.support.serving import TLS


@asynccontextmanager
async def peer(
    url: str,
    *,
    token: str = "",
    binding: str = "JSONRPC",
    version: str = "1.0",
    streaming: bool = True,
    extensions: Sequence[str] = (),
) -> AsyncIterator[Client]:
    """A client for the interface of the card with that binding and version."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if extensions:
        name = "A2A-Extensions" if version == "1.0" else "X-A2A-Extensions"
        headers[name] = ", ".join(extensions)
    async with httpx.AsyncClient(headers=headers, timeout=60, verify=TLS) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        wanted = [
            i
            for i in card.supported_interfaces
            if i.protocol_binding == binding and i.protocol_version == version
        ]
        assert wanted, f"the card offers no {binding} {version}"
        del card.supported_interfaces[:]
        card.supported_interfaces.extend(wanted)
        config = ClientConfig(
            httpx_client=http, streaming=streaming, supported_protocol_bindings=[binding]
        )
        yield ClientFactory(config).create(card)


async def card_of(url: str) -> AgentCard:
    async with httpx.AsyncClient(timeout=60, verify=TLS) as http:
        return await A2ACardResolver(http, url).get_agent_card()


async def ask(client: Client, text: str, context_id: str = "", task_id: str = "") -> Turn:
    """Sends a text and follows the turn to its end or its question."""
    return await send(client, message(text, context_id, task_id))


async def send(client: Client, request: SendMessageRequest) -> Turn:
    """Sends a message and follows the turn to its end or its question."""
    turn = Turn()
    async for event in client.send_message(request):
        turn.add(event)
    return turn


class Turn:
    """What a peer saw of one turn."""

    def __init__(self) -> None:
        self.events: list[StreamResponse] = []

    def add(self, event: StreamResponse) -> None:
        self.events.append(event)

    @property
    def task_id(self) -> str:
        first = self.events[0]
        return first.task.id or first.status_update.task_id

    @property
    def context_id(self) -> str:
        first = self.events[0]
        return first.task.context_id or first.status_update.context_id

    @property
    def states(self) -> list[str]:
        states = []
        for event in self.events:
            if event.HasField("task"):
                states.append(event.task.status.state)
            elif event.HasField("status_update"):
                states.append(event.status_update.status.state)
        return [TaskState.Name(s).removeprefix("TASK_STATE_") for s in states]

    @property
    def text(self) -> str:
        """The `reply` artifact, assembled from its updates as A2A prescribes."""
        return self.artifact(REPLY)

    def artifact(self, artifact_id: str) -> str:
        """The text of an artifact, assembled from its updates."""
        text = ""
        for event in self.events:
            if event.HasField("artifact_update"):
                update = event.artifact_update
                if update.artifact.artifact_id != artifact_id:
                    continue
                piece = "".join(get_text_parts(update.artifact.parts))
                text = text + piece if update.append else piece
            elif event.HasField("task") and event.task.artifacts:
                text = artifact_text(event.task, artifact_id)
        return text

    @property
    def reply_updates(self) -> list[TaskArtifactUpdateEvent]:
        updates = [e.artifact_update for e in self.events if e.HasField("artifact_update")]
        return [update for update in updates if update.artifact.artifact_id == REPLY]

    @property
    def file_parts(self) -> list[Part]:
        """The first part of each artifact other than the reply."""
        updates = (e.artifact_update for e in self.events if e.HasField("artifact_update"))
        return [u.artifact.parts[0] for u in updates if u.artifact.artifact_id != REPLY]

    @property
    def files(self) -> int:
        updates = [e.artifact_update for e in self.events if e.HasField("artifact_update")]
        return sum(update.artifact.artifact_id != REPLY for update in updates)

    @property
    def updates(self) -> int:
        return sum(e.HasField("artifact_update") for e in self.events)

    @property
    def failure(self) -> dict[str, Any]:
        status = next(s for s in map(_status, reversed(self.events)) if s is not None)
        return failure(status)

    @property
    def data(self) -> list[dict[str, Any]]:
        """The metadata of the status messages, for programs."""
        found = [
            json_format.MessageToDict(status.message.metadata)
            for status in map(_status, self.events)
            if status is not None
        ]
        return [metadata for metadata in found if metadata]

    @property
    def figures(self) -> dict[str, Any]:
        """The metadata of the last status update."""
        updates = [e.status_update for e in self.events if e.HasField("status_update")]
        return dict(json_format.MessageToDict(updates[-1].metadata))

    @property
    def question(self) -> dict[str, Any]:
        """The question at the end of the turn so far."""
        assert self.states[-1] == "INPUT_REQUIRED", self.states
        question: dict[str, Any] = self.data[-1]["question"]
        return question

    @property
    def progress(self) -> list[str]:
        lines = []
        for event in self.events:
            if event.HasField("status_update") and event.status_update.status.HasField("message"):
                lines.append(get_text_parts(event.status_update.status.message.parts)[0])
        return lines


def failure(status: TaskStatus) -> dict[str, Any]:
    """Why a task failed, for programs. Status messages hold text parts only."""
    assert all(part.HasField("text") for part in status.message.parts)
    reason: dict[str, Any] = json_format.MessageToDict(status.message.metadata)["failure"]
    return reason


def _status(event: StreamResponse) -> Any:
    if event.HasField("status_update"):
        return event.status_update.status
    return event.task.status if event.HasField("task") else None


def reply_text(task: Task) -> str:
    return artifact_text(task, REPLY)


def artifact_text(task: Task, artifact_id: str) -> str:
    for artifact in task.artifacts:
        if artifact.artifact_id == artifact_id:
            assert len(artifact.parts) == 1, "streamed text is joined to one part"
            return artifact.parts[0].text
    return ""


def files(task: Task) -> dict[str, bytes]:
    """The contents of the delivered files by name."""
    return {a.name: a.parts[0].raw for a in task.artifacts if a.artifact_id != REPLY}


def state(task: Task) -> str:
    return TaskState.Name(task.status.state).removeprefix("TASK_STATE_")
