"""The contract of every store. Each store's own module tests what is specific to it."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from pathlib import Path
from typing import Any

import pytest
from a2a.server.context import ServerCallContext
from a2a.server.tasks import InMemoryTaskStore, PushNotificationConfigStore, TaskStore
from a2a.types import (
    ListTasksRequest,
    ListTasksResponse,
    Task,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import InvalidParamsError
from a2a.utils.task import encode_page_token
from hypothesis import given, settings
from hypothesis import strategies as st

from molecule_hermes.errors import StorageFailure
from molecule_hermes.protocol.webhook_payloads import is_v03, registered_by
from molecule_hermes.storage.base import OWNERS, Conversation, Store, call_limit
from molecule_hermes.storage.contents import content_digest
from molecule_hermes.storage.memory import MemoryTaskStore
from molecule_hermes.storage.postgresql.store import PostgresTaskStore
from molecule_hermes.storage.sqlite.store import SqliteTaskStore
from tests.support.postgres import Postgres
from tests.support.tasks import context, task
from tests.support.waiting import until


@asynccontextmanager
async def opened(kind: str, where: Any) -> AsyncIterator[Store]:
    if kind == "memory":
        store: Store = MemoryTaskStore()
    else:
        store = SqliteTaskStore(where) if kind == "sqlite" else PostgresTaskStore(where)
    async with asyncio.timeout(60), store:
        yield store


def place(kind: str, folder: Path, request: pytest.FixtureRequest) -> Any:
    if kind != "postgresql":
        return folder / "tasks.db"
    server: Postgres = request.getfixturevalue("database")
    return server.new_database()


Reopen = Callable[[], AbstractAsyncContextManager[Store]]


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    async with opened(request.param, place(request.param, tmp_path, request)) as store:
        yield store


@pytest.fixture(params=["sqlite", "postgresql"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Reopen:
    """Opens the same store each time."""
    where = place(request.param, tmp_path, request)
    return lambda: opened(request.param, where)


@pytest.fixture
def configs(store: Store) -> PushNotificationConfigStore:
    return store.push_configs


async def ids(store: Store, name: str = "alice", **params: Any) -> list[str]:
    return [t.id for t in (await store.list(ListTasksRequest(**params), context(name))).tasks]


async def test_a_saved_task_is_read_back(store: Store) -> None:
    saved = task("t", "WORKING", "ctx", at=1_700_000_000, text="Grüße 🙂")
    saved.history.add(message_id="m").parts.add(raw=b"\x00\xff")
    saved.metadata.update({"usage": {"total": 5}})
    await store.save(saved, context())
    assert await store.get("t", context()) == saved
    assert await store.get("u", context()) is None


async def test_the_last_save_counts(store: Store) -> None:
    for state in ("SUBMITTED", "WORKING", "COMPLETED"):
        await store.save(task("t", state, text=state), context())
    read = await store.get("t", context())
    assert read is not None
    assert read.artifacts[0].parts[0].text == "COMPLETED"
    assert await ids(store) == ["t"]


async def test_changing_a_saved_or_read_task_does_not_change_the_stored_one(store: Store) -> None:
    saved = task("t", "COMPLETED", text="as it was")
    await store.save(saved, context())
    saved.artifacts[0].parts[0].text = "changed"
    read = await store.get("t", context())
    assert read is not None
    read.context_id = "changed"
    again = await store.get("t", context())
    assert again == task("t", "COMPLETED", text="as it was")


async def test_a_task_belongs_to_its_peer(store: Store) -> None:
    await store.save(task("t", text="alice's"), context("alice"))
    assert await store.get("t", context("bob")) is None
    assert await ids(store, "bob") == []
    await store.save(task("t", text="bob's"), context("bob"))
    await store.delete("t", context("bob"))
    read = await store.get("t", context("alice"))
    assert read is not None
    assert read.artifacts[0].parts[0].text == "alice's"


async def test_a_deleted_task_is_gone_and_deleting_none_is_no_error(store: Store) -> None:
    await store.save(task("t", "WORKING"), context())
    await store.delete("t", context())
    await store.delete("t", context())
    assert await store.get("t", context()) is None
    assert await ids(store) == []


async def test_the_newest_tasks_come_first_and_those_without_a_timestamp_last(
    store: Store,
) -> None:
    for name, at in (("b", 5), ("none", None), ("a", 5), ("new", 9), ("old", 1)):
        await store.save(task(name, at=at), context())
    assert await ids(store) == ["new", "b", "a", "old", "none"]


async def test_a_listing_can_be_filtered(store: Store) -> None:
    await store.save(task("a", "WORKING", "one", at=1), context())
    await store.save(task("b", "COMPLETED", "one", at=2), context())
    await store.save(task("c", "COMPLETED", "two", at=3), context())
    await store.save(task("d", "COMPLETED", "two"), context())
    after = task("", at=2).status.timestamp
    assert await ids(store, context_id="one") == ["b", "a"]
    assert await ids(store, status=TaskState.TASK_STATE_COMPLETED) == ["c", "b", "d"]
    assert await ids(store, status_timestamp_after=after) == ["c", "b"]
    assert await ids(store, context_id="two", status=TaskState.TASK_STATE_WORKING) == []


async def test_pages_follow_each_other_even_if_tasks_are_deleted_between_them(store: Store) -> None:
    for i in range(5):
        await store.save(task(f"t{i}", at=i), context())
    first = await store.list(ListTasksRequest(page_size=2), context())
    assert [t.id for t in first.tasks] == ["t4", "t3"]
    assert (first.total_size, first.page_size) == (5, 2)
    await store.delete("t3", context())
    rest = await store.list(
        ListTasksRequest(page_size=3, page_token=first.next_page_token), context()
    )
    assert [t.id for t in rest.tasks] == ["t2", "t1", "t0"]
    assert rest.next_page_token == ""


async def test_a_page_token_of_an_older_sdk_names_the_first_task(store: Store) -> None:
    for i in range(4):
        await store.save(task(f"t{i}", at=i), context())
    await store.save(task("none"), context())
    assert await ids(store, page_token=encode_page_token("t1")) == ["t1", "t0", "none"]
    assert await ids(store, page_token=encode_page_token("none")) == ["none"]
    with pytest.raises(InvalidParamsError):
        await ids(store, page_token=encode_page_token("nobody"))
    with pytest.raises(InvalidParamsError):
        await ids(store, page_token="!")


def together(*owners: str) -> ServerCallContext:
    """The call of a listing of several owners' tasks."""
    return ServerCallContext(state={OWNERS: owners})


