"""A message whose turn may have run is never called retryable."""

from __future__ import annotations

import asyncio

from a2a.types import Part
from aiohttp import web

from molecule_hermes.client.connection import message
from molecule_hermes.turns.model import Completed, TextDelta
from tests.conftest import StartBridge
from tests.support.fakes import ScriptedTransport
from tests.support.peers import ask, peer, send
from tests.support.serving import serve
from tests.support.waiting import until


async def test_a_turn_that_may_have_run_is_not_retryable(bridge: StartBridge) -> None:
    transport = ScriptedTransport(TextDelta("half"), asyncio.Event(), Completed("never"))
    async with bridge(transport, DRAIN_TIMEOUT=0.1) as b, peer(b.url) as client:
        running = asyncio.create_task(ask(client, "pay the bill"))
        await until(lambda: transport.turns)
        async with asyncio.timeout(10):
            await b.__aexit__(None, None, None)
            turn = await running
    assert turn.failure["kind"] == "interrupted"
    assert turn.failure["retryable"] is False
    assert "may have run" in turn.failure["hint"]


async def test_a_turn_that_never_reached_hermes_is_retryable(bridge: StartBridge) -> None:
    asked = asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    app = web.Application()
    app.router.add_get("/file.txt", slow)
    transport = ScriptedTransport(Completed("never"))
    request = message("read this")
    limits = {"DRAIN_TIMEOUT": 0.1, "FILE_HOSTS": "127.0.0.1"}
    async with serve(app) as url, bridge(transport, **limits) as b, peer(b.url) as client:
        request.message.parts.append(Part(url=f"{url}/file.txt"))
        waiting = asyncio.create_task(send(client, request))
        async with asyncio.timeout(10):
            await asked.wait()
            await b.__aexit__(None, None, None)
            turn = await waiting
    assert transport.turns == []
    assert turn.failure["kind"] == "interrupted"
    assert turn.failure["retryable"] is True
    assert "had not begun" in turn.failure["hint"]
