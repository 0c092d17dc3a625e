"""A fake Hermes without latency, for both transports, and its replies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from molecule_hermes.plugin.outbox import Outbox
from molecule_hermes.wire import Callback, Delta, Final, Usage

KEY = "0123456789abcdef-bench"
SECRET = "a-shared-secret-of-the-bench"
TOKENS = {f"peer{i}": f"token-{i:02}-0123456789abcdef" for i in range(32)}


def reply_to(text: str) -> Iterator[str]:
    """Answers `deltas N` in N pieces, and anything else in one."""
    word, _, number = text.partition(" ")
    if word == "deltas":
        yield from (f"word{i} " for i in range(int(number)))
    else:
        yield f"echo: {text}"


class FakeHermes:
    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.held = 0
        self._outbox = Outbox(secret=SECRET)
        self._turns: set[asyncio.Task[None]] = set()
        self.chat_url = self.plugin_url = ""

    # Chat completions.

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        text = body["messages"][-1]["content"]
        await self._wait()
        if not body.get("stream"):
            message = {"role": "assistant", "content": "".join(reply_to(text))}
            return web.json_response({"choices": [{"message": message, "finish_reason": "stop"}]})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in reply_to(text):
            await response.write(_chunk({"content": piece}))
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        await response.write(_chunk({}, "stop", usage=usage) + b"data: [DONE]\n\n")
        return response

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": []})

    # The plugin.

    async def health(self, request: web.Request) -> web.Response:
        return web.json_response({"ok": True, "ready": True, "active": 0, "instance": "one"})

    async def inbound(self, request: web.Request) -> web.Response:
        turn = asyncio.create_task(self._turn(await request.json()))
        self._turns.add(turn)
        turn.add_done_callback(self._turns.discard)
        return web.json_response({"ok": True, "instance": "one"}, status=202)

    async def cancel(self, request: web.Request) -> web.Response:
        return web.json_response({"ok": False}, status=404)

    async def _turn(self, message: dict[str, Any]) -> None:
        """Sends each piece through the plugin's own outbox as soon as it is available."""
        await self._wait()
        chat, name, url = message["chat_id"], message["message_id"], message["callback_url"]
        journal = self._outbox.journals.begin(name, chat, url)
        pieces = list(reply_to(message["content"]))
        for piece in pieces:
            self._outbox.put(journal, Callback(chat, name, piece, Delta()))
            await asyncio.sleep(0)
        final = Final(usage=Usage(1, 1, 2, "fake"))
        self._outbox.put(journal, Callback(chat, name, "".join(pieces), final))

    async def _wait(self) -> None:
        self.held += 1
        try:
            await self.gate.wait()
        finally:
            self.held -= 1

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[FakeHermes]:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_post("/v1/chat/completions", self.completions)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/a2a/health", self.health)
        app.router.add_post("/a2a/inbound", self.inbound)
        app.router.add_post("/a2a/cancel", self.cancel)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        async with self._outbox:
            try:
                await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
                base = f"http://127.0.0.1:{runner.addresses[0][1]}"
                self.chat_url, self.plugin_url = f"{base}/v1", base
                yield self
            finally:
                await runner.cleanup()


def _chunk(delta: dict[str, str], finish: str | None = None, **more: Any) -> bytes:
    body = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}
    return b"data: " + json.dumps(body).encode() + b"\n\n"
