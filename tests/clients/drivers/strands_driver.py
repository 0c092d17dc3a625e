"""strands-agents: `A2AAgent`, which wraps a2a-sdk 0.3's client."""

from __future__ import annotations

import warnings
from typing import Any

warnings.filterwarnings("ignore")

from a2a.types import TaskArtifactUpdateEvent  # noqa: E402
from driving import decoded, drive  # noqa: E402
from strands.agent.a2a_agent import A2AAgent  # noqa: E402


class Driver:
    def __init__(self, url: str) -> None:
        self._agent = A2AAgent(endpoint=url)

    async def send(self, text: str) -> dict[str, Any]:
        return {"text": str(await self._agent.invoke_async(text)).strip()}

    async def stream(self, text: str) -> dict[str, Any]:
        pieces: list[str] = []
        async for event in self._agent.stream_async(text):
            if "result" in event:
                result = event["result"]
            elif isinstance(update := event["event"][1], TaskArtifactUpdateEvent):
                pieces.append("".join(part.root.text for part in update.artifact.parts))
        return {"pieces": pieces, "text": str(result).strip()}

    async def receive(self, text: str) -> dict[str, Any]:
        # The result has text only; the A2A events of the stream have the whole task.
        async for event in self._agent.stream_async(text):
            if "result" not in event:
                task, _ = event["event"]
        files = [p.root.file for a in task.artifacts for p in a.parts if p.root.kind == "file"]
        return {"files": {file.name: decoded(file.bytes) for file in files}}

    async def ask(self, text: str) -> dict[str, Any]:
        result = await self._agent.invoke_async(text)
        return {"question": str(result).strip(), "stopped": result.stop_reason}

    async def fail(self, text: str) -> dict[str, Any]:
        return {"text": str(await self._agent.invoke_async(text)).strip()}


drive(Driver)