async def test_the_tasks_of_several_owners_are_listed_in_one_order(store: Store) -> None:
    for number, name in enumerate(("alice", "x/alice", "bob", "alice", "x/alice", "x/bob")):
        state = "WORKING" if number == 4 else "COMPLETED"
        await store.save(task(f"t{number}", state, at=number, text="whole"), context(name))
    mine = together("alice", "x/alice", "y/alice")
    pages, token = [], ""
    while not pages or token:
        page = await store.list(ListTasksRequest(page_size=2, page_token=token), mine)
        pages.append([t.id for t in page.tasks])
        token = page.next_page_token
        if len(pages) == 1:
            assert (page.total_size, page.tasks[0].artifacts[0].parts[0].text) == (4, "whole")
            await store.delete("t3", context("alice"))
    assert pages == [["t4", "t3"], ["t1", "t0"]]
    older = await store.list(ListTasksRequest(page_token=encode_page_token("t1")), mine)
    assert [t.id for t in older.tasks] == ["t1", "t0"]
    with pytest.raises(InvalidParamsError):
        await store.list(ListTasksRequest(page_token=encode_page_token("t2")), mine)
    working = await store.list(ListTasksRequest(status=TaskState.TASK_STATE_WORKING), mine)
    assert [t.id for t in working.tasks] == ["t4"]
    assert await ids(store, "x/alice") == ["t4", "t1"]


