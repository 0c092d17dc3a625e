"""The bridge below a path of nginx, with the configuration that docs/deploy.md shows."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import httpx
import pytest
from a2a.types import GetTaskRequest

from molecule_hermes.client.connection import message
from molecule_hermes.errors import Unreachable
from molecule_hermes.turns.model import Completed, TextDelta
from tests.conftest import StartBridge
from tests.server.test_bridge import CARD, rpc, text_message
from tests.support.fakes import ScriptedTransport
from tests.support.nginx import nginx
from tests.support.peers import Turn, ask, peer
from tests.support.serving import free_port

DOCUMENT = Path(__file__).parents[2] / "docs" / "deploy.md"
TOKEN = "alice-token-0123456789"


def documented() -> str:
    """The `location` block of the documentation."""
    found = re.search(r"```nginx\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert found, "docs/deploy.md shows no nginx configuration"
    assert "location /hermes/ {" in found[1]
    return found[1]


LOCATIONS = {
    "documented": documented(),
    "bare": "location /hermes/ { proxy_pass http://127.0.0.1:8000/; }",
    "prefix kept": "location /hermes/ { proxy_pass http://127.0.0.1:8000; }",
}


def location(name: str, local_url: str) -> str:
    assert "http://127.0.0.1:8000" in LOCATIONS[name]
    return LOCATIONS[name].replace("http://127.0.0.1:8000", local_url)


@pytest.mark.parametrize("public_path", ["/hermes/", "/hermes"])
@pytest.mark.parametrize("name", LOCATIONS)
async def test_peers_reach_every_binding_through_nginx(
    bridge: StartBridge, name: str, public_path: str
) -> None:
    port = free_port()
    public_url = f"http://localhost:{port}{public_path}"
    async with (
        bridge(ScriptedTransport(Completed("pong")), PUBLIC_URL=public_url) as b,
        nginx(location(name, b.local_url), port) as proxy,
    ):
        async with httpx.AsyncClient() as http:
            if name != "prefix kept":
                card = (await http.get(f"{proxy}/hermes{CARD}")).json()
                urls = {i["protocolBinding"]: i["url"] for i in card["supportedInterfaces"]}
                assert urls == {"JSONRPC": f"{proxy}/hermes/", "HTTP+JSON": f"{proxy}/hermes"}
            answered = await http.post(
                f"{proxy}/hermes/",
                json=rpc("SendMessage", text_message()),
                headers={"A2A-Version": "1.0"},
            )
            assert answered.json()["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        for binding in ("JSONRPC", "HTTP+JSON"):
            for version in ("1.0", "0.3"):
                for streaming in (True, False):
                    async with peer(
                        b.local_url, binding=binding, version=version, streaming=streaming
                    ) as client:
                        turn = await ask(client, "ping")
                        task = await client.get_task(GetTaskRequest(id=turn.task_id))
                    assert turn.text == "pong"
                    assert task.id == turn.task_id


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
@pytest.mark.parametrize("name", ["documented", "bare"])
async def test_updates_pass_nginx_as_they_come(
    bridge: StartBridge, name: str, binding: str
) -> None:
    port, go = free_port(), asyncio.Event()
    transport = ScriptedTransport(TextDelta("first "), go, Completed("first second"))
    public_url = f"http://localhost:{port}/hermes/"
    async with (
        bridge(transport, PUBLIC_URL=public_url) as b,
        nginx(location(name, b.local_url), port) as proxy,
        peer(f"{proxy}/hermes", binding=binding) as client,
    ):
        turn, stream = Turn(), client.send_message(message("hi"))
        async with asyncio.timeout(20):
            while not turn.updates:
                turn.add(await anext(stream))
        go.set()
        async for event in stream:
            turn.add(event)
    assert turn.text == "first second"


async def test_a_large_file_and_a_token_pass_the_documented_nginx(bridge: StartBridge) -> None:
    transport = ScriptedTransport(Completed("x"))
    async with (
        bridge(transport, PEER_TOKENS=f"alice:{TOKEN}") as b,
        nginx(location("documented", b.local_url)) as proxy,
        httpx.AsyncClient(base_url=f"{proxy}/hermes", headers={"A2A-Version": "1.0"}) as http,
    ):
        request = text_message("x" * 4 * 2**20)
        refused = await http.post("/message:send", json=request)
        assert refused.status_code == 401
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        answered = await http.post("/message:send", json=request, headers=bearer)
        assert answered.json()["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert transport.turns[0].peer == "alice"


async def test_a_caller_behind_the_documented_nginx_is_not_taken_for_a_local_one(
    bridge: StartBridge,
) -> None:
    async with (
        bridge(ScriptedTransport(), PUBLIC_URL="http://localhost/hermes/") as b,
        nginx(location("documented", b.local_url)) as proxy,
        httpx.AsyncClient() as http,
    ):
        b.health.add("part", unreachable)
        local = (await http.get(f"{b.local_url}/readyz")).text
        proxied = (await http.get(f"{proxy}/hermes/readyz")).text
    assert "127.0.0.1:9" in local
    assert "127.0.0.1:9" not in proxied


async def unreachable() -> None:
    raise Unreachable("nothing listens at http://127.0.0.1:9/secret")
