"""The older plugin `hermes-platform-molecule-a2a`, as far as a bridge sees it.

It knows two paths. Health is `ok` alone, a message is accepted with 200, and the answer comes in
one callback without a type.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from molecule_hermes.wire import HEALTH_PATH, INBOUND_PATH, SECRET_HEADER
from tests.support.serving import serve

__all__ = ["OlderPlugin", "older_plugin"]


@dataclass
class OlderPlugin:
    """Answers every message with "You said: …", once `may_answer` is set."""

    secret: str
    url: str = ""
    received: list[dict[str, Any]] = field(default_factory=list)
    responses: list[dict[str, Any]] = field(default_factory=list)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    _answering: set[asyncio.Task[None]] = field(default_factory=set)

    async def health(self, request: web.Request) -> web.Response:
        return web.json_response({"ok": True})

    async def inbound(self, request: web.Request) -> web.Response:
        if request.headers.get(SECRET_HEADER) != self.secret:
            return web.json_response({"ok": False}, status=401)
        body = await request.json()
        self.received.append(body)
        self._answering.add(asyncio.create_task(self._answer(body)))
        return web.json_response({"ok": True, "queued": True})

    async def _answer(self, body: dict[str, Any]) -> None:
        await self.may_answer.wait()
        reply = {
            "chat_id": body["chat_id"],
            "content": f"You said: {body['content']}",
            "reply_to": body["message_id"],
            "metadata": {},
        }
        headers = {SECRET_HEADER: self.secret}
        async with (
            aiohttp.ClientSession(headers=headers) as http,
            http.post(body["callback_url"], json=reply) as response,
        ):
            self.responses.append(await response.json())

    async def close(self) -> None:
        for task in self._answering:
            task.cancel()
        await asyncio.gather(*self._answering, return_exceptions=True)


@asynccontextmanager
async def older_plugin(secret: str) -> AsyncIterator[OlderPlugin]:
    plugin = OlderPlugin(secret)
    plugin.may_answer.set()
    app = web.Application(client_max_size=2**26)
    app.router.add_get(HEALTH_PATH, plugin.health)
    app.router.add_post(INBOUND_PATH, plugin.inbound)
    async with serve(app) as url:
        plugin.url = url
        try:
            yield plugin
        finally:
            await plugin.close()