async def test_a_long_context_id_and_unusual_characters_are_kept(store: Store) -> None:
    odd = "Ünï 🙂'\"\\;--" * 20
    await store.save(task("t", context_id=odd[:256], text=odd), context())
    read = await store.get("t", context())
    assert read is not None
    assert read.context_id == odd[:256]
    assert await ids(store, context_id=odd[:256]) == ["t"]


async def test_a_task_with_a_nul_character_can_be_read_and_listed(store: Store) -> None:
    saved = task("t", "FAILED", text="a\x00b")
    saved.status.message.parts.add(text="tool said \x00")
    await store.save(saved, context())
    assert await store.get("t", context()) is not None
    assert await ids(store, status=TaskState.TASK_STATE_FAILED) == ["t"]


async def test_concurrent_saves_are_all_kept(store: Store) -> None:
    tasks = [task(f"t{i}", text="x" * i) for i in range(100)]
    await asyncio.gather(*(store.save(t, context()) for t in tasks))
    for saved in tasks:
        assert await store.get(saved.id, context()) == saved


async def test_concurrent_saves_of_one_task_leave_one_of_its_states(store: Store) -> None:
    states = ["SUBMITTED", "WORKING", "INPUT_REQUIRED"] * 5
    tasks = [task("t", state, text=f"{i}") for i, state in enumerate(states)]
    await asyncio.gather(*(store.save(t, context()) for t in tasks))
    assert await store.get("t", context()) in tasks
    assert await ids(store) == ["t"]


async def test_ids_may_have_256_characters(store: Store) -> None:
    long = "i" * 256
    saved = task(long, "FAILED", "c" * 256, at=1)
    saved.history.add(message_id="m" * 256)
    await store.save(saved, context("p" * 256))
    assert await store.get(long, context("p" * 256)) == saved
    assert await ids(store, "p" * 256, context_id="c" * 256) == [long]
    await store.push_configs.set_info(long, push("x" * 256), context("p" * 256))
    (config,) = await store.push_configs.get_info(long, context("p" * 256))
    assert config.id == "x" * 256


async def test_an_id_with_a_nul_character_is_not_found(store: Store) -> None:
    await store.save(task("t"), context())
    assert await store.get("t\0", context()) is None
    assert await ids(store, context_id="c\0") == []
    await store.delete("t\0", context())
    assert await ids(store) == ["t"]


async def test_a_large_task_is_kept_whole(store: Store) -> None:
    large = task("t", text="ä" * 5_000_000)
    await store.save(large, context())
    assert await store.get("t", context()) == large


async def test_a_working_store_passes_its_check(store: Store) -> None:
    await store.check()


def push(config_id: str = "", url: str = "https://example.org/hook") -> TaskPushNotificationConfig:
    return TaskPushNotificationConfig(id=config_id, url=url, token="t")


async def test_push_configurations_are_set_replaced_and_deleted(
    configs: PushNotificationConfigStore,
) -> None:
    unnamed = await configs.set_info("task", push(), context())
    assert unnamed is not None
    assert (unnamed.id, unnamed.task_id) == ("task", "task")
    await configs.set_info("task", push("b", "https://one.example"), context())
    await configs.set_info("task", push("b", "https://two.example"), context())
    await configs.set_info("other", push("c"), context())
    found = await configs.get_info("task", context())
    assert {(c.id, c.url) for c in found} == {
        ("task", "https://example.org/hook"),
        ("b", "https://two.example"),
    }
    await configs.delete_info("task", context(), "b")
    assert [c.id for c in await configs.get_info("task", context())] == ["task"]
    await configs.delete_info("task", context())
    await configs.delete_info("task", context())
    assert await configs.get_info("task", context()) == []
    assert len(await configs.get_info("other", context())) == 1


