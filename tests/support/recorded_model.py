"""The demo model behind a proxy that records the requests of Hermes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from molecule_hermes.hermes.demo_model import demo_model
from tests.support.serving import serve


@dataclass
class RecordedModel:
    """The URL of the proxy and the bodies of all chat requests so far."""

    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    refuses: str = ""
    """A parameter that the provider does not know."""

    def tools(self) -> set[str]:
        """The names of the tools that were offered."""
        return {
            tool["function"]["name"]
            for request in self.requests
            for tool in request.get("tools") or ()
        }

    def prompts(self) -> str:
        """All system prompts, also those of auxiliary requests such as titles."""
        messages = [m for request in self.requests for m in request["messages"]]
        return "\n".join(str(m["content"]) for m in messages if m["role"] == "system")

    def results(self, tool: str) -> list[str]:
        """The results of all calls of a tool."""
        messages = [m for request in self.requests for m in request["messages"]]
        calls = [call for m in messages for call in m.get("tool_calls") or ()]
        ids = {call["id"] for call in calls if call["function"]["name"] == tool}
        return [str(m["content"]) for m in messages if m.get("tool_call_id") in ids]


@asynccontextmanager
async def recorded_model() -> AsyncIterator[RecordedModel]:
    """Starts the demo model and the proxy in front of it."""
    record = RecordedModel()
    async with demo_model() as behind, aiohttp.ClientSession() as http:

        async def pass_on(request: web.Request) -> web.StreamResponse:
            body = await request.read()
            if request.path.endswith("/chat/completions"):
                record.requests.append(await request.json())
                if record.refuses and record.refuses in record.requests[-1]:
                    why = f"Unknown parameter: {record.refuses}"
                    return web.json_response({"error": {"message": why}}, status=400)
            url = behind.removesuffix("/v1") + request.path
            headers = {"Content-Type": "application/json"}
            async with http.request(request.method, url, data=body, headers=headers) as answer:
                response = web.StreamResponse(status=answer.status)
                response.content_type = answer.content_type
                await response.prepare(request)
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                return response

        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_route("*", "/{path:.*}", pass_on)
        async with serve(app) as url:
            record.url = f"{url}/v1"
            yield record
