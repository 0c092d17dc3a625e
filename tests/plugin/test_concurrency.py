"""How many turns one real Hermes runs at once, and what its first turn costs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from molecule_hermes.hermes.demo_model import demo_model
from molecule_hermes.plugin.settings import PLATFORM
from molecule_hermes.transports.base import Transport
from molecule_hermes.transports.chat.transport import ChatTransport
from molecule_hermes.transports.plugin.transport import PluginTransport
from molecule_hermes.turns.model import Completed, Turn, TurnEvent
from tests.support.gateway import API_KEY, SECRET, Hermes, running_hermes
from tests.support.serving import serve
from tests.support.waiting import until

pytestmark = pytest.mark.hermes

TURNS = 40


@dataclass
class Gate:
    """A model that answers nobody before it was asked by all."""

    url: str = ""
    waiting: int = 0
    open: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def model_behind_gate() -> AsyncIterator[Gate]:
    gate = Gate()
    async with demo_model() as behind, aiohttp.ClientSession() as http:

        async def pass_on(request: web.Request) -> web.StreamResponse:
            body = await request.read()
            if b"all at once" in body and b'"tools"' in body:
                gate.waiting += 1
                await gate.open.wait()
            url = behind.removesuffix("/v1") + request.path
            headers = {"Content-Type": "application/json"}
            async with http.request(request.method, url, data=body, headers=headers) as answer:
                text = await answer.read()
                return web.Response(
                    body=text, status=answer.status, content_type=answer.content_type
                )

        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_route("*", "/{path:.*}", pass_on)
        async with serve(app) as url:
            gate.url = f"{url}/v1"
            yield gate


def plugin_of(hermes: Hermes) -> Transport:
    return PluginTransport(hermes.url(""), secret=SECRET)


def chat_of(hermes: Hermes) -> Transport:
    return ChatTransport(f"http://127.0.0.1:{hermes.api_port}/v1", API_KEY)


async def run(transport: Transport, name: str) -> TurnEvent:
    asked = Turn(name, "alice", name, "t", "all at once")
    return [event async for event in transport.run(asked)][-1]


@pytest.mark.parametrize("transport_of", [plugin_of, chat_of])
async def test_as_many_turns_run_at_once_as_the_setting_says(
    tmp_path: Path, transport_of: type[Transport]
) -> None:
    async with AsyncExitStack() as stack:
        gate = await stack.enter_async_context(model_behind_gate())
        over = {
            "model": {"base_url": gate.url},
            "platforms": {PLATFORM: {"extra": {"max_threads": 64}}},
            "gateway": {"api_server": {"max_concurrent_runs": 64}},
        }
        hermes = await stack.enter_async_context(running_hermes(tmp_path, over=over))
        transport = await stack.enter_async_context(transport_of(hermes))
        async with asyncio.timeout(150), asyncio.TaskGroup() as turns:
            running = [turns.create_task(run(transport, f"m-{n}")) for n in range(TURNS)]
            # With fewer threads than turns this is never reached.
            await until(lambda: gate.waiting >= TURNS, 100)
            gate.open.set()
        assert [type(turn.result()) for turn in running] == [Completed] * TURNS