async def test_it_is_remembered_that_a_0_3_client_registered_a_webhook(reopen: Reopen) -> None:
    old = ServerCallContext(user=context().user, state={"headers": {"a2a-version": ""}})
    new = ServerCallContext(user=context().user, state={"headers": {"a2a-version": "1.0"}})
    async with reopen() as store:
        for name, call in (("old", old), ("new", new)):
            await store.push_configs.set_info("t", registered_by(push(name), call), call)
    async with reopen() as store:
        found = await store.push_configs.get_info_for_dispatch("t")
    assert {config.id: is_v03(config) for config in found} == {"old": True, "new": False}


async def test_push_configurations_belong_to_their_peer_and_all_of_a_task_are_dispatched_to(
    configs: PushNotificationConfigStore,
) -> None:
    await configs.set_info("task", push("a"), context("alice"))
    await configs.set_info("task", push("b"), context("bob"))
    await configs.delete_info("task", context("bob"), "a")
    assert [c.id for c in await configs.get_info("task", context("alice"))] == ["a"]
    assert sorted(c.id for c in await configs.get_info_for_dispatch("task")) == ["a", "b"]


# Sizes and retention.


async def test_the_bytes_of_each_owner_are_those_of_its_tasks(store: Store) -> None:
    tasks = [task(f"t{i}", state, text="x" * i) for i, state in enumerate(["WORKING", "FAILED"])]
    for each in tasks:
        await store.save(each, context("alice"))
        await store.save(each, context("bob"))
    await store.save(tasks[0], context("bob"))
    await store.delete("t1", context("bob"))
    assert dict(await store.bytes_by_owner()) == {
        "alice": tasks[0].ByteSize() + tasks[1].ByteSize(),
        "bob": tasks[0].ByteSize(),
    }


async def prune_all(store: Store, before: float, keep: int) -> int:
    deleted = 0
    while batch := await store.prune(before, keep):
        deleted += batch
    return deleted


async def test_old_tasks_are_pruned_with_their_push_configurations(store: Store) -> None:
    deleted: list[tuple[str, str, int]] = []
    store.on_deleted = lambda *task: deleted.append(task)
    tasks = [*(task(f"t{i}") for i in range(250)), task("working", "WORKING")]
    await asyncio.gather(*(store.save(t, context()) for t in tasks))
    for task_id in ("t1", "working"):
        await store.push_configs.set_info(task_id, push("c"), context())
    assert await prune_all(store, time.time() - 60, 0) == 0
    assert await prune_all(store, time.time() + 60, 0) == 250
    assert await ids(store) == ["working"]
    assert await store.push_configs.get_info_for_dispatch("t1") == []
    assert len(await store.push_configs.get_info_for_dispatch("working")) == 1
    assert sorted(deleted) == sorted(("alice", t.id, t.ByteSize()) for t in tasks[:-1])


async def test_only_the_last_tasks_are_kept_if_their_number_is_limited(store: Store) -> None:
    for each in (task("working", "WORKING"), *(task(f"t{i}") for i in range(6))):
        await store.save(each, context())
    assert await prune_all(store, 0, 2) == 4
    assert await prune_all(store, 0, 2) == 0
    assert sorted(await ids(store)) == ["t4", "t5", "working"]


# Restarts.


async def test_tasks_and_push_configurations_survive_a_restart(reopen: Reopen) -> None:
    saved = task("t", "COMPLETED", at=5, text="kept")
    async with reopen() as store:
        await store.save(saved, context())
        await store.push_configs.set_info("t", push("c"), context())
    async with reopen() as store:
        assert await store.get("t", context()) == saved
        assert (await store.push_configs.get_info("t", context()))[0].url == push().url
        assert dict(await store.bytes_by_owner()) == {"alice": saved.ByteSize()}


