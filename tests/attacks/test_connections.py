"""Connections that are idle, stall or come in great numbers do not harm other clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from molecule_hermes.server.connections import TIME_LIMITS, ConnectionTable, Phase, network_of
from molecule_hermes.turns.model import Completed, TextDelta
from tests.conftest import StartBridge
from tests.server.test_bridge import CARD, rpc, text_message
from tests.support.bridge_process import bridge_process
from tests.support.fakes import ScriptedTransport
from tests.support.peers import ask, peer
from tests.support.raw_http import (
    AUTHORIZATION,
    HEAD,
    TOKEN,
    TOKENS,
    RawConnection,
    connect,
    connected,
    get,
    post,
    status_of,
)
from tests.support.waiting import until
from tests.telemetry.test_metrics import figures

SLACK = 8.0
HALF_A_HEAD = b"POST / HTTP/1.1\r\nHost: local"
NO_BODY = b"POST / HTTP/1.1\r\n" + HEAD + b"Content-Length: 1000\r\n"


def limits(monkeypatch: pytest.MonkeyPatch, **seconds: float) -> None:
    changed = TIME_LIMITS | {Phase(name): value for name, value in seconds.items()}
    monkeypatch.setattr(ConnectionTable.__init__, "__defaults__", (changed, 16))


@contextlib.asynccontextmanager
async def crowd(url: str, count: int, first: bytes = b"") -> AsyncIterator[list[RawConnection]]:
    """Many connections that send some bytes once, and then nothing."""
    connections: list[RawConnection] = []
    try:
        for _ in range(count):
            connections.append(await connect(url))
            if first:
                await connections[-1].send(first)
        yield connections
    finally:
        for connection in connections:
            connection.close()


async def until_figure(figure: str, value: float, url: str) -> None:
    async def reached() -> bool:
        return (await figures(url, TOKEN)).get(figure, 0) >= value

    await until(reached, every=0.05)


async def until_answered(url: str, request: bytes) -> None:
    """Waits until the response is 200."""

    async def answered() -> bool:
        with contextlib.suppress(OSError, EOFError):
            return await status_of(url, request) == 200
        return False

    await until(answered, every=0.05)


async def test_a_connection_has_ten_seconds_to_send_its_headers(
    bridge: StartBridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert TIME_LIMITS[Phase.HEAD] == 10
    limits(monkeypatch, head=2)
    async with bridge(ScriptedTransport(), PEER_TOKENS=TOKENS) as b, crowd(b.url, 4) as clients:
        began = time.monotonic()
        _, half, kept, dripping = clients
        await kept.send(get("/livez"))
        await kept.answer()
        for client in (half, kept):
            await client.send(HALF_A_HEAD)
        drips = asyncio.create_task(drip(dripping, HALF_A_HEAD + b"x" * 200))
        await asyncio.gather(*(client.closed(2 + SLACK) for client in clients[:3]))
        assert time.monotonic() - began > 1.5
        await asyncio.wait_for(drips, SLACK)
        seen = await figures(b.url, TOKEN)
    assert seen['closed_connections_total{reason="head_timeout"}'] == 4


async def drip(connection: RawConnection, data: bytes) -> None:
    """Sends a byte now and then, until the server closes."""
    closed = asyncio.create_task(connection.closed(60))
    for i in range(len(data)):
        await connection.send(data[i : i + 1])
        await asyncio.wait({closed}, timeout=0.1)
        if closed.done():
            return
    await closed


async def test_an_idle_connection_between_requests_is_kept_longer(
    bridge: StartBridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits(monkeypatch, head=0.2, idle=1)
    async with bridge(ScriptedTransport()) as b, connected(b.url) as client:
        for _ in range(2):
            await client.send(get("/livez"))
            assert (await client.answer()).status == 200
            with pytest.raises(TimeoutError):
                await client.closed(0.4)
        await client.closed(1 + SLACK)


@pytest.mark.parametrize("sent", [b"", b"{"], ids=["nothing", "a byte"])
async def test_a_refused_request_whose_body_stops_arriving_is_closed(
    bridge: StartBridge, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    limits(monkeypatch, linger=0.5)
    async with bridge(ScriptedTransport(), PEER_TOKENS=TOKENS) as b, connected(b.url) as client:
        await client.send(NO_BODY + b"\r\n" + sent)
        assert (await client.answer()).status == 401
        await drip(client, b"x" * 100)
        seen = await figures(b.url, TOKEN)
    assert seen['closed_connections_total{reason="linger_timeout"}'] == 1


async def test_a_late_body_is_read_and_the_connection_stays_open(
    bridge: StartBridge,
) -> None:
    async with bridge(ScriptedTransport(), PEER_TOKENS=TOKENS) as b, connected(b.url) as client:
        await client.send(NO_BODY + b"\r\n")
        assert (await client.answer()).status == 401
        await client.send(b"x" * 1000 + get("/livez"))
        assert (await client.answer()).status == 200


async def test_an_unread_body_has_a_time_limit_too(
    bridge: StartBridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits(monkeypatch, body=0.5)
    go = asyncio.Event()
    async with bridge(ScriptedTransport(go, Completed("x")), PEER_TOKENS=TOKENS) as b:
        async with connected(b.url) as client:
            await client.send(NO_BODY + AUTHORIZATION + b"\r\n{")
            await client.closed(0.5 + SLACK)
        seen = await figures(b.url, TOKEN)
        go.set()
    assert seen['closed_connections_total{reason="body_timeout"}'] == 1


async def test_a_client_that_does_not_read_is_closed(
    bridge: StartBridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits(monkeypatch, write=0.5)
    body = json.dumps(rpc("SendMessage", text_message())).encode()
    transport = ScriptedTransport(Completed("x" * 2**23))
    async with bridge(transport, PEER_TOKENS=TOKENS) as b:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            at = httpx.URL(b.url)
            await asyncio.to_thread(client.connect, (at.host, at.port))
            client.sendall(post("/", body, AUTHORIZATION))
            await until_figure('closed_connections_total{reason="write_timeout"}', 1, b.url)


async def test_a_turn_may_take_longer_than_any_of_these_limits(
    bridge: StartBridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits(monkeypatch, head=0.3, body=0.3, write=0.3, linger=0.3, idle=0.3)
    transport = ScriptedTransport(TextDelta("a"), 1.5, Completed("ab"))
    async with bridge(transport) as b, peer(b.url) as client:
        assert (await ask(client, "hi")).text == "ab"


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_1200_idle_connections_harm_nobody_with_1024_files(tmp_path: Path, loop: str) -> None:
    async with (
        bridge_process(
            tmp_path, files=1024, loop=loop, PEER_TOKENS=TOKENS, STORE="memory"
        ) as process,
        crowd(process.url, 400),
        crowd(process.url, 400, HALF_A_HEAD),
        crowd(process.url, 400, get("/livez")),
    ):
        assert await status_of(process.url, get("/livez")) == 200
        async with peer(process.url, token=TOKEN) as client:
            assert (await ask(client, "say hello")).text == "hello"
        seen = await figures(process.url, TOKEN)
        assert seen["open_connections"] <= 512
        assert seen['closed_connections_total{reason="evicted"}'] > 500


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_without_file_descriptors_the_bridge_neither_spins_nor_stops(
    tmp_path: Path, loop: str
) -> None:
    """The limit is higher than the number of file descriptors, so that accept() fails."""
    async with bridge_process(
        tmp_path, files=150, loop=loop, STORE="memory", MAX_CONNECTIONS=5000
    ) as process:
        async with crowd_of_sockets(process.url, 400):
            used = psutil.Process(process.pid)
            before = sum(used.cpu_times()[:2])
            await asyncio.sleep(1)  # measures what the process does while nothing happens
            assert sum(used.cpu_times()[:2]) - before < 0.7
        await until_answered(process.url, get("/livez"))
        async with peer(process.url) as client:
            assert (await ask(client, "say hello")).text == "hello"


@contextlib.asynccontextmanager
async def crowd_of_sockets(url: str, count: int) -> AsyncIterator[None]:
    """Connections that the server may be unable to accept."""
    at = httpx.URL(url)
    sockets = [socket.socket() for _ in range(count)]
    try:
        for sock in sockets:
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                sock.connect((at.host, at.port))
        yield
    finally:
        for sock in sockets:
            sock.close()


async def hang(url: str, count: int) -> list[RawConnection]:
    """Streams whose turns never end."""
    body = json.dumps(rpc("SendStreamingMessage", text_message())).encode()
    streams = []
    for _ in range(count):
        stream = await connect(url)
        await stream.send(post("/", body, AUTHORIZATION))
        assert (await stream.head()).startswith("HTTP/1.1 200")
        streams.append(stream)
    return streams


@pytest.fixture
def hanging() -> ScriptedTransport:
    return ScriptedTransport(TextDelta("x"), asyncio.Event())


@pytest.mark.parametrize("bound", ["MAX_CONNECTIONS", "MAX_CONNECTIONS_OF_ADDRESS"])
async def test_at_the_limit_probes_work_and_everything_else_is_told_to_retry(
    bridge: StartBridge, hanging: ScriptedTransport, bound: str
) -> None:
    variables = {"MAX_CONNECTIONS": 200, "MAX_CONNECTIONS_OF_ADDRESS": 200, bound: 8}
    async with bridge(hanging, PEER_TOKENS=TOKENS, DRAIN_TIMEOUT=0, **variables) as b:
        streams = await hang(b.url, 8)
        # Connections that are over the bound and mute keep nobody else from being answered.
        async with crowd(b.url, 40):
            for path in ("/livez", "/readyz", "/startupz", "/healthz"):
                assert await status_of(b.url, get(path)) == 200
            for request in (get("/tasks", AUTHORIZATION), get(CARD), post("/", b"{}")):
                async with connected(b.url) as client:
                    await client.send(request)
                    refused = await client.answer()
                    assert refused.status == 503
                    assert int(refused.headers["retry-after"]) > 0
                    assert b"too many connections" in refused.body
                    await client.closed(SLACK)
        streams.pop().close()
        await until_answered(b.url, get("/tasks", AUTHORIZATION))
        seen = await figures(b.url, TOKEN)
        assert seen['closed_connections_total{reason="over_limit"}'] >= 40
        assert seen['http_responses_total{status="503"}'] >= 3
        for stream in streams:
            stream.close()


async def test_an_idle_connection_makes_room_before_a_stream_does(
    bridge: StartBridge, hanging: ScriptedTransport
) -> None:
    async with bridge(
        hanging, PEER_TOKENS=TOKENS, DRAIN_TIMEOUT=0, MAX_CONNECTIONS_OF_ADDRESS=4
    ) as b:
        (stream,) = await hang(b.url, 1)
        async with crowd(b.url, 3, get("/livez")) as kept:
            for connection in kept:
                await connection.answer()
            async with connected(b.url) as newcomer:
                await newcomer.send(get("/tasks", AUTHORIZATION))
                assert (await newcomer.answer()).status == 200
            await kept[0].closed(SLACK)
            await kept[2].send(get("/livez"))
            assert (await kept[2].answer()).status == 200
        with pytest.raises(TimeoutError):
            await stream.closed(0.2)
        stream.close()


class Fake:
    def __init__(self, network: str = "a") -> None:
        self.network = network
        self.phase: Phase | None = None
        self.spare = False


def filled(limit: int, of_network: int, *networks: str) -> tuple[ConnectionTable[Any], list[Fake]]:
    table = ConnectionTable[Any](limit, of_network, reserve=2)
    members = [Fake(network) for network in networks]
    for at, member in enumerate(members):
        assert table.add(member, at / 1000) is None
    return table, members


def test_connections_without_a_request_are_closed_before_idle_ones() -> None:
    table, (idle, mute, fresh) = filled(3, 3, "a", "b", "c")
    table.enter(idle, Phase.IDLE, 5)
    table.enter(fresh, Phase.RESPONSE, 5)
    table.enter(fresh, Phase.HEAD, 6)
    assert table.add(Fake("d"), 6) is mute
    assert table.add(Fake("d"), 6) is idle
    assert table.add(Fake("d"), 6) is fresh


def test_an_address_at_its_limit_replaces_its_own_connections() -> None:
    table, (other, mine, busy) = filled(10, 2, "b", "a", "a")
    table.enter(busy, Phase.RESPONSE, 1)
    assert table.add(Fake("a"), 2) is mine
    assert not table.add(Fake("b"), 2)
    assert other.phase is Phase.HEAD


def test_connections_over_the_limit_are_spare_and_the_oldest_is_closed_first() -> None:
    table, members = filled(2, 2, "a", "b")
    for member in members:
        table.enter(member, Phase.RESPONSE, 1)
    spares = [Fake(), Fake(), Fake()]
    assert [table.add(spare, 2) for spare in spares] == [None, None, spares[0]]
    assert all(spare.spare for spare in spares)
    assert len(table) == 4
    for gone in (*members, *spares):
        table.remove(gone)
    assert len(table) == 0
    assert table.add(one := Fake(), 3) is None
    assert not one.spare


def test_only_connections_beyond_their_time_limit_are_overdue() -> None:
    table, (slow, busy, fresh) = filled(9, 9, "a", "a", "a")
    table.enter(busy, Phase.RESPONSE, 0)
    table.enter(fresh, Phase.IDLE, 0)
    table.enter(fresh, Phase.HEAD, 5)
    assert list(table.overdue(9)) == []
    assert list(table.overdue(11)) == [(slow, Phase.HEAD)]
    table.remove(slow)
    table.enter(slow, Phase.BODY, 12)
    assert list(table.overdue(11)) == []


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_an_ipv6_network_counts_as_one_address(host: str, network: str) -> None:
    assert network_of(host) == network
