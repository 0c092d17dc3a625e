"""Attacks on what agents ask of other agents: by tools of the agent, and by the other agent."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from pydantic import SecretStr

from molecule_hermes.agents.outbound import remote_task
from molecule_hermes.config import PeerConfig
from molecule_hermes.transports.plugin.callback_server import ReplyServer
from molecule_hermes.transports.plugin.replies import Replies
from molecule_hermes.wire import OUTBOUND_PATH, SECRET_HEADER, Called, PeerCall
from tests.support.outbound import asking
from tests.support.sdk_agent import TOKEN, sdk_agent
from tests.support.serving import serve
from tests.support.waiting import until

SECRET = "the-shared-secret-0123456789"
CALL = PeerCall("mine", "c", "delegate", "other", "hi").to_json()


class Calls:
    """Notes what is asked in a turn."""

    def __init__(self) -> None:
        self.asked: list[PeerCall] = []

    async def call(self, call: PeerCall) -> Called:
        self.asked.append(call)
        return Called({"status": "completed"})

    async def close(self, *, completed: bool) -> None:
        pass


@asynccontextmanager
async def reply_server(calls: Calls | None, secret: str = SECRET) -> AsyncIterator[str]:
    replies = Replies()
    async with ReplyServer(replies, "127.0.0.1", 0, secret) as server:
        with replies.register("mine") as reply, replies.register("of another peer"):
            reply.calls = calls
            yield server.url.replace("/a2a/reply", OUTBOUND_PATH)


async def post(url: str, body: Any = CALL, **headers: str) -> int:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with (
        aiohttp.ClientSession() as http,
        http.post(url, data=data, headers=headers) as answer,
    ):
        await answer.read()
        return answer.status


async def test_only_who_has_the_secret_asks_and_only_in_a_turn_that_may() -> None:
    calls = Calls()
    known = {SECRET_HEADER: SECRET}
    async with reply_server(calls) as url:
        assert await post(url) == 401
        assert await post(url, **{SECRET_HEADER: SECRET[:-1]}) == 401
        assert await post(url, {**CALL, "message_id": "of another peer"}, **known) == 404
        assert await post(url, {**CALL, "message_id": "unknown"}, **known) == 404
        assert await post(url.partition("?")[0], **known) == 404
        assert await post(url[:-1], **known) == 404
        for body in (
            b"",
            b"[]",
            b"[" * 100_000,
            {**CALL, "action": "exec"},
            {"message_id": "mine"},
        ):
            assert await post(url, body, **known) == 400
        assert calls.asked == []
        assert await post(url, **known) == 200
    assert len(calls.asked) == 1


async def test_without_a_secret_nobody_asks() -> None:
    calls = Calls()
    async with reply_server(calls, secret="") as url:
        assert await post(url) == 401
        assert await post(url, **{SECRET_HEADER: ""}) == 401
    assert calls.asked == []


@pytest.mark.parametrize(
    "name",
    ["http://169.254.169.254", "other:x", "../other", "", "OTHER", "other ", "x" * 200],
)
async def test_only_configured_agents_are_asked(name: str) -> None:
    async with sdk_agent() as agent, asking(PeerConfig("other", url=agent.url)) as turn:
        found = await turn.ask(name, "hello")
        assert found["error"]["kind"] == "forbidden"
        assert not agent.messages


def card(url: str, **more: Any) -> dict[str, Any]:
    return {
        "name": "n",
        "description": "d",
        "version": "1",
        "supportedInterfaces": [
            {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        ],
        "capabilities": {"streaming": True},
        "defaultInputModes": [],
        "defaultOutputModes": [],
        "skills": [],
        **more,
    }


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def agent(
    rpc: Handler | None = None, its_card: Handler | None = None
) -> AsyncIterator[PeerConfig]:
    """A hostile agent, called with a token."""

    async def plain_card(request: web.Request) -> web.Response:
        return web.json_response(card(f"{request.url.origin()}/rpc"))

    async def nothing(request: web.Request) -> web.Response:
        raise AssertionError("nobody calls this")

    app = web.Application()
    app.router.add_get("/.well-known/agent-card.json", its_card or plain_card)
    app.router.add_route("*", "/{rest:.*}", rpc or nothing)
    async with serve(app) as url:
        yield PeerConfig("other", url=url, bearer=SecretStr(TOKEN))


async def asked(peer: PeerConfig, within: float = 20, **variables: Any) -> Mapping[str, Any]:
    async with asyncio.timeout(within), asking(peer, **variables) as turn:
        return await turn.ask("other", "hello")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("of_card", [True, False], ids=["card", "answer"])
async def test_a_redirect_is_not_followed(status: int, of_card: bool) -> None:
    seen: list[str] = []

    async def other(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization", ""))
        return web.json_response({})

    async def redirect(request: web.Request) -> web.Response:
        return web.Response(status=status, headers={"Location": f"{elsewhere}/.well-known/x"})

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", other)
    async with serve(app) as elsewhere:
        made = agent(its_card=redirect) if of_card else agent(redirect)
        async with made as peer:
            found = await asked(peer)
    assert found["error"]["kind"] == "unreachable"
    assert "redirects" in found["error"]["message"]
    assert seen == []


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest",
        "http://localhost:1/rpc",
        "https://127.0.0.1/rpc",
        "file:///etc/passwd",
        "http://[",
        "//x",
        "",
    ],
)
async def test_a_card_that_points_elsewhere_is_refused(url: str) -> None:
    async def pointing(request: web.Request) -> web.Response:
        return web.json_response(card(url))

    async with agent(its_card=pointing) as peer:
        found = await asked(peer)
    assert found["error"]["kind"] == "unreachable"
    assert "not at the configured URL" in found["error"]["message"]


async def test_of_a_card_that_points_here_and_elsewhere_only_the_interface_here_is_used() -> None:
    called: list[str] = []

    async def rpc(request: web.Request) -> web.Response:
        called.append(request.path)
        return web.Response(status=500)

    async def pointing(request: web.Request) -> web.Response:
        found = card("http://10.0.0.1:1/rpc")
        here = card(f"{request.url.origin()}/here")["supportedInterfaces"]
        found["supportedInterfaces"] += here
        return web.json_response(found)

    async with agent(rpc, pointing) as peer:
        found = await asked(peer)
    assert called == ["/here"]
    assert found["error"]["kind"] == "unreachable"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[" * 500_000,
        b'{"name": 7}',
        b'{"skills": "x"}',
        b'{"supportedInterfaces": [{"url": []}]}',
        b'{"capabilities": []}',
        b'{"securitySchemes": []}',
        b'{"skills": [null]}',
        b'{"x": "' + b"x" * 2**21 + b'"}',
        '{"name": "\ud800"}'.encode("utf-8", "surrogatepass"),
    ],
    ids=lambda body: body[:20].decode("latin-1"),
)
async def test_a_card_that_is_none_is_a_failure(body: bytes) -> None:
    async def odd(request: web.Request) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    async with agent(its_card=odd) as peer:
        found = await asked(peer)
    assert found["status"] == "error"
    assert found["error"]["kind"] in ("unreachable", "internal"), found


async def test_a_compressed_answer_is_refused() -> None:
    async def bomb(request: web.Request) -> web.Response:
        return web.Response(
            body=gzip.compress(b"0" * 50_000_000), headers={"Content-Encoding": "gzip"}
        )

    async with agent(its_card=bomb) as peer:
        found = await asked(peer)
    assert "compressed" in found["error"]["message"]


async def test_a_card_that_never_comes_is_waited_for_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("molecule_hermes.agents.outbound.cards._TIMEOUT", 0.3)

    async def never(request: web.Request) -> web.Response:
        await asyncio.sleep(60)
        raise AssertionError

    async with agent(its_card=never) as peer:
        found = await asked(peer)
    assert found["error"]["kind"] == "timeout"


async def _endless(request: web.Request, piece: Callable[[int], bytes]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    number = 0
    while True:
        await response.write(piece(number))
        number += 1


async def test_an_answer_without_end_is_ended() -> None:
    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while True:
            await response.write(b": still there\n\n")
            await asyncio.sleep(0.05)

    async with agent(drip) as peer:
        found = await asked(peer, CALL_TIMEOUT=1)
    assert found["error"]["kind"] == "timeout"


async def test_an_endless_line_is_ended() -> None:
    async def line(request: web.Request) -> web.StreamResponse:
        return await _endless(request, lambda number: b"data: " + b"x" * 2**20)

    async with agent(line) as peer:
        found = await asked(peer)
    assert found["status"] == "error"
    assert "more than" in found["error"]["message"]


async def test_no_cookie_of_an_agent_is_kept() -> None:
    seen: list[str] = []

    async def rpc(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Cookie", ""))
        return web.Response(status=500, headers={"Set-Cookie": "mark=1; Path=/"})

    async with agent(rpc) as peer, asking(peer) as turn:
        await turn.ask("other", "one")
        await turn.ask("other", "two")
    assert seen == ["", ""]


async def test_a_huge_answer_is_refused_and_the_bridge_goes_on() -> None:
    async with sdk_agent() as other:
        peer = PeerConfig("other", url=other.url, bearer=SecretStr(TOKEN))
        async with asking(peer) as turn:
            found = await turn.ask("other", "huge 40")
            assert found["status"] == "error", str(found)[:500]
            assert (await turn.ask("other", "hello"))["status"] == "completed"


async def test_many_artifacts_are_bounded() -> None:
    task = remote_task.RemoteTask()
    from a2a.types import StreamResponse

    for number in range(1000):
        event = StreamResponse()
        event.artifact_update.artifact.artifact_id = str(number)
        event.artifact_update.artifact.parts.add(text="x")
        task.add(event)
    assert len(list(task.parts)) == 256


async def test_an_agent_cannot_have_another_task_canceled() -> None:
    """The id that counts is the first one that it named."""
    canceled: list[str] = []

    async def rpc(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if body["method"] == "CancelTask":
            canceled.append(body["params"]["id"])
            return web.json_response({"jsonrpc": "2.0", "id": body["id"], "result": {}})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for name in ("own", "another"):
            update = {"taskId": name, "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}}
            event = {"jsonrpc": "2.0", "id": body["id"], "result": {"statusUpdate": update}}
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await asyncio.sleep(60)
        return response

    async with agent(rpc) as peer, asking(peer) as turn:
        waiting = asyncio.create_task(turn.call("delegate", "other", "hi", call_id="one"))
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            while not turn.calls.running:
                await asyncio.sleep(0.01)
        await turn.call("stop", call_id="one")
        await waiting
    assert canceled == ["own"]


async def test_a_flood_of_calls_that_do_not_count_is_bounded() -> None:
    go_on = asyncio.Event()

    async def card(request: web.Request) -> web.Response:
        await go_on.wait()
        return web.Response(status=404)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", card)
    async with serve(app) as url, asking(PeerConfig("other", url=url)) as turn:
        calls = [asyncio.create_task(turn.call("list")) for _ in range(500)]
        await until(lambda: sum(call.done() for call in calls) >= 500 - 16)
        refused = [call.result().result for call in calls if call.done()]
        go_on.set()
        await asyncio.gather(*calls)
    assert {result["error"]["kind"] for result in refused} == {"busy"}
