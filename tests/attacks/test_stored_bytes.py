"""Limits on what a peer stores: ids, rejected messages, total bytes, bytes of a page."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.types import GetTaskRequest, ListTasksRequest, Role, Task, TaskArtifactUpdateEvent
from a2a.utils.errors import A2AError, InvalidParamsError, InvalidRequestError
from hypothesis import given, settings
from hypothesis import strategies as st

from molecule_hermes.client.connection import message
from molecule_hermes.protocol.status import status_of
from molecule_hermes.protocol.task_registry import TaskRegistry
from molecule_hermes.storage.contents import trim_rejected
from molecule_hermes.storage.listing import MAX_PAGE_BYTES
from molecule_hermes.storage.memory import MemoryTaskStore
from molecule_hermes.storage.postgresql.store import PostgresTaskStore
from molecule_hermes.storage.quota import StoredBytes
from molecule_hermes.storage.sqlite.store import SqliteTaskStore
from molecule_hermes.turns.model import Completed
from tests.conftest import StartBridge
from tests.support.fakes import ScriptedTransport
from tests.support.peers import ask, peer, send
from tests.support.tasks import context, task
from tests.support.waiting import until

TOKENS = "alice:alice-token-0123456789,bob:bob-token-0123456789"
ALICE, BOB = "alice-token-0123456789", "bob-token-0123456789"
BIG = 10_000


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def store(request: pytest.FixtureRequest) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("database").new_database())
    return str(request.param)


# Ids.


@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
@pytest.mark.parametrize("streaming", [True, False])
async def test_ids_are_bounded_in_every_binding_and_version(
    bridge: StartBridge, binding: str, version: str, streaming: bool
) -> None:
    transport = ScriptedTransport(Completed("x"))
    async with (
        bridge(transport) as b,
        peer(b.url, binding=binding, version=version, streaming=streaming) as client,
    ):
        for field, name in (("message_id", "messageId"), ("task_id", "taskId")):
            for value in ("i" * 257, "i\0"):
                request = message("hi")
                setattr(request.message, field, value)
                # The SDK's client of 0.3 over REST shows the status only.
                with pytest.raises(A2AError, match=f"a {name} must not|HTTP Error 400"):
                    await send(client, request)
        longest = message("hi", "c" * 256)
        longest.message.message_id = "m" * 256
        assert (await send(client, longest)).states[-1] == "COMPLETED"
        assert b.known_messages == 1
    assert len(transport.turns) == 1


# Rejected messages.


async def test_of_a_rejected_message_only_the_beginning_is_stored(
    bridge: StartBridge, store: str
) -> None:
    request = message("Ä" * 200_000)
    request.message.parts.add(raw=b"r" * 200_000, filename="f")
    request.message.parts.add().data.struct_value["key"] = "d" * 200_000
    request.message.metadata["key"] = "m" * 200_000
    async with (
        bridge(ScriptedTransport(Completed("x")), STORE=store, MAX_FILES=1) as b,
        peer(b.url) as client,
        httpx.AsyncClient() as http,
    ):
        rejected = await send(client, request)
        assert (rejected.states[-1], rejected.failure["kind"]) == ("REJECTED", "too_large")
        kept = await client.get_task(GetTaskRequest(id=rejected.task_id))
        figures = (await http.get(b.url + "/metrics")).text
    assert kept.ByteSize() < 5000
    assert kept.history[0].parts[0].text == "Ä" * 1024
    assert kept.history[0].metadata["omittedBytes"] > 700_000
    assert stored_bytes(figures) == kept.ByteSize()


def stored_bytes(figures: str) -> float:
    (line,) = (x for x in figures.splitlines() if x.startswith("molecule_hermes_stored_bytes "))
    return float(line.split()[1])


def test_small_messages_and_messages_of_turns_that_ran_are_stored_whole() -> None:
    small, run = task("small", "REJECTED"), task("run", "FAILED")
    small.history.add(message_id="m", role=Role.ROLE_USER).parts.add(text="x" * 500)
    run.history.add(message_id="m", role=Role.ROLE_USER).parts.add(text="x" * 50_000)
    for each in (small, run):
        before = Task()
        before.CopyFrom(each)
        trim_rejected(each)
        assert each == before


# The quota.


async def test_only_the_peer_beyond_its_quota_is_refused(bridge: StartBridge, store: str) -> None:
    transport = ScriptedTransport(Completed("x" * BIG))
    async with (
        bridge(transport, STORE=store, PEER_TOKENS=TOKENS, MAX_STORED_BYTES_OF_PEER=3 * BIG) as b,
        peer(b.url, token=ALICE) as alice,
        peer(b.url, token=BOB) as bob,
    ):
        for _ in range(3):
            assert (await ask(alice, "hi")).states[-1] == "COMPLETED"
        refused = await ask(alice, "hi")
        assert (refused.states[-1], refused.failure["kind"]) == ("REJECTED", "quota")
        assert not refused.failure["retryable"]
        assert "30 days after their end" in refused.failure["hint"]
        assert "bytes of this agent's storage" in refused.failure["message"]
        assert (await ask(bob, "hi")).states[-1] == "COMPLETED"
        with pytest.raises(InvalidRequestError, match="bytes of this agent's storage"):
            for _ in range(100):
                assert (await ask(alice, "hi")).failure["kind"] == "quota"
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {BOB}"}) as http:
            figures = (await http.get(b.url + "/metrics")).text
    assert 4 * BIG < stored_bytes(figures) < 5.5 * BIG
    assert "alice" not in figures
    assert len(transport.turns) == 4


async def test_the_quota_counts_what_is_stored_already(bridge: StartBridge, store: str) -> None:
    if store == "memory":
        pytest.skip("tasks in memory do not survive a restart")
    for expected in ("COMPLETED", "REJECTED"):
        transport = ScriptedTransport(Completed("x" * BIG))
        async with (
            bridge(transport, STORE=store, MAX_STORED_BYTES_OF_PEER=BIG) as b,
            peer(b.url) as client,
        ):
            assert (await ask(client, "hi")).states[-1] == expected


async def test_deleted_tasks_free_the_quota(
    bridge: StartBridge, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("molecule_hermes.storage.retention._PRUNE_EVERY", 0.05)
    transport = ScriptedTransport(Completed("x" * BIG))
    async with (
        bridge(transport, STORE=store, MAX_STORED_BYTES_OF_PEER=3 * BIG, KEEP_TASKS=1) as b,
        peer(b.url) as client,
    ):

        async def only_one() -> bool:
            return (await client.list_tasks(ListTasksRequest())).total_size == 1

        for _ in range(10):
            assert (await ask(client, "hi")).states[-1] == "COMPLETED"
            await until(only_one)


async def test_without_a_limit_no_turn_is_refused(bridge: StartBridge) -> None:
    transport = ScriptedTransport(Completed("x" * BIG))
    async with bridge(transport, MAX_STORED_BYTES_OF_PEER=0) as b, peer(b.url) as client:
        for _ in range(3):
            assert (await ask(client, "hi")).states[-1] == "COMPLETED"


async def nobody(task_id: str, event: object) -> None:
    pass


async def store_task(tasks: TaskRegistry, stored: Task, owner: str) -> None:
    log = tasks.log(stored.id, context(owner))
    if log is None:
        log = tasks.begin(Task(id=stored.id, context_id=stored.context_id), context(owner))
        await log.enqueue_event(stored)
        return
    text = TaskArtifactUpdateEvent(task_id=stored.id, artifact=stored.artifacts[0], append=True)
    await log.enqueue_event(text)
    await log.checkpoint()
    await log.enqueue_event(status_of(stored))


NAMES = st.sampled_from(["alice", "bob"])
SAVE = st.tuples(
    st.just("save"),
    NAMES,
    st.sampled_from("abcd"),
    st.sampled_from(["SUBMITTED", "WORKING", "COMPLETED", "REJECTED"]),
    st.integers(1, 500),
)
PRUNE = st.tuples(st.just("prune"))


@settings(max_examples=30)
@given(st.lists(SAVE | SAVE | PRUNE, max_size=20))
def test_the_count_in_memory_equals_the_bytes_on_disk(steps: list[Any]) -> None:
    async def compare() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with (
                SqliteTaskStore(Path(folder) / "tasks.db") as disk,
                TaskRegistry(disk, nobody, checkpoint=3600) as tasks,
            ):
                disk.on_deleted = tasks.stored.deleted
                ended: Counter[str] = Counter()  # no task begins under the id of an ended one
                for step, *more in steps:
                    if step == "prune":
                        await disk.prune(time.time() + 60, 0)
                    else:
                        name, letter, state, size = more
                        task_id = f"{letter}{ended[letter]}"
                        await store_task(tasks, task(task_id, state, text="x" * size), name)
                        ended[letter] += state in ("COMPLETED", "REJECTED")
                on_disk = await disk.bytes_by_owner()
                for name in ("alice", "bob"):
                    assert tasks.stored.of(name) == on_disk.get(name, 0)
                assert tasks.stored.total == sum(on_disk.values())

    asyncio.run(compare())


def test_the_count_remembers_no_ended_task() -> None:
    stored = StoredBytes()
    for number in range(5000):
        stored.saved("alice", str(number), 10, ended=False)
        stored.saved("alice", str(number), 20, ended=True)
    assert stored.of("alice") == stored.total == 100_000
    assert len(stored) == 0


# Pages.


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
async def tasks(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    if request.param == "memory":
        yield MemoryTaskStore()
    elif request.param == "sqlite":
        async with SqliteTaskStore(tmp_path / "tasks.db") as sqlite:
            yield sqlite
    else:
        url = request.getfixturevalue("database").new_database()
        async with PostgresTaskStore(url) as database:
            yield database


@pytest.mark.parametrize("at", [None, 1], ids=["without a time", "at the same time"])
async def test_a_page_is_bounded_in_bytes_and_the_next_one_continues(
    tasks: Any, at: int | None
) -> None:
    sizes = [1.5, 1.5, 1.5, 9, 0, 0, 3, 1, 0.1, 2]
    for number, size in enumerate(sizes):
        await tasks.save(task(f"t{number}", at=at, text="x" * int(size * 2**20)), context())
    seen, request = [], ListTasksRequest(page_size=4)
    async with asyncio.timeout(30):
        while True:
            page = await tasks.list(request, context())
            assert (page.total_size, page.page_size) == (10, 4)
            assert 1 <= len(page.tasks) <= 4
            size = sum(each.ByteSize() for each in page.tasks)
            assert size <= MAX_PAGE_BYTES or len(page.tasks) == 1
            seen += [each.id for each in page.tasks]
            if not page.next_page_token:
                break
            request.page_token = page.next_page_token
    assert seen == [f"t{number}" for number in reversed(range(10))]


async def test_a_listing_over_the_wire_is_bounded_too(bridge: StartBridge, store: str) -> None:
    transport = ScriptedTransport(Completed("x" * 2_000_000))
    async with bridge(transport, STORE=store) as b, peer(b.url) as client:
        for _ in range(4):
            await ask(client, "hi")
        request = ListTasksRequest(include_artifacts=True)
        first = await client.list_tasks(request)
        request.page_token = first.next_page_token
        second = await client.list_tasks(request)
    assert (len(first.tasks), len(second.tasks)) == (2, 2)
    assert not second.next_page_token


async def test_any_page_token_returns_a_page_or_an_invalid_params_error(tasks: Any) -> None:
    await tasks.save(task("t"), context())
    for token in ("AAAA", "eyJ0cyI6MSwiaWQiOiJcdTAwMDAifQ", "\x00", "!", "dABh"):
        with suppress(InvalidParamsError):
            await tasks.list(ListTasksRequest(page_token=token), context())
