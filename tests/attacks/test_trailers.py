"""Trailers do not become headers, and the parser does not collect data without limit."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import psutil
import pytest

from molecule_hermes.turns.model import Completed
from tests.conftest import StartBridge
from tests.server.test_bridge import rpc, text_message
from tests.support.bridge_process import bridge_process
from tests.support.fakes import ScriptedTransport
from tests.support.raw_http import AUTHORIZATION, HEAD, TOKENS, connected, get, post, status_of
from tests.telemetry.test_metrics import figures

BODY = json.dumps(rpc("SendMessage", text_message())).encode()
CHUNKED = b"POST / HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n%s\r\n"
CHUNK = b"%x\r\n%s\r\n" % (len(BODY), BODY)
MIB = 2**20


async def test_a_token_in_a_trailer_authenticates_nobody(bridge: StartBridge) -> None:
    transport = ScriptedTransport(Completed("x"))
    async with bridge(transport, PEER_TOKENS=TOKENS) as b, connected(b.url) as peer:
        # In one piece, so that the trailer is parsed before the request is looked at.
        await peer.send(CHUNKED % b"" + CHUNK + b"0\r\n" + AUTHORIZATION + b"\r\n")
        answered = await peer.closed()
    assert b" 200 " not in answered
    assert transport.turns == []


async def test_a_trailer_does_not_become_a_header_of_the_next_request(bridge: StartBridge) -> None:
    transport = ScriptedTransport(Completed("x"))
    async with bridge(transport, PEER_TOKENS=TOKENS) as b, connected(b.url) as peer:
        await peer.send(CHUNKED % b"" + CHUNK + b"0\r\n" + AUTHORIZATION + b"\r\n")
        await peer.send(post("/", BODY))
        answered = await peer.closed()
    assert b" 200 " not in answered
    assert transport.turns == []


async def test_a_trailer_closes_the_connection_of_a_known_peer_too(
    bridge: StartBridge,
) -> None:
    transport = ScriptedTransport(Completed("x"))
    async with bridge(transport, PEER_TOKENS=TOKENS) as b:
        async with connected(b.url) as peer:
            await peer.send(CHUNKED % AUTHORIZATION + CHUNK + b"0\r\nX: y\r\n\r\n")
            assert await peer.closed() == b""
        seen = await figures(b.url, TOKENS.partition(":")[2])
    assert seen['closed_connections_total{reason="trailers"}'] == 1
    assert transport.turns == []


async def test_a_chunked_request_without_trailers_is_answered(bridge: StartBridge) -> None:
    async with bridge(ScriptedTransport(Completed("x")), PEER_TOKENS=TOKENS) as b:
        whole = CHUNKED % AUTHORIZATION + CHUNK + b"0\r\n\r\n"
        assert await status_of(b.url, whole) == 200
        async with connected(b.url) as peer:
            for i in range(len(whole)):
                await peer.send(whole[i : i + 1])
            assert (await peer.answer()).status == 200


ENDLESS = {
    "trailers": (CHUNKED % b"" + b"0\r\n", b"X-Filler: aaaaaaaa\r\n" * 3000),
    "one trailer": (CHUNKED % b"" + b"0\r\nX: ", b"a" * 60_000),
    "chunk extension": (CHUNKED % b"" + b"1;", b"a" * 60_000),
    "pipeline": (b"", get("/") * 500),
    "bare pipeline": (b"", b"GET / HTTP/1.1\r\n\r\n" * 4000),
}


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_an_endless_request_is_cut_off_and_takes_no_memory(tmp_path: Path, loop: str) -> None:
    async with bridge_process(tmp_path, loop=loop, PEER_TOKENS=TOKENS, STORE="memory") as process:
        memory = psutil.Process(process.pid).memory_info
        assert await status_of(process.url, get("/livez")) == 200
        before = memory().rss
        grown = {}
        for name, (start, piece) in ENDLESS.items():
            await attack(process.url, start, piece)
            grown[name] = (memory().rss - before) // MIB
        assert max(grown.values()) < 30, grown


async def attack(url: str, start: bytes, piece: bytes) -> None:
    async with connected(url) as attacker:
        await attacker.send(start)
        closing = asyncio.create_task(attacker.closed(60))
        sent = 0
        while not closing.done() and sent < 12 * MIB:
            await attacker.send(piece)
            sent += len(piece)
            # The loop goes on serving others meanwhile.
            async with asyncio.timeout(20):
                assert await status_of(url, get("/livez")) == 200
        await closing


async def test_a_few_pipelined_requests_are_answered_in_order(bridge: StartBridge) -> None:
    async with bridge(ScriptedTransport()) as b, connected(b.url) as peer:
        await peer.send(get("/livez") + get("/metrics") + get("/livez"))
        assert [(await peer.answer()).status for _ in range(3)] == [200, 200, 200]


async def test_a_websocket_is_not_opened(bridge: StartBridge) -> None:
    upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    key = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    async with bridge(ScriptedTransport(), PEER_TOKENS=TOKENS) as b:
        assert await status_of(b.url, get("/tasks", upgrade, key)) == 401
        assert await status_of(b.url, get("/livez", upgrade, key)) == 200