async def test_unfinished_tasks_are_found_with_their_turns_and_no_others(reopen: Reopen) -> None:
    open_states = ("SUBMITTED", "WORKING", "INPUT_REQUIRED", "AUTH_REQUIRED")
    ended = [task(s, s, text=s) for s in ("COMPLETED", "FAILED", "CANCELED", "REJECTED")]
    unfinished = [task(f"{s}{i}", s, text=s) for s in open_states for i in range(150)]
    async with reopen() as store:
        for each in unfinished[:3]:
            await store.save(each, context(), "an older turn")
        await asyncio.gather(*(store.save(t, context(), f"turn of {t.id}") for t in unfinished))
        await asyncio.gather(*(store.save(t, context(), "forgotten") for t in ended))
    async with reopen() as store:
        found = await store.unfinished()
        assert {(each.owner, each.task.id, each.turn) for each in found} == {
            ("alice", each.id, f"turn of {each.id}") for each in unfinished
        }
        assert len(found) == 600
        assert [each.task.id for each in found[:3]] == [each.id for each in unfinished[:3]]
        assert found[0].task == unfinished[0]


# A storage that fails.


async def fails_in_time(call: Awaitable[Any], limit: float) -> None:
    began = time.monotonic()
    with pytest.raises(StorageFailure):
        await call
    assert time.monotonic() - began < limit + 1


def calls(store: Store) -> list[Callable[[], Awaitable[Any]]]:
    configs = store.push_configs
    return [
        lambda: store.save(task("lost"), context()),
        lambda: store.get("t", context()),
        lambda: store.list(ListTasksRequest(), context()),
        lambda: store.delete("t", context()),
        lambda: store.prune(time.time() - 60, 0),
        store.bytes_by_owner,
        lambda: store.messages(0),
        store.unfinished,
        lambda: configs.set_info("t", push("c"), context()),
        lambda: configs.get_info("t", context()),
        lambda: configs.get_info_for_dispatch("t"),
        lambda: configs.delete_info("t", context()),
        store.check,
    ]


PATIENCE = 0.3


@asynccontextmanager
async def hanging_sqlite(path: Path) -> AsyncIterator[tuple[Store, AbstractContextManager[None]]]:
    async with SqliteTaskStore(path, patience=PATIENCE) as store:
        yield store, no_answer(store)


@contextmanager
def no_answer(store: SqliteTaskStore) -> Iterator[None]:
    """Both threads of the store wait for a disk that does not answer."""
    answer = threading.Event()
    for connection in (store.database._reading, store.database._writing):
        connection.get().create_function("hang", 0, lambda: answer.wait(60))
    reading = asyncio.ensure_future(store.database.read("SELECT hang()"))
    sql = "DELETE FROM checks WHERE number = hang()"
    writing = asyncio.ensure_future(store.database.write(sql, ()))
    try:
        yield
    finally:
        answer.set()
        for waiting in (reading, writing):
            waiting.cancel()


@asynccontextmanager
async def hanging_postgresql(
    server: Postgres,
) -> AsyncIterator[tuple[Store, AbstractContextManager[None]]]:
    async with PostgresTaskStore(server.new_database(), patience=PATIENCE) as store:
        yield store, server.suspended()


