"""a2a-sdk 0.3: the Python SDK's client for the older protocol version."""

from __future__ import annotations

import uuid
from typing import Any

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import (
    FilePart,
    FileWithBytes,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskIdParams,
    TextPart,
)
from driving import decoded, drive, encoded


class Driver:
    def __init__(self, url: str) -> None:
        self._url = url
        self._http = httpx.AsyncClient(timeout=60)

    async def send(self, text: str) -> dict[str, Any]:
        task = (await self._turn(message(text), streaming=False))[-1]
        return {"text": reply(task)}

    async def stream(self, text: str) -> dict[str, Any]:
        client = await self._client()
        pieces: list[str] = []
        async for event in client.send_message(message(text)):
            task, update = event
            if isinstance(update, TaskArtifactUpdateEvent):
                pieces.append(texts(update.artifact.parts))
        return {"pieces": pieces, "text": reply(task)}

    async def context(self, first: str, second: str) -> dict[str, Any]:
        task = (await self._turn(message(first)))[-1]
        task = (await self._turn(message(second, context_id=task.context_id)))[-1]
        return {"text": reply(task)}

    async def cancel(self, text: str) -> dict[str, Any]:
        client = await self._client()
        canceled = None
        async for task, update in client.send_message(message(text)):
            if isinstance(update, TaskArtifactUpdateEvent) and canceled is None:
                canceled = await client.cancel_task(TaskIdParams(id=task.id))
        return {"states": [canceled.status.state.value, task.status.state.value]}

    async def answer(self, text: str, answer: str) -> dict[str, Any]:
        asked = (await self._turn(message(text)))[-1]
        question = texts(asked.status.message.parts)
        done = (await self._turn(message(answer, task_id=asked.id)))[-1]
        return {"question": question, "text": reply(done)}

    async def attach(self, text: str, name: str, content: str) -> dict[str, Any]:
        file = FileWithBytes(
            bytes=encoded(content), name=name, mime_type="application/octet-stream"
        )
        task = (await self._turn(message(text, Part(root=FilePart(file=file)))))[-1]
        return {"text": reply(task)}

    async def receive(self, text: str) -> dict[str, Any]:
        task = (await self._turn(message(text)))[-1]
        files = [p.root.file for a in task.artifacts for p in a.parts if p.root.kind == "file"]
        return {"files": {file.name: decoded(file.bytes) for file in files}}

    async def fail(self, text: str) -> dict[str, Any]:
        task = (await self._turn(message(text)))[-1]
        return {"text": texts(task.status.message.parts)}

    async def _turn(self, request: Message, streaming: bool = True) -> list[Task]:
        client = await self._client(streaming)
        return [task async for task, _ in client.send_message(request)]

    async def _client(self, streaming: bool = True) -> Any:
        card = await A2ACardResolver(self._http, self._url).get_agent_card()
        config = ClientConfig(httpx_client=self._http, streaming=streaming)
        return ClientFactory(config).create(card)


def message(text: str, *parts: Part, **ids: str) -> Message:
    return Message(
        message_id=str(uuid.uuid4()),
        role=Role.user,
        parts=[Part(root=TextPart(text=text)), *parts],
        **ids,
    )


def reply(task: Task) -> str:
    return "".join(texts(artifact.parts) for artifact in task.artifacts or [])


def texts(parts: list[Part]) -> str:
    """The text that a person sees; a data part would be shown as JSON."""
    return "".join(p.root.text if p.root.kind == "text" else f"<{p.root.kind}>" for p in parts)


drive(Driver)
