"""Between the bridge and the plugin: a test can stop either side's requests at a chosen moment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, quote, urlsplit

import aiohttp
from aiohttp import web

from molecule_hermes.wire import INBOUND_PATH
from tests.support.serving import serve

Step = Callable[[], Awaitable[None]]


async def _nothing() -> None:
    pass


class WireProxy:
    """Passes everything on. The steps are awaited at their moments; each happens once."""

    def __init__(self, plugin: str) -> None:
        self.url = ""
        self._plugin = plugin
        self.before_inbound: Step = _nothing
        """A message is about to reach the plugin. What the step raises drops it."""
        self.after_inbound: Step = _nothing
        """The plugin has a message; the bridge does not know yet."""
        self.before_final: Step = _nothing
        """The bridge is about to get a final."""
        self.after_final: Step = _nothing
        """The bridge has acknowledged a final."""

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    def application(self) -> web.Application:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_post("/to-bridge", self._to_bridge)
        app.router.add_route("*", "/{path:.*}", self._to_plugin)
        return app

    async def _to_plugin(self, request: web.Request) -> web.Response:
        body = await request.read()
        inbound = request.path == INBOUND_PATH
        if b"callback_url" in body:
            data = json.loads(body)
            data["callback_url"] = f"{self.url}/to-bridge?url={quote(data['callback_url'])}"
            body = json.dumps(data).encode()
        if inbound:
            await self._take("before_inbound")
        response = await self._forward(request, self._plugin + request.path, body)
        if inbound:
            await self._take("after_inbound")
        return response

    async def _to_bridge(self, request: web.Request) -> web.Response:
        body = await request.read()
        (url,) = parse_qs(request.query_string)["url"]
        final = b'"type": "final"' in body
        if final:
            await self._take("before_final")
        response = await self._forward(request, url, body)
        if final:
            await self._take("after_final")
        return response

    async def _take(self, name: str) -> None:
        step: Step = getattr(self, name)
        setattr(self, name, _nothing)
        await step()

    async def _forward(self, request: web.Request, url: str, body: bytes) -> web.Response:
        kept = ("X-Molecule-A2A-Secret", "Content-Type")
        headers = {name: request.headers[name] for name in kept if name in request.headers}
        try:
            async with (
                aiohttp.ClientSession() as http,
                http.request(request.method, url, data=body, headers=headers) as response,
            ):
                said = await response.read()
                kind = response.content_type
                return web.Response(body=said, status=response.status, content_type=kind)
        except aiohttp.ClientError:
            if request.transport is not None:
                request.transport.abort()
            raise asyncio.CancelledError from None


@asynccontextmanager
async def wire_proxy(plugin: str) -> AsyncIterator[WireProxy]:
    proxy = WireProxy(plugin)
    async with serve(proxy.application()) as url:
        proxy.url = url
        yield proxy