@pytest.fixture(params=["sqlite", "postgresql"])
async def hanging(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    """A store, and a context in which its storage does not answer."""
    if request.param == "sqlite":
        opened: Any = hanging_sqlite(tmp_path / "tasks.db")
    else:
        opened = hanging_postgresql(request.getfixturevalue("database"))
    async with asyncio.timeout(60), opened as made:
        yield made


async def test_every_call_to_a_storage_that_hangs_fails_in_time_and_it_recovers(
    hanging: tuple[Store, AbstractContextManager[None]],
) -> None:
    store, hang = hanging
    limit = call_limit(PATIENCE)
    await store.save(task("t", "WORKING"), context())
    with hang:
        # More of them at once than there are connections.
        await asyncio.gather(*(fails_in_time(call(), limit) for call in calls(store) * 2))
        await fails_in_time(store.save(task("lost"), context()), limit)

    async def works() -> bool:
        with suppress(StorageFailure):
            await store.check()
            return await store.get("t", context()) == task("t", "WORKING")
        return False

    await until(works)


# Messages.


def begun_by(message_id: str, task_id: str, state: str = "COMPLETED") -> Task:
    begun = task(task_id, state, f"context of {task_id}")
    if message_id:
        begun.history.add(message_id=message_id).parts.add(text=f"go {task_id}")
    return begun


async def test_messages_that_began_tasks_are_remembered(reopen: Reopen) -> None:
    began = time.time()
    async with reopen() as store:
        for each in (
            begun_by("m1", "t1"),
            begun_by("m2", "t2", "WORKING"),
            begun_by("m3", "t3", "REJECTED"),
            begun_by("", "t4"),
        ):
            await store.save(each, context())
        await store.save(begun_by("m1", "t5"), context("bob"))
        again = begun_by("m2", "t2")
        again.history.add(message_id="answer")
        await store.save(again, context())
    async with reopen() as store:
        sent = await store.messages(began - 1)
        assert await store.messages(time.time() + 1) == []
    assert [(s.owner, s.context_id, s.message_id, s.task_id) for s in sent] == [
        ("alice", "context of t1", "m1", "t1"),
        ("alice", "context of t2", "m2", "t2"),
        ("bob", "context of t5", "m1", "t5"),
    ]
    assert all(began <= s.at <= time.time() for s in sent)
    digests = [content_digest(begun_by("m", task_id).history[0]) for task_id in ("t1", "t2", "t5")]
    assert [s.digest for s in sent] == digests
    assert len(set(digests)) == 3


# After any sequence of calls, a store answers as the SDK's in-memory store does.

NAMES = st.sampled_from(["alice", "bob"])
IDS = st.sampled_from(["a", "b", "c", "d", "e"])
CONTEXTS = st.sampled_from(["one", "two"])
STATES = st.sampled_from(["SUBMITTED", "WORKING", "INPUT_REQUIRED", "COMPLETED", "FAILED"])
TIMES = st.none() | st.integers(0, 3)
TEXTS = st.sampled_from(["", "some", "more"])
SAVE = st.tuples(st.just("save"), NAMES, IDS, STATES, CONTEXTS, TIMES, TEXTS)
DELETE = st.tuples(st.just("delete"), NAMES, IDS)
LISTING = st.fixed_dictionaries(
    {"page_size": st.integers(1, 3)},
    optional={
        "context_id": CONTEXTS,
        "status": STATES.map(lambda s: TaskState.Value(f"TASK_STATE_{s}")),
        "status_timestamp_after": st.integers(0, 3).map(lambda n: task("", at=n).status.timestamp),
    },
)
LIST = st.tuples(st.just("list"), NAMES, LISTING)
STEPS = st.lists(SAVE | SAVE | DELETE | LIST, max_size=25)


async def same(store: TaskStore, model: TaskStore, steps: list[Any]) -> None:
    for step, name, *more in steps:
        peer = context(name)
        if step == "save":
            task_id, state, context_id, at, text = more
            for each in (store, model):
                await each.save(task(task_id, state, context_id, at=at, text=text), peer)
        elif step == "delete":
            for each in (store, model):
                await each.delete(more[0], peer)
        else:
            params = ListTasksRequest(**more[0])
            while True:
                page = await store.list(params, peer)
                assert page == await model.list(params, peer)
                if not page.next_page_token:
                    break
                params.page_token = page.next_page_token
    for name in ("alice", "bob"):
        for task_id in "abcde":
            read = await store.get(task_id, context(name))
            assert read == await model.get(task_id, context(name))


@settings(deadline=None, max_examples=60)
@given(steps=STEPS)
def test_a_sqlite_store_answers_as_the_sdks_in_memory_store_does(steps: list[Any]) -> None:
    async def compare() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with opened("sqlite", Path(folder) / "tasks.db") as store:
                await same(store, InMemoryTaskStore(), steps)

    asyncio.run(compare())


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_several_owners_are_listed_as_one_owner_of_all_their_tasks_would_be(kind: str) -> None:
    owners = {"a": "alice", "b": "x/alice", "c": "y/alice", "d": "alice", "e": "x/alice"}

    @settings(deadline=None, max_examples=40)
    @given(steps=STEPS)
    def check(steps: list[Any]) -> None:
        async def compare() -> None:
            with tempfile.TemporaryDirectory() as folder:
                async with opened(kind, Path(folder) / "tasks.db") as store:
                    split = _SplitStore(store, owners)
                    await same(split, InMemoryTaskStore(lambda context: "one"), steps)

        asyncio.run(compare())

    check()


class _SplitStore(InMemoryTaskStore):
    """Gives each task to the owner that is named for it, and lists all owners together."""

    def __init__(self, store: Store, owners: dict[str, str]) -> None:
        super().__init__()
        self._inner = store
        self._owners = owners

    async def save(self, task: Task, _: ServerCallContext) -> None:
        await self._inner.save(task, context(self._owners[task.id]))

    async def get(self, task_id: str, _: ServerCallContext) -> Task | None:
        return await self._inner.get(task_id, context(self._owners[task_id]))

    async def delete(self, task_id: str, _: ServerCallContext) -> None:
        await self._inner.delete(task_id, context(self._owners[task_id]))

    async def list(self, params: ListTasksRequest, _: ServerCallContext) -> ListTasksResponse:
        return await self._inner.list(params, together(*set(self._owners.values())))


async def test_a_postgresql_store_answers_as_the_sdks_in_memory_store_does(
    database: Postgres,
) -> None:
    loop = asyncio.get_running_loop()
    async with opened("postgresql", database.new_database()) as store:
        await asyncio.to_thread(examples, lambda steps: afresh(store, steps, loop))


def examples(check: Any) -> None:
    settings(deadline=None, max_examples=25)(given(steps=STEPS)(check))()


def afresh(store: TaskStore, steps: list[Any], loop: asyncio.AbstractEventLoop) -> None:
    async def compare() -> None:
        for name in ("alice", "bob"):
            for task_id in "abcde":
                await store.delete(task_id, context(name))
        await same(store, InMemoryTaskStore(), steps)

    asyncio.run_coroutine_threadsafe(compare(), loop).result(60)


@settings(deadline=None, max_examples=100)
@given(
    token=st.text(max_size=40)
    | st.builds(
        lambda ts, name: encode_page_token(f'{{"ts":{ts},"id":"{name}"}}'),
        st.integers() | st.just("null"),
        st.sampled_from(["a", "\\ud800", ""]),
    )
)
def test_any_page_token_returns_a_page_or_an_invalid_params_error(token: str) -> None:
    async def attempt() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with SqliteTaskStore(Path(folder) / "tasks.db") as store:
                await store.save(task("a", at=1), context())
                with suppress(InvalidParamsError):
                    await store.list(ListTasksRequest(page_token=token), context())

    asyncio.run(attempt())


async def test_a_timestamp_beyond_64_bits_of_nanoseconds_is_accepted(tmp_path: Path) -> None:
    far = task("far", at=253_000_000_000)
    async with SqliteTaskStore(tmp_path / "tasks.db") as store:
        await store.save(far, context())
        await store.save(task("near", at=1), context())
        params = ListTasksRequest(page_size=1, status_timestamp_after=far.status.timestamp)
        assert [t.id for t in (await store.list(params, context())).tasks] == ["far"]


# Conversations and deliveries.


def delivery(task_id: str, state: str = "WORKING", context_id: str = "ctx") -> Task:
    made = task(task_id, state, context_id, at=1_700_000_000)
    made.metadata["initiatedBy"] = "agent"
    return made


async def events(store: Store, *owners: str, after: int = 0) -> list[tuple[str, str]]:
    found = await store.delivery_events(owners or ("alice",), after, 100)
    assert [each.number for each in found] == sorted({each.number for each in found})
    return [(each.kind, each.task_id) for each in found]


async def test_a_conversation_is_found_by_hermess_name_for_it(store: Store) -> None:
    await store.save(task("t", "COMPLETED", "ctx"), context())
    await store.remember("chat", Conversation("alice", "ctx"))
    await store.remember("chat", Conversation("alice", "ctx"))
    assert await store.conversation("chat") == ("alice", "ctx")
    assert await store.conversation("other") is None


async def test_a_conversation_is_forgotten_with_its_last_task(store: Store) -> None:
    await store.save(task("old", "COMPLETED", "ctx"), context())
    await store.save(task("open", "WORKING", "other"), context())
    await store.save(task("of-bob", "WORKING", "ctx"), context("bob"))
    await store.remember("chat", Conversation("alice", "ctx"))
    await store.remember("other", Conversation("alice", "other"))
    await store.remember("bobs", Conversation("bob", "ctx"))
    assert await store.prune(time.time() + 1, 0) == 1
    known = [await store.conversation(name) for name in ("chat", "other", "bobs")]
    assert known == [None, ("alice", "other"), ("bob", "ctx")]


async def test_a_conversation_with_another_task_is_kept(store: Store) -> None:
    await store.save(task("old", "COMPLETED", "ctx"), context())
    await store.save(task("open", "WORKING", "ctx"), context())
    await store.remember("chat", Conversation("alice", "ctx"))
    await store.prune(time.time() + 1, 0)
    assert await store.conversation("chat") == ("alice", "ctx")


async def test_a_delivery_has_one_event_at_its_creation_and_one_at_its_end(store: Store) -> None:
    await store.save(task("turn", "COMPLETED"), context())
    for state in ("WORKING", "INPUT_REQUIRED", "COMPLETED", "COMPLETED"):
        await store.save(delivery("d", state), context())
    await store.save(delivery("e"), context())
    await store.save(delivery("of-bob"), context("bob"))
    expected = [("created", "d"), ("ended", "d"), ("created", "e")]
    assert await events(store) == expected
    assert await events(store, "alice", "bob") == [*expected, ("created", "of-bob")]
    assert await events(store, "carol") == []


async def test_events_after_a_number_are_those_that_came_later(store: Store) -> None:
    await store.save(delivery("a"), context())
    (first,) = await store.delivery_events(("alice",), 0, 1)
    await store.save(delivery("b", "FAILED"), context())
    await store.save(delivery("a", "COMPLETED"), context())
    assert await events(store, after=first.number) == [
        ("created", "b"),
        ("ended", "b"),
        ("ended", "a"),
    ]
    assert len(await store.delivery_events(("alice",), 0, 2)) == 2


async def test_the_events_of_a_deleted_delivery_are_gone(store: Store) -> None:
    await store.save(delivery("d", "COMPLETED"), context())
    await store.prune(time.time() + 1, 0)
    assert await events(store) == []


async def test_numbers_of_events_grow_over_restarts(reopen: Reopen) -> None:
    async with reopen() as store:
        await store.save(delivery("a", "COMPLETED"), context())
        await store.remember("chat", Conversation("alice", "ctx"))
        last = (await store.delivery_events(("alice",), 0, 10))[-1].number
    async with reopen() as store:
        assert await store.conversation("chat") == ("alice", "ctx")
        await store.save(delivery("b"), context())
        assert await events(store, after=last) == [("created", "b")]


async def test_a_reader_misses_no_event_while_others_are_written(store: Store) -> None:
    names = [f"d{number}" for number in range(40)]
    writing = asyncio.gather(*(store.save(delivery(name), context()) for name in names))
    seen: list[str] = []
    after = 0
    while len(seen) < len(names):
        for event in await store.delivery_events(("alice",), after, 7):
            seen.append(event.task_id)
            after = event.number
        await asyncio.sleep(0)  # a store in memory never waits
    await writing
    assert sorted(seen) == sorted(names)
