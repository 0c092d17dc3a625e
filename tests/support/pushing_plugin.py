"""A plugin that makes deliveries as a test says, also in ways that the real one would not."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
from aiohttp import web

from molecule_hermes.wire import SECRET_HEADER
from tests.support.serving import serve

__all__ = ["PushingPlugin", "pushing_plugin"]

SECRET = "shared-secret-0123456789"


class PushingPlugin:
    """Answers each message with "pong", and calls the bridge that takes deliveries."""

    def __init__(self) -> None:
        self.url = ""
        self.instance = "one"
        self.checks: list[dict[str, Any]] = []
        self.inbound: list[dict[str, Any]] = []
        self.attached: list[dict[str, Any]] = []
        self.posts: list[tuple[str, dict[str, Any]]] = []
        """Cancels, answers and steering texts."""
        self.knows_deliveries = True
        self.callback_url = ""
        """Of the bridge that takes deliveries."""
        self.http = httpx.AsyncClient(timeout=20)

    @property
    def chat(self) -> str:
        """The chat of the last message."""
        return str(self.inbound[-1]["chat_id"])

    @property
    def takes(self) -> bool:
        return bool(self.callback_url)

    async def health(self, request: web.Request) -> web.Response:
        return web.json_response({"ok": True, "ready": True, "instance": self.instance})

    async def check(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.checks.append(body)
        takes = self.knows_deliveries and bool(body.get("deliveries"))
        self.callback_url = body["callback_url"] if takes else ""
        return web.json_response({"ok": True, "toolsets": True, "deliveries": takes})

    async def take(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.inbound.append(body)
        event = self.event(body["chat_id"], body["message_id"], 0, "pong", type="final")
        await self.send(event, url=body["callback_url"])
        return web.json_response({"ok": True, "instance": self.instance}, status=202)

    async def attach(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.attached.append(body)
        known = {"ok": True, "instance": self.instance, "message_id": body["message_id"]}
        return web.json_response(known | {"questions": []})

    async def post(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.posts.append((request.path.rpartition("/")[2], body))
        return web.json_response({"ok": True, "accepted": True})

    def event(self, chat: str, name: str, seq: int, text: str = "", **about: Any) -> dict[str, Any]:
        metadata = {"seq": seq, **about}
        return {"chat_id": chat, "content": text, "reply_to": name, "metadata": metadata}

    def opening(self, name: str, chat: str = "", **about: Any) -> dict[str, Any]:
        push = {"type": "push", "push_id": name, "cause": "background", **about}
        return self.event(chat or self.chat, name, 0, **push)

    async def send(self, *events: dict[str, Any], url: str = "") -> dict[str, Any]:
        body = events[0] if len(events) == 1 else {"batch": list(events)}
        headers = {SECRET_HEADER: SECRET}
        answer = await self.http.post(url or self.callback_url, json=body, headers=headers)
        found: dict[str, Any] = answer.json()
        return {"status": answer.status_code, **found}

    async def deliver(self, name: str, text: str, chat: str = "", **about: Any) -> dict[str, Any]:
        """A whole delivery in one request."""
        chat = chat or self.chat
        end = self.event(chat, name, 2, text, type="final", status="completed")
        said = self.event(chat, name, 1, text, type="delta")
        return await self.send(self.opening(name, chat, **about), said, end)


@contextlib.asynccontextmanager
async def pushing_plugin() -> AsyncIterator[PushingPlugin]:
    plugin = PushingPlugin()
    app = web.Application(client_max_size=2**26)
    app.router.add_get("/a2a/health", plugin.health)
    app.router.add_post("/a2a/check", plugin.check)
    app.router.add_post("/a2a/inbound", plugin.take)
    app.router.add_post("/a2a/attach", plugin.attach)
    for path in ("cancel", "answer", "steer"):
        app.router.add_post(f"/a2a/{path}", plugin.post)
    async with serve(app) as url:
        plugin.url = url
        yield plugin
        await plugin.http.aclose()
