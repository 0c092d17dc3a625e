"""What a peer sees when the bridge is killed, or when its disk fails."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from a2a.client import Client
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
)
from a2a.utils.errors import A2AError, TaskNotCancelableError, UnsupportedOperationError

from molecule_hermes.client.connection import message
from molecule_hermes.server.bridge import Bridge
from molecule_hermes.storage.postgresql.store import PostgresTaskStore
from molecule_hermes.storage.sqlite import database as sqlite_database
from molecule_hermes.storage.sqlite.store import SqliteTaskStore
from molecule_hermes.turns.model import Completed, TextDelta
from tests.conftest import StartBridge
from tests.storage.test_sqlite import no_file_may_grow
from tests.support.bridge_process import bridge_process
from tests.support.fakes import ScriptedTransport
from tests.support.peers import Turn, ask, peer, reply_text, send, state
from tests.support.postgres import Postgres
from tests.support.waiting import until


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return "sqlite"
    server: Postgres = request.getfixturevalue("database")
    return server.new_database()


async def begin(client: Client, text: str, until: str, context_id: str = "") -> Turn:
    """Sends a message and disconnects when the task is in that state, or its text has arrived."""
    turn = Turn()
    async for event in client.send_message(message(text, context_id)):
        turn.add(event)
        if until in (turn.states[-1], turn.text):
            break
    return turn


async def checkpoint(store: str, folder: Path, task_id: str, text: str) -> None:
    """Waits until the text is stored."""

    async def stored() -> bool:
        return text in await on_disk(store, folder, task_id)

    await until(stored)


async def on_disk(store: str, folder: Path, task_id: str) -> str:
    if store != "sqlite":
        connection = await asyncpg.connect(store)
        sql = "SELECT task FROM molecule_hermes_tasks WHERE id = $1"
        found = await connection.fetchval(sql, task_id)
        await connection.close()
        return reply_text(Task.FromString(found))
    reader = sqlite3.connect(folder / "tasks.db")
    (data,) = reader.execute("SELECT task FROM tasks WHERE id = ?", (task_id,)).fetchone()
    reader.close()
    return reply_text(Task.FromString(data))


async def get(client: Client, turn: Turn) -> Task:
    return await client.get_task(GetTaskRequest(id=turn.task_id))


async def has_ended(client: Client, turn: Turn) -> bool:
    return state(await get(client, turn)) == "COMPLETED"


def failure(task: Task) -> dict[str, Any]:
    turn = Turn()
    turn.add(StreamResponse(task=task))
    return turn.failure


async def test_after_kill_9_no_reported_state_is_lost_and_nothing_hangs(
    tmp_path: Path, store: str
) -> None:
    settings = {"STORE": store, "MAX_RUNNING": 3, "CHECKPOINT": 0.1}
    async with bridge_process(tmp_path, **settings) as bridge, peer(bridge.url) as client:
        done = await ask(client, "say all is well")
        streaming = await begin(client, "hang so far", "so far")
        silent = await begin(client, "hang", "WORKING")
        asked = await begin(client, "ask", "INPUT_REQUIRED")
        queued = await begin(client, "say it waited", "WORKING", streaming.context_id)
        before = await get(client, done)
        await checkpoint(store, tmp_path, streaming.task_id, "so far")
        await bridge.kill()
    async with bridge_process(tmp_path, **settings) as bridge, peer(bridge.url) as client:
        assert await get(client, done) == before
        await until(lambda: has_ended(client, queued))
        assert reply_text(await get(client, queued)) == "it waited"
        for turn in (streaming, silent, asked):
            after = await get(client, turn)
            assert state(after) == "FAILED"
            assert failure(after)["kind"] == "interrupted"
            assert failure(after)["retryable"] is False
            assert "may have run" in failure(after)["hint"]
            with pytest.raises(UnsupportedOperationError):
                await anext(client.subscribe(SubscribeToTaskRequest(id=turn.task_id)))
            with pytest.raises(TaskNotCancelableError):
                await client.cancel_task(CancelTaskRequest(id=turn.task_id))
            with pytest.raises(A2AError):
                await ask(client, "yes", task_id=turn.task_id)
        assert reply_text(await get(client, streaming)) == "so far"
        listed = (await client.list_tasks(ListTasksRequest(page_size=50))).tasks
        assert sorted(map(state, listed)) == ["COMPLETED", "COMPLETED", *["FAILED"] * 3]
        again = await ask(client, "say again", streaming.context_id)
        assert again.states[-1] == "COMPLETED"
        assert await bridge.stop() == 0


async def test_after_a_stop_tasks_read_as_before(tmp_path: Path, store: str) -> None:
    settings = {"STORE": store, "DRAIN_TIMEOUT": 0}
    async with bridge_process(tmp_path, **settings) as bridge, peer(bridge.url) as client:
        done = await ask(client, "say all is well")
        cut = await begin(client, "hang so far", "so far")
        before = await get(client, done)
        assert await bridge.stop() == 0
    async with bridge_process(tmp_path, **settings) as bridge, peer(bridge.url) as client:
        assert await get(client, done) == before
        after = await get(client, cut)
        assert (state(after), reply_text(after)) == ("FAILED", "so far")
        assert failure(after)["message"] == "the agent was shut down during the turn"


async def test_a_message_that_is_sent_again_after_a_restart_runs_once(
    tmp_path: Path, store: str
) -> None:
    done, cut = message("say first life"), message("hang so far", "ctx")
    done.message.parts.add(raw=b"x" * 100_000, filename="large.txt", media_type="text/plain")
    async with bridge_process(tmp_path, STORE=store) as bridge, peer(bridge.url) as client:
        first = await send(client, done)
        async for event in client.send_message(cut):
            if event.HasField("artifact_update"):
                running = event.artifact_update.task_id
                break
        await bridge.kill()
    async with bridge_process(tmp_path, STORE=store) as bridge, peer(bridge.url) as client:
        again = await send(client, done)
        assert (again.task_id, again.text) == (first.task_id, first.text)
        interrupted = await send(client, cut)
        assert (interrupted.task_id, interrupted.states) == (running, ["FAILED"])
        assert interrupted.failure["kind"] == "interrupted"
        listed = await client.list_tasks(ListTasksRequest())
        assert {task.id for task in listed.tasks} == {first.task_id, running}
        done.message.parts[1].raw = b"y" * 100_000
        assert (await send(client, done)).task_id != first.task_id


async def test_without_a_disk_tasks_live_as_long_as_the_bridge(tmp_path: Path) -> None:
    async with bridge_process(tmp_path, STORE="memory") as bridge, peer(bridge.url) as client:
        turn = await ask(client, "say hello")
        assert state(await get(client, turn)) == "COMPLETED"
        assert await bridge.stop() == 0
    assert not (tmp_path / "tasks.db").exists()


# A disk that does not obey.


@asynccontextmanager
async def impatient(
    bridge: StartBridge,
    transport: ScriptedTransport,
    monkeypatch: pytest.MonkeyPatch,
    *,
    streaming: bool = True,
) -> AsyncIterator[tuple[Bridge, Client]]:
    monkeypatch.setitem(SqliteTaskStore.__init__.__kwdefaults__, "patience", 0.3)
    async with (
        bridge(transport, CHECKPOINT=0.1) as running,
        peer(running.url, streaming=streaming) as client,
    ):
        yield running, client


async def readiness(bridge: Bridge) -> tuple[int, str]:
    async with httpx.AsyncClient() as http:
        answered = await http.get(bridge.url + "/readyz")
    return answered.status_code, answered.json()["parts"]["store"].get("reason", "")


async def until_ready(bridge: Bridge, ready: bool = True) -> str:
    """Waits until the store is ready, or is not; returns the reported reason."""

    async def reached() -> tuple[int, str] | None:
        code, reason = await readiness(bridge)
        return (code, reason) if (code == 200) is ready else None

    return str((await until(reached))[1])


@pytest.mark.parametrize("streaming", [True, False])
async def test_with_a_failing_disk_turns_fail_with_the_reason_and_the_bridge_recovers(
    bridge: StartBridge, monkeypatch: pytest.MonkeyPatch, streaming: bool
) -> None:
    transport = ScriptedTransport(Completed("fine"))
    async with impatient(bridge, transport, monkeypatch, streaming=streaming) as (b, client):
        first = await ask(client, "hi")
        with no_file_may_grow():
            reason = await until_ready(b, ready=False)
            assert reason == "the disk that holds tasks.db fails"
            turn = await ask(client, "hi")
            assert turn.states[-1] == "FAILED"
            assert turn.failure["kind"] == "internal"
            assert turn.failure["message"] == f"the task could not be stored: {reason}"
            assert turn.failure["retryable"] is True
            assert state(await get(client, first)) == "COMPLETED"
        await until_ready(b)
        assert (await ask(client, "hi")).states[-1] == "COMPLETED"


async def test_a_turn_that_runs_when_the_disk_fails_ends_and_hermes_is_stopped(
    bridge: StartBridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = asyncio.Event()
    transport = ScriptedTransport(TextDelta("so far"), go, Completed("so far"))
    async with impatient(bridge, transport, monkeypatch) as (b, client):
        stream = client.send_message(message("hi"))
        turn = Turn()
        while turn.text != "so far":
            turn.add(await anext(stream))
        with no_file_may_grow():
            go.set()
            async for event in stream:
                turn.add(event)
            assert turn.states[-1] == "FAILED"
            assert "could not be stored" in turn.failure["message"]
            assert state(await get(client, turn)) == "FAILED"
            assert await until_ready(b, ready=False)
        await until_ready(b)
        after = await get(client, turn)
        assert (state(after), reply_text(after)) == ("FAILED", "so far")
        assert failure(after) == turn.failure
    async with bridge(ScriptedTransport()) as b, peer(b.url) as client:
        assert failure(await get(client, turn)) == turn.failure


async def test_a_turn_whose_state_cannot_be_stored_is_stopped(
    bridge: StartBridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = asyncio.Event()
    transport = ScriptedTransport(never)
    async with impatient(bridge, transport, monkeypatch) as (b, client):
        with no_file_may_grow():
            assert (await ask(client, "hi")).states == ["FAILED"]
        await until(transport.all_canceled)
        await until_ready(b)


async def test_a_message_whose_task_could_not_be_stored_can_be_sent_again(
    bridge: StartBridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = message("hi", "ctx")
    transport = ScriptedTransport(Completed("x"))
    async with impatient(bridge, transport, monkeypatch) as (b, client):
        with no_file_may_grow():
            assert [e.task.status.state async for e in client.send_message(request)]
        await until_ready(b)
        turn = Turn()
        async for event in client.send_message(request):
            turn.add(event)
    assert turn.states[-1] == "COMPLETED"


async def test_a_cancel_that_cannot_be_stored_does_not_hang(
    bridge: StartBridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = ScriptedTransport(TextDelta("so far"), asyncio.Event())
    async with impatient(bridge, transport, monkeypatch) as (_, client):
        turn = await begin(client, "hi", "so far")
        with no_file_may_grow():
            task = await client.cancel_task(CancelTaskRequest(id=turn.task_id))
        assert state(task) == "FAILED"
        assert "could not be stored" in failure(task)["message"]


async def test_with_a_full_disk_the_failure_names_the_reason(
    bridge: StartBridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = ScriptedTransport(Completed("x" * 30_000))
    with monkeypatch.context() as patch:
        patch.setattr(
            sqlite_database, "_PRAGMAS", (*sqlite_database._PRAGMAS, "PRAGMA max_page_count = 40")
        )
        async with impatient(bridge, transport, monkeypatch) as (b, client):
            async with asyncio.timeout(30):
                while (turn := await ask(client, "hi")).states[-1] == "COMPLETED":
                    pass
            assert turn.failure["message"] == "the task could not be stored: the disk is full"
            assert await until_ready(b, ready=False) == "the disk is full"
            patch.undo()
            await until_ready(b)
            assert (await ask(client, "hi")).states[-1] == "COMPLETED"


async def test_with_a_locked_file_turns_fail_in_time_and_reads_go_on(
    bridge: StartBridge, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    transport = ScriptedTransport(Completed("x"))
    async with impatient(bridge, transport, monkeypatch) as (b, client):
        first = await ask(client, "hi")
        other = sqlite3.connect(tmp_path / "tasks.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        turn = await ask(client, "hi")
        assert "another process keeps tasks.db locked" in turn.failure["message"]
        assert state(await get(client, first)) == "COMPLETED"
        assert "locked" in await until_ready(b, ready=False)
        other.execute("ROLLBACK")
        other.close()
        await until_ready(b)


async def test_with_a_deleted_file_it_says_so_rather_than_losing_tasks(
    bridge: StartBridge, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    transport = ScriptedTransport(Completed("x"))
    async with impatient(bridge, transport, monkeypatch) as (b, client):
        (tmp_path / "tasks.db").unlink()
        turn = await ask(client, "hi")
        assert "deleted or replaced" in turn.failure["message"]
        assert "restart the bridge" in turn.failure["hint"]
        assert "deleted" in await until_ready(b, ready=False)


async def test_an_unreadable_store_is_reported_without_a_stack_trace(
    bridge: StartBridge, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    transport = ScriptedTransport(Completed("x"))
    async with impatient(bridge, transport, monkeypatch) as (_, client):
        turn = await ask(client, "hi")
        other = sqlite3.connect(tmp_path / "tasks.db")
        other.execute("ALTER TABLE tasks RENAME TO gone")
        other.close()
        with pytest.raises(A2AError, match=r"tasks\.db cannot be used .*operator"):
            await get(client, turn)


async def test_turns_fail_in_time_while_postgresql_hangs_and_work_again_afterwards(
    bridge: StartBridge, database: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PostgresTaskStore.__init__.__kwdefaults__, "patience", 0.3)
    go = asyncio.Event()
    transport = ScriptedTransport(TextDelta("so far"), go, Completed("so far"))
    store = database.new_database()
    async with bridge(transport, STORE=store, CHECKPOINT=0.1) as b, peer(b.url) as client:
        stream = client.send_message(message("hi"))
        turn = Turn()
        while turn.text != "so far":
            turn.add(await anext(stream))
        with database.suspended():
            go.set()
            async with asyncio.timeout(15):
                async for event in stream:
                    turn.add(event)
                assert turn.states[-1] == "FAILED"
                assert "could not be stored" in turn.failure["message"]
                assert state(await get(client, turn)) == "FAILED"
                assert (await ask(client, "hi")).states == ["FAILED"]
                with pytest.raises(A2AError, match="did not answer"):
                    await client.list_tasks(ListTasksRequest())
                assert await until_ready(b, ready=False)
        await until_ready(b)
        assert (await ask(client, "hi")).states[-1] == "COMPLETED"
        assert failure(await get(client, turn)) == turn.failure
