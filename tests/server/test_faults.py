"""Load and faults that cannot be produced on demand with the real Hermes and real peers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from a2a.client import Client
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    SubscribeToTaskRequest,
    Task,
)
from a2a.utils.errors import UnsupportedOperationError
from aiohttp import web

from molecule_hermes.backoff import Backoff
from molecule_hermes.client.connection import message
from molecule_hermes.server import http as http_server
from molecule_hermes.storage.sqlite.store import SqliteTaskStore
from molecule_hermes.transports.chat.transport import ChatTransport
from molecule_hermes.transports.plugin.transport import PluginTransport
from molecule_hermes.turns.model import Completed, Question, TextDelta, ToolProgress, TurnEvent
from molecule_hermes.turns.model import Turn as Given
from tests.conftest import StartBridge
from tests.server.test_bridge import rpc, text_message
from tests.storage.test_sqlite import no_file_may_grow
from tests.support.fakes import (
    KEY,
    Answered,
    FakeHermes,
    ScriptedTransport,
    answer,
    fake_hermes,
    status,
    streaming,
)
from tests.support.peers import Turn, ask, peer, reply_text, state
from tests.support.serving import free_port
from tests.support.waiting import until
from tests.transports.test_plugin import SECRET, FakePlugin, nothing, serving

ALICE, BOB = "alice-token-0123456789", "bob-token-0123456789"
TOKENS = f"alice:{ALICE},bob:{BOB}"
IMPATIENT = Backoff(first=0.02, longest=0.1)


async def in_order(client: Client, texts: list[str]) -> list[Turn]:
    """Sends one message after another, each in the conversation named by its first word."""
    turns = []
    async with asyncio.TaskGroup() as group:
        for text in texts:
            stream = client.send_message(message(text, text.split()[0]))
            turn = Turn()
            turn.add(await anext(stream))
            turns.append(turn)
            group.create_task(_rest(stream, turn))
    return turns


async def _rest(stream: AsyncIterator[Any], turn: Turn) -> None:
    async for event in stream:
        turn.add(event)


# Hermes is busy, or does not call back.

REFUSALS = [429, 503, 503, 429] * 15


async def echo_by_plugin(plugin: FakePlugin, body: dict[str, Any]) -> None:
    await plugin.call(body, body["content"], type="final", status="completed", seq=0)


async def echo_by_chat(hermes: FakeHermes, request: web.Request, body: dict[str, Any]) -> Any:
    said = body["messages"][-1]["content"]
    return await streaming(*answer(said))(hermes, request, body)


@asynccontextmanager
async def stormy_plugin() -> AsyncIterator[tuple[PluginTransport, Callable[[], list[str]]]]:
    """A Hermes that refuses many messages before it accepts one, and records what it accepted."""
    plugin = FakePlugin()
    plugin.statuses, plugin.script = list(REFUSALS), echo_by_plugin
    async with serving(plugin):
        transport = PluginTransport(plugin.url, secret=SECRET, backoff=IMPATIENT)
        yield transport, lambda: [body["content"] for body in plugin.received]
    await plugin.http.aclose()


@asynccontextmanager
async def stormy_chat() -> AsyncIterator[tuple[ChatTransport, Callable[[], list[str]]]]:
    async with fake_hermes() as hermes:
        hermes.replies = [*map(status, REFUSALS), echo_by_chat]
        transport = ChatTransport(hermes.base_url, KEY, backoff=IMPATIENT)
        yield (
            transport,
            lambda: [r["messages"][-1]["content"] for r in hermes.requests[len(REFUSALS) :]],
        )


@pytest.mark.parametrize("stormy", [stormy_plugin, stormy_chat])
async def test_a_storm_of_refusals_delays_turns_but_loses_and_repeats_none(
    bridge: StartBridge, stormy: Any
) -> None:
    texts = [f"c{i % 8} m{i}" for i in range(40)]
    async with stormy() as (transport, taken):
        async with bridge(transport, MAX_RUNNING=6) as b, peer(b.url) as client:
            turns = await in_order(client, texts)
            listed = await client.list_tasks(ListTasksRequest())
        ran = taken()
    assert [turn.text for turn in turns] == texts
    assert {turn.states[-1] for turn in turns} == {"COMPLETED"}
    assert listed.total_size == len(texts)
    assert sorted(ran, key=lambda text: text.split()[0]) == sorted(
        texts, key=lambda text: text.split()[0]
    )


async def test_a_turn_whose_callbacks_are_lost_ends_in_time_and_hermes_is_told_to_stop(
    bridge: StartBridge,
) -> None:
    plugin = FakePlugin()
    plugin.script = nothing
    async with (
        serving(plugin),
        bridge(PluginTransport(plugin.url, secret=SECRET), TURN_TIMEOUT=0.5) as b,
        peer(b.url) as client,
    ):
        lost = await ask(client, "one", "ctx")
        assert lost.failure["kind"] == "timeout"
        assert plugin.canceled == [plugin.received[0]["message_id"]]
        plugin.script = echo_by_plugin
        assert (await ask(client, "two", "ctx")).text == "two"
        late = await plugin.call(plugin.received[0], "late", type="final", status="completed")
        assert late == {"ok": True, "stale": True, "unknown": []}
        task = await client.get_task(GetTaskRequest(id=lost.task_id))
        assert (state(task), reply_text(task)) == ("FAILED", "")
    await plugin.http.aclose()


# Peers that do not behave.


class Flood(ScriptedTransport):
    """Answers `flood` with much text, `wait` when the gate opens, and anything else at once."""

    gate: asyncio.Event

    def run(self, turn: Given) -> AsyncGenerator[TurnEvent, None]:
        self.script = [Completed(turn.text)]
        if turn.text == "flood":
            much = [TextDelta(f"{i:08}" * 2048, replace=True) for i in range(1600)]
            self.script = [*much, Completed("flooded")]
        elif turn.text.startswith("wait"):
            self.script.insert(0, self.gate)
        return super().run(turn)


@contextlib.contextmanager
def deaf_peer(url: str, text: str, context: str = "deaf") -> Iterator[None]:
    """Opens a stream and does not read from it."""
    where = urlsplit(url)
    body = json.dumps(rpc("SendStreamingMessage", text_message(text, contextId=context))).encode()
    head = f"POST / HTTP/1.1\r\nHost: {where.netloc}\r\nA2A-Version: 1.0\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect((where.hostname, where.port))
        deaf.sendall(head.encode() + body)
        yield


async def test_a_peer_that_never_reads_slows_no_turn_not_even_its_own(
    bridge: StartBridge, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_server, "_SHUTDOWN", 0.5)
    transport = Flood()
    async with bridge(transport) as b, peer(b.url) as client:
        with deaf_peer(b.url, "flood"):
            await until(lambda: transport.turns)
            assert (await ask(client, "hi", "other")).text == "hi"
            (task,) = [t for t in await _all_ended(client) if t.context_id == "deaf"]
            assert (state(task), reply_text(task)) == ("COMPLETED", "flooded")
            assert (await ask(client, "again", "deaf")).text == "again"
            await b.__aexit__(None, None, None)
    assert "Traceback" not in caplog.text


async def test_a_subscriber_that_falls_too_far_behind_is_dropped_and_counted(
    bridge: StartBridge,
) -> None:
    transport = Flood()
    async with bridge(transport, MAX_EVENTS=4) as b, peer(b.url) as client:
        with deaf_peer(b.url, "flood"):
            await until(lambda: transport.turns)
            (task,) = await _all_ended(client)
            figures = await _figures(b.url)
    assert (state(task), reply_text(task)) == ("COMPLETED", "flooded")
    assert figures["molecule_hermes_dropped_subscribers_total"] == 1


async def test_a_long_reply_in_a_burst_reaches_its_reader_and_delays_no_other_peer(
    bridge: StartBridge,
) -> None:
    pieces = [ToolProgress("t", "start", str(i)) for i in range(300)]
    texts = [TextDelta(f"{i:08}" * 256) for i in range(600)]
    whole = "".join(delta.text for delta in texts)
    transport = ScriptedTransport(*pieces, *texts, Completed(whole))
    async with bridge(transport, MAX_EVENTS=16) as b, peer(b.url) as client:
        turn = await ask(client, "hi")
        assert (turn.states[-1], turn.text == whole) == ("COMPLETED", True)
        assert (await _figures(b.url))["molecule_hermes_dropped_subscribers_total"] == 0


class SlowToCancel(ScriptedTransport):
    """Accepts a request to cancel, and acts on it when the test allows it."""

    def __init__(self, *script: Any) -> None:
        super().__init__(*script)
        self.asked_to_cancel = asyncio.Event()
        self.may_cancel = asyncio.Event()

    async def cancel(self, turn: Given) -> None:
        self.asked_to_cancel.set()
        await self.may_cancel.wait()
        await super().cancel(turn)


async def test_a_client_that_disconnects_during_a_cancel_leaves_nothing_behind(
    bridge: StartBridge,
) -> None:
    transport = SlowToCancel(60.0, Completed("late"))
    async with bridge(transport) as b, peer(b.url) as one, peer(b.url) as other:
        events = one.send_message(message("hi"))
        task_id = (await anext(events)).task.id
        await anext(events)
        canceling = asyncio.create_task(other.cancel_task(CancelTaskRequest(id=task_id)))
        await asyncio.wait_for(transport.asked_to_cancel.wait(), 20)
        await events.aclose()
        # The connection that cancels, and the one that asks for the figure.
        await _until_figure(b.url, "molecule_hermes_open_connections", 2)
        transport.may_cancel.set()
        assert state(await canceling) == "CANCELED"
        await _until_figure(b.url, "molecule_hermes_active_tasks", 0)


async def test_an_answer_while_the_task_is_canceled_leaves_nothing_behind(
    bridge: StartBridge,
) -> None:
    transport = SlowToCancel(Question("q", "clarify", "what?"), Answered(), Completed("late"))
    async with bridge(transport) as b, peer(b.url) as one, peer(b.url) as other:
        asked = await ask(one, "hi")
        canceling = asyncio.create_task(other.cancel_task(CancelTaskRequest(id=asked.task_id)))
        await asyncio.wait_for(transport.asked_to_cancel.wait(), 20)
        with pytest.raises(UnsupportedOperationError, match="being canceled"):
            await ask(one, "this", task_id=asked.task_id)
        transport.may_cancel.set()
        assert state(await canceling) == "CANCELED"
        await _until_figure(b.url, "molecule_hermes_active_tasks", 0)


async def test_a_peer_with_many_long_turns_leaves_a_slot_for_another(bridge: StartBridge) -> None:
    transport = Flood()
    transport.gate = asyncio.Event()
    async with (
        bridge(transport, MAX_RUNNING=3, PEER_TOKENS=TOKENS) as b,
        peer(b.url, token=ALICE) as alice,
        peer(b.url, token=BOB) as bob,
        asyncio.TaskGroup() as group,
    ):
        asked = [group.create_task(ask(alice, f"wait {i}", f"c{i}")) for i in range(5)]
        await until(lambda: len(transport.turns) == 2)
        async with asyncio.timeout(10):
            assert (await ask(bob, "hi")).text == "hi"
        transport.gate.set()
    assert [turn.result().text for turn in asked] == [f"wait {i}" for i in range(5)]


async def test_the_files_of_waiting_turns_are_limited_in_total(bridge: StartBridge) -> None:
    transport = Flood()
    transport.gate = asyncio.Event()
    async with (
        bridge(transport, MAX_RUNNING=1, MAX_WAITING_BYTES=100_000) as b,
        peer(b.url) as client,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(ask(client, "wait", "first"))
        await until(lambda: transport.turns)
        refused = await ask(client, "x" * 50_001, "second")
        assert (refused.states, refused.failure["kind"]) == (["SUBMITTED", "REJECTED"], "busy")
        waits = group.create_task(ask(client, "x" * 40_000, "third"))
        await _until_figure(b.url, "molecule_hermes_waiting_bytes", 40_000)
        transport.gate.set()
    assert waits.result().states[-1] == "COMPLETED"


async def _until_figure(url: str, name: str, wanted: float) -> None:
    async def reached() -> bool:
        return (await _figures(url))[name] == wanted

    await until(reached)


async def test_many_clients_that_disconnect_at_once_leave_nothing_behind(
    bridge: StartBridge, caplog: pytest.LogCaptureFixture
) -> None:
    transport = Flood()
    transport.gate = asyncio.Event()
    async with bridge(transport, MAX_RUNNING=200, MAX_WAITING=0) as b:
        for i in range(100):
            with deaf_peer(b.url, f"wait {i}", context=f"c{i}"):
                await until(lambda n=i: len(transport.turns) > n)
        async with peer(b.url) as client:
            listed = (await client.list_tasks(ListTasksRequest(page_size=100))).tasks
            await asyncio.gather(*(_watch_and_vanish(b.url, task.id) for task in listed[:20]))
            transport.gate.set()
            ended = await _all_ended(client)
            figures = await _figures(b.url)
    assert sorted(reply_text(task) for task in ended) == sorted(f"wait {i}" for i in range(100))
    assert figures['molecule_hermes_turns_total{agent="main",kind="",state="completed"}'] == 100
    assert figures["molecule_hermes_running_turns"] == 0
    assert "Traceback" not in caplog.text


async def _all_ended(client: Client) -> Sequence[Task]:
    request = ListTasksRequest(page_size=100, include_artifacts=True)

    async def ended() -> Sequence[Task]:
        tasks = (await client.list_tasks(request)).tasks
        return [] if any(state(task) in ("SUBMITTED", "WORKING") for task in tasks) else tasks

    return list(await until(ended, every=0.05))


async def _watch_and_vanish(url: str, task_id: str) -> None:
    async with peer(url) as client:
        await anext(client.subscribe(SubscribeToTaskRequest(id=task_id)))


async def _figures(url: str) -> dict[str, float]:
    async with httpx.AsyncClient() as http:
        lines = (await http.get(url + "/metrics")).text.splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(figure) for name, figure in pairs}


async def test_a_peer_that_floods_is_refused_at_once_and_another_is_served(
    bridge: StartBridge,
) -> None:
    transport = Flood()
    transport.gate = asyncio.Event()
    limits = {"MAX_RUNNING": 2, "MAX_WAITING": 50, "MAX_WAITING_OF_PEER": 20}
    limits["MAX_RUNNING_OF_PEER"] = 2  # so that it is the line that is fair
    async with (
        bridge(transport, PEER_TOKENS=TOKENS, **limits) as b,
        peer(b.url, token=ALICE) as alice,
        peer(b.url, token=BOB) as bob,
    ):
        flood = [asyncio.create_task(ask(alice, f"wait {i}", f"c{i}")) for i in range(40)]
        # Those that found no room are told so while all others still wait.
        await until(lambda: sum(task.done() for task in flood) == 18)
        refused = [await task for task in flood if task.done()]
        few = [asyncio.create_task(ask(bob, f"bob {i}", f"b{i}")) for i in range(3)]
        await until(lambda: b.roster["main"].executor._scheduler.waiting == 23)
        transport.gate.set()
        served = await asyncio.gather(*flood, *few)
    assert {turn.failure["kind"] for turn in refused} == {"busy"}
    assert all("try again in" in turn.failure["hint"] for turn in refused)
    assert sum(turn.states[-1] == "COMPLETED" for turn in served) == 25
    # Two of alice's ran already; then bob's have every other place.
    peers = [turn.peer for turn in transport.turns]
    assert "bob" in peers[2:4]
    assert peers.index("bob") < 5
    assert peers[:8].count("bob") == 3


# Stopping.


async def test_a_bridge_whose_disk_fails_can_still_be_stopped(
    bridge: StartBridge, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(SqliteTaskStore.__init__.__kwdefaults__, "patience", 0.3)
    transport = ScriptedTransport(TextDelta("so far"), asyncio.Event())
    async with bridge(transport, DRAIN_TIMEOUT=0.1, CHECKPOINT=0.05) as b, peer(b.url) as client:
        stream = client.send_message(message("hi"))
        turn = Turn()
        while turn.text != "so far":
            turn.add(await anext(stream))
        with no_file_may_grow():
            async with asyncio.timeout(20):
                await b.__aexit__(None, None, None)
            async for event in stream:
                turn.add(event)
    assert turn.states[-1] == "FAILED"
    assert "could not be stored" in turn.failure["message"]
    async with bridge(ScriptedTransport()) as b, peer(b.url) as client:
        after = await client.get_task(GetTaskRequest(id=turn.task_id))
    assert state(after) == "FAILED"


async def test_a_second_signal_cuts_the_drain_short(tmp_path: Path, hermes: FakeHermes) -> None:
    hermes.gate.clear()
    port = free_port()
    environ = dict(os.environ) | {
        "MOLECULE_HERMES_PORT": str(port),
        "MOLECULE_HERMES_STATE_DIR": str(tmp_path),
        "MOLECULE_HERMES_DRAIN_TIMEOUT": "600",
        "HERMES_API_BASE": hermes.base_url,
        "API_SERVER_KEY": KEY,
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "molecule_hermes", "serve", "--transport", "chat"),
        env=environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            said = await process.stdout.readuntil(b"the agent is at")
            async with peer(f"http://127.0.0.1:{port}") as client:
                running = asyncio.create_task(ask(client, "hi"))
                await until(lambda: hermes.running)
                process.send_signal(signal.SIGTERM)
                said += await process.stdout.readuntil(b"stopping")
                assert not running.done()
                process.send_signal(signal.SIGTERM)
                turn = await running
            said += await process.stdout.read()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert turn.failure["kind"] == "interrupted"
    assert b"Traceback" not in said
