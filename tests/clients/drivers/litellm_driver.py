"""LiteLLM: `A2AClient`, and an agent as the model of `acompletion`."""

from __future__ import annotations

import os
import uuid
import warnings
from typing import Any

warnings.filterwarnings("ignore")
# Else it looks for prices on the internet before it starts.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm  # noqa: E402
from a2a.compat.v0_3.types import (  # noqa: E402
    MessageSendParams,
    SendMessageRequest,
    SendStreamingMessageRequest,
)
from driving import decoded, drive, encoded  # noqa: E402
from litellm.a2a_protocol import A2AClient, asend_message_streaming  # noqa: E402


class Driver:
    def __init__(self, url: str) -> None:
        self._url = url
        self._client = A2AClient(base_url=url)

    async def send(self, text: str) -> dict[str, Any]:
        return {"text": reply(await self._turn(text))}

    async def stream(self, text: str) -> dict[str, Any]:
        request = SendStreamingMessageRequest(id=str(uuid.uuid4()), params=params(text))
        pieces: list[str] = []
        whole = ""
        async for chunk in asend_message_streaming(request=request, api_base=self._url):
            event = chunk.model_dump(mode="json", by_alias=True)["result"]
            if event["kind"] == "artifact-update":
                pieces.append(texts(event["artifact"]["parts"]))
                whole = whole + pieces[-1] if event["append"] else pieces[-1]
        return {"pieces": pieces, "text": whole}

    async def stream_with_client(self, text: str) -> dict[str, Any]:
        request = SendStreamingMessageRequest(id=str(uuid.uuid4()), params=params(text))
        chunks = [chunk async for chunk in self._client.send_message_streaming(request)]
        return {"kinds": [chunk.root.result.kind for chunk in chunks]}

    async def context(self, first: str, second: str) -> dict[str, Any]:
        task = await self._turn(first)
        return {"text": reply(await self._turn(second, contextId=task["contextId"]))}

    async def answer(self, text: str, answer: str) -> dict[str, Any]:
        asked = await self._turn(text)
        done = await self._turn(answer, taskId=asked["id"])
        return {"question": texts(asked["status"]["message"]["parts"]), "text": reply(done)}

    async def attach(self, text: str, name: str, content: str) -> dict[str, Any]:
        file = {"bytes": encoded(content), "name": name, "mimeType": "application/octet-stream"}
        return {"text": reply(await self._turn(text, {"kind": "file", "file": file}))}

    async def receive(self, text: str) -> dict[str, Any]:
        parts = [p for a in (await self._turn(text))["artifacts"] for p in a["parts"]]
        files = [part["file"] for part in parts if part["kind"] == "file"]
        return {"files": {file["name"]: decoded(file["bytes"]) for file in files}}

    async def fail(self, text: str) -> dict[str, Any]:
        return {"text": texts((await self._turn(text))["status"]["message"]["parts"])}

    async def complete(self, text: str) -> dict[str, Any]:
        response = await self._complete(text, stream=False)
        return {"text": response.choices[0].message.content}

    async def complete_streaming(self, text: str) -> dict[str, Any]:
        stream = await self._complete(text, stream=True)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        return {"pieces": pieces, "text": "".join(pieces)}

    async def _complete(self, text: str, stream: bool) -> Any:
        return await litellm.acompletion(
            model="a2a/hermes",
            api_base=self._url,
            messages=[{"role": "user", "content": text}],
            stream=stream,
        )

    async def _turn(self, text: str, *parts: Any, **ids: str) -> dict[str, Any]:
        request = SendMessageRequest(id=str(uuid.uuid4()), params=params(text, *parts, **ids))
        response = await self._client.send_message(request)
        return response.model_dump(mode="json", by_alias=True)["result"]


def params(text: str, *parts: Any, **ids: str) -> MessageSendParams:
    message = {
        "kind": "message",
        "role": "user",
        "messageId": str(uuid.uuid4()),
        "parts": [{"kind": "text", "text": text}, *parts],
        **ids,
    }
    return MessageSendParams(message=message)


def reply(task: dict[str, Any]) -> str:
    return "".join(texts(artifact["parts"]) for artifact in task["artifacts"] or [])


def texts(parts: list[dict[str, Any]]) -> str:
    return "".join(p["text"] if p["kind"] == "text" else f"<{p['kind']}>" for p in parts)


drive(Driver)
