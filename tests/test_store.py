"""When tasks are written: what peers are told at once, streamed text now and then."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import pytest
from a2a.helpers import get_data_parts, get_text_parts
from a2a.server.context import ServerCallContext
from a2a.server.id_generator import IDGeneratorContext
from a2a.server.tasks import InMemoryPushNotificationConfigStore, InMemoryTaskStore
from a2a.types import ListTasksRequest, Part, Task

from molecule_hermes import store as module
from molecule_hermes.config import Settings
from molecule_hermes.errors import ConfigError, StartError, StorageFailure
from molecule_hermes.store import CheckpointedStore, TaskNotStored, open_store
from molecule_hermes.stores.base import DurableStore, EndTask
from molecule_hermes.stores.sqlite import SqliteTaskStore
from tests.peers import reply_text, state
from tests.tasks import Named, context, task


class Disk(InMemoryTaskStore, DurableStore):
    """Notes what it is given; `go` holds it up, `failure` makes it fail."""

    def __init__(self) -> None:
        super().__init__()
        self.push_configs = InMemoryPushNotificationConfigStore()
        self.saves: list[Task] = []
        self.contexts: list[ServerCallContext] = []
        self.reads = 0
        self.failure: Exception | None = None
        self.go = asyncio.Event()
        self.go.set()
        self.saving = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    async def save(self, task: Task, context: ServerCallContext) -> None:
        snapshot = Task()
        snapshot.CopyFrom(task)
        self.saving.set()
        await self.go.wait()
        await self.check()
        self.saves.append(snapshot)
        self.contexts.append(context)
        await super().save(snapshot, context)

    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        self.reads += 1
        return await super().get(task_id, context)

    async def check(self) -> None:
        if self.failure is not None:
            raise self.failure

    async def sweep(self, end: EndTask) -> int:
        return 0

    async def prune(self, before: float, keep: int) -> int:
        return 0


@pytest.fixture
def disk() -> Disk:
    return Disk()


@asynccontextmanager
async def over(disk: Disk, checkpoint: float = 3600, **more: Any) -> AsyncIterator[Any]:
    async with asyncio.timeout(20), CheckpointedStore(disk, checkpoint=checkpoint, **more) as store:
        yield store


def add(live: Task, text: str) -> Task:
    """As the SDK does: it changes its own object."""
    if not live.artifacts:
        live.artifacts.add(artifact_id="reply")
    live.artifacts[0].parts.append(Part(text=text))
    return live


def turn_to(live: Task, status: str) -> Task:
    live.status.CopyFrom(task("", status).status)
    live.status.timestamp.GetCurrentTime()
    return live


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


def failure_of(failed: Task | None) -> dict[str, Any]:
    assert failed is not None
    assert state(failed) == "FAILED"
    return dict(get_data_parts(failed.status.message.parts)[0])


async def test_every_state_is_on_disk_before_save_returns(disk: Disk) -> None:
    live = task("t", "SUBMITTED")
    async with over(disk) as store:
        for status in ("SUBMITTED", "WORKING", "INPUT_REQUIRED", "WORKING", "COMPLETED"):
            disk.saving.clear()
            disk.go.clear()
            saving = asyncio.create_task(store.save(turn_to(live, status), context()))
            await disk.saving.wait()
            assert not saving.done()
            disk.go.set()
            await saving
            assert state(disk.saves[-1]) == status
        assert len(disk.saves) == 5


async def test_a_status_with_another_message_is_on_disk_too(disk: Disk) -> None:
    live = task("t", "WORKING", at=1)
    async with over(disk) as store:
        for text in ("one", "two"):
            live.status.message.message_id = text
            await store.save(live, context())
        live.history.add(message_id="an answer")
        await store.save(live, context())
    assert [len(t.history) for t in disk.saves] == [0, 0, 1]


async def test_streamed_text_is_read_at_once_and_written_later(disk: Disk) -> None:
    live = task("t", "WORKING")
    async with over(disk) as store:
        await store.save(live, context())
        for i in range(100):
            await store.save(add(live, f"{i} "), context())
            read = await store.get("t", context())
            assert reply_text(read).endswith(f"{i} ")
        (listed,) = (await store.list(ListTasksRequest(), context())).tasks
        assert reply_text(listed) == reply_text(live)
        assert len(disk.saves) == 1
    assert [reply_text(t) for t in disk.saves[1:]] == [reply_text(live)]


async def test_text_is_checkpointed_though_no_more_comes(disk: Disk) -> None:
    live = task("t", "WORKING")
    async with over(disk, checkpoint=0.05) as store:
        await store.save(live, context())
        await store.save(add(live, "some"), context())
        await until(lambda: len(disk.saves) == 2)
        await store.save(add(live, " more"), context())
        await until(lambda: len(disk.saves) == 3)
    assert [reply_text(t) for t in disk.saves] == ["", "some", "some more"]


async def test_the_end_has_all_the_text(disk: Disk) -> None:
    live = task("t", "WORKING")
    async with over(disk) as store:
        await store.save(live, context())
        await store.save(add(live, "some"), context())
        await store.save(turn_to(add(live, " more"), "COMPLETED"), context())
        assert len(disk.saves) == 2
        add(live, "what the SDK does with its object now is its own affair")
        assert reply_text(await store.get("t", context())) == "some more"


async def test_a_state_is_not_told_before_it_is_on_disk(disk: Disk) -> None:
    live = task("t", "WORKING")
    async with over(disk) as store:
        await store.save(live, context())
        disk.go.clear()
        saving = asyncio.create_task(store.save(turn_to(live, "COMPLETED"), context()))
        reading = asyncio.create_task(store.get("t", context()))
        listed = (await store.list(ListTasksRequest(), context())).tasks
        assert [state(t) for t in listed] == ["WORKING"]
        for _ in range(5):
            await asyncio.sleep(0)
        assert not reading.done()
        disk.go.set()
        assert state(await reading) == "COMPLETED"
        await saving


async def test_a_checkpoint_never_overtakes_a_state(disk: Disk) -> None:
    live = task("t", "WORKING")
    async with over(disk, checkpoint=0.05) as store:
        await store.save(live, context())
        disk.saving.clear()
        disk.go.clear()
        await store.save(add(live, "text"), context())
        await disk.saving.wait()
        saving = asyncio.create_task(store.save(turn_to(live, "COMPLETED"), context()))
        await asyncio.sleep(0)
        disk.go.set()
        await saving
    assert [state(t) for t in disk.saves] == ["WORKING", "WORKING", "COMPLETED"]


async def test_text_that_a_state_took_along_is_not_written_again(disk: Disk) -> None:
    live = task("t", "SUBMITTED")
    async with over(disk, checkpoint=0.05) as store:
        await store.save(live, context())
        disk.go.clear()
        first = asyncio.create_task(store.save(turn_to(live, "WORKING"), context()))
        await asyncio.sleep(0)
        end = turn_to(add(task("t"), "all"), "COMPLETED")
        second = asyncio.create_task(store.save(end, context()))
        await asyncio.sleep(0)
        checkpointing = asyncio.create_task(store._write_text(("alice", "t")))
        await asyncio.sleep(0)
        disk.go.set()
        await asyncio.gather(first, second, checkpointing)
    assert [state(t) for t in disk.saves] == ["SUBMITTED", "WORKING", "COMPLETED"]


async def test_a_state_that_cannot_be_stored_ends_the_task_and_is_stored_later(disk: Disk) -> None:
    lost: list[str] = []

    async def on_lost(task_id: str) -> None:
        lost.append(task_id)

    live = add(task("t", "WORKING"), "so far")
    async with over(disk, checkpoint=0.05, on_lost=on_lost) as store:
        await store.save(live, context())
        disk.failure = StorageFailure("the disk is full")
        with pytest.raises(TaskNotStored, match="could not be stored: the disk is full") as caught:
            await store.save(turn_to(live, "COMPLETED"), context())
        for seen in (caught.value.task, await store.get("t", context())):
            assert failure_of(seen) == caught.value.as_dict()
            assert reply_text(seen) == "so far"
        assert caught.value.retryable
        await store.save(turn_to(live, "COMPLETED"), context())
        assert state(await store.get("t", context())) == "FAILED", "its end was told already"
        (listed,) = (await store.list(ListTasksRequest(), context())).tasks
        assert state(listed) == "FAILED"
        with pytest.raises(StorageFailure):
            await store.check()
        await until(lambda: lost == ["t"])
        disk.failure = None
        await until(lambda: len(disk.saves) == 2)
        await store.check()
    assert [state(t) for t in disk.saves] == ["WORKING", "FAILED"]


async def test_a_lost_task_keeps_the_store_unready_though_the_disk_is_well(disk: Disk) -> None:
    live = task("t", "WORKING")
    async with over(disk) as store:
        await store.save(live, context())
        disk.failure = StorageFailure("the disk is full")
        with pytest.raises(TaskNotStored):
            await store.save(turn_to(live, "COMPLETED"), context())
        disk.failure = None
        with pytest.raises(StorageFailure, match="1 tasks that ended still wait"):
            await store.check()
    assert state(disk.saves[-1]) == "FAILED"


async def test_a_disk_that_hangs_is_not_ready_and_the_last_reason_is_told(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(module, "_CHECK_WITHIN", 0.05)
    async with over(disk) as store:
        await store.save(task("t", "WORKING"), context())
        monkeypatch.setattr(disk, "check", hang)
        with pytest.raises(StorageFailure, match="does not answer"):
            await store.check()
        store._failure = StorageFailure("the disk is full")
        with pytest.raises(StorageFailure, match="the disk is full"):
            await store.check()


async def test_a_task_that_cannot_be_created_leaves_nothing_behind(disk: Disk) -> None:
    async with over(disk) as store:
        disk.failure = StorageFailure("the disk is full")
        with pytest.raises(TaskNotStored) as caught:
            await store.save(task("t", "SUBMITTED"), context())
        assert failure_of(caught.value.task)["kind"] == "internal"
        disk.failure = None
        assert await store.get("t", context()) is None
        await store.check()
    assert disk.saves == []


async def test_a_checkpoint_that_fails_costs_the_turn_nothing(disk: Disk) -> None:
    live = task("t", "WORKING")
    async with over(disk, checkpoint=0.05) as store:
        await store.save(live, context())
        disk.failure = StorageFailure("the disk is full")
        disk.saving.clear()
        await store.save(add(live, "some"), context())
        await disk.saving.wait()
        disk.failure = None
        await until(lambda: len(disk.saves) == 2)
        await store.save(turn_to(live, "COMPLETED"), context())
    assert [(state(t), reply_text(t)) for t in disk.saves[1:]] == [
        ("WORKING", "some"),
        ("COMPLETED", "some"),
    ]


async def test_what_no_disk_could_store_is_not_tried_for_ever(disk: Disk) -> None:
    live = task("t", "WORKING")
    async with over(disk, checkpoint=0.05) as store:
        await store.save(live, context())
        disk.failure = ValueError("secret: such a task cannot be written at all")
        with pytest.raises(TaskNotStored) as caught:
            await store.save(turn_to(live, "COMPLETED"), context())
        assert "secret" not in str(caught.value.task)
        disk.saving.clear()
        await disk.saving.wait()
        await until(lambda: not store._live)
        disk.failure = None
        await store.check()


async def test_a_save_that_is_cut_off_is_made_up_for(disk: Disk) -> None:
    live = task("t", "WORKING")
    async with over(disk) as store:
        await store.save(live, context())
        disk.go.clear()
        saving = asyncio.create_task(store.save(turn_to(live, "FAILED"), context()))
        await asyncio.sleep(0)
        saving.cancel()
        disk.go.set()
        await asyncio.gather(saving, return_exceptions=True)
    assert state(disk.saves[-1]) == "FAILED"


async def test_the_request_and_its_token_are_not_kept(disk: Disk) -> None:
    request = ServerCallContext(user=Named("alice"), state={"headers": "Bearer secret"})
    async with over(disk) as store:
        await store.save(task("t", "WORKING"), request)
    assert [c.state for c in disk.contexts] == [{}]


async def test_ended_tasks_are_kept_on_disk_only(disk: Disk) -> None:
    live = task("t", "WORKING")
    async with over(disk) as store:
        await store.save(live, context())
        await store.get("t", context())
        assert disk.reads == 0
        await store.save(turn_to(live, "COMPLETED"), context())
        await store.get("t", context())
        assert disk.reads == 1
        assert not store._live


async def test_no_disk_is_asked_for_a_task_that_is_about_to_be_made(disk: Disk) -> None:
    async with over(disk) as store:
        new = store.generate(IDGeneratorContext())
        assert await store.get(new, context()) is None
        assert disk.reads == 0
        await store.save(task(new, "COMPLETED"), context())
        assert await store.get(new, context()) == task(new, "COMPLETED")


async def test_ids_that_were_never_used_are_forgotten(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_UNUSED", 10)
    async with over(disk) as store:
        made = {store.generate(IDGeneratorContext()) for _ in range(100)}
        assert len(made) == 100
        assert len(store._unused) == 10


# Opening a store by its setting.


async def test_memory_keeps_nothing_and_needs_no_folder(
    settings: Callable[..., Settings], tmp_path: Path
) -> None:
    async with open_store(settings(STORE="memory")) as store:
        await store.tasks.save(task("t"), context())
        await store.check()
    assert not list(tmp_path.iterdir())


async def test_sqlite_is_the_default(settings: Callable[..., Settings], tmp_path: Path) -> None:
    async with open_store(settings()) as store:
        await store.tasks.save(task("t"), context())
    async with open_store(settings()) as store:
        assert await store.tasks.get("t", context()) == task("t")
    assert (tmp_path / "tasks.db").exists()


async def test_what_a_crash_left_is_interrupted_when_the_store_opens(
    settings: Callable[..., Settings], tmp_path: Path
) -> None:
    left = task("t", "WORKING", text="so far")
    left.status.message.parts.add(text="a tool runs")
    async with SqliteTaskStore(tmp_path / "tasks.db") as disk:
        await disk.save(left, context())
    async with open_store(settings()) as store:
        found = await store.tasks.get("t", context())
        assert failure_of(found) == {
            "kind": "interrupted",
            "message": "the agent was restarted during the turn",
            "hint": "send the message again; the conversation is kept",
            "retryable": True,
        }
        assert found is not None
        assert get_text_parts(found.status.message.parts)[0].startswith("the agent was restarted")
        assert get_text_parts(found.history[-1].parts) == ["a tool runs"]
        assert reply_text(found) == "so far"
        assert found.status.HasField("timestamp")


async def test_a_bridge_that_cannot_end_what_a_crash_left_does_not_start(
    settings: Callable[..., Settings], tmp_path: Path
) -> None:
    async with SqliteTaskStore(tmp_path / "tasks.db") as disk:
        await disk.save(task("t", "WORKING"), context())
        await disk.database.write("UPDATE tasks SET task = ?", (b"\xff",))
    with pytest.raises(StartError, match="holds a task that cannot be read"):
        async with open_store(settings()):
            pass


async def test_a_disk_that_fails_at_the_sweep_is_told_at_the_start(
    settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def sweep(self: SqliteTaskStore, end: EndTask) -> int:
        raise StorageFailure("the disk is full")

    monkeypatch.setattr(SqliteTaskStore, "sweep", sweep)
    with pytest.raises(StartError, match="the tasks of the last bridge: the disk is full"):
        async with open_store(settings()):
            pass


async def test_old_tasks_are_pruned_in_the_background(
    settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PRUNE_EVERY", 0.02)
    async with open_store(settings(KEEP_DAYS=30, KEEP_TASKS=2)) as store:
        for i in range(5):
            await store.tasks.save(task(f"t{i}", at=i), context())
        async with asyncio.timeout(10):
            while (page := await store.tasks.list(ListTasksRequest(), context())).total_size > 2:
                await asyncio.sleep(0.01)
    assert [t.id for t in page.tasks] == ["t4", "t3"]


async def test_nothing_young_is_pruned_by_default(
    settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[float, int]] = []

    async def prune(self: SqliteTaskStore, before: float, keep: int) -> int:
        asked.append((before, keep))
        return 0

    monkeypatch.setattr(SqliteTaskStore, "prune", prune)
    monkeypatch.setattr(module.time, "time", lambda: 100 * 86_400.0)
    async with open_store(settings()):
        await until(lambda: asked)
    assert asked == [(70 * 86_400.0, 0)]


@pytest.mark.parametrize(
    "value", ["sqlit", "sqlite:///x", "mysql://u:hunter2@h/db", "postgresql://", "://", "/tmp/x"]
)
def test_a_bad_store_is_told_by_name_and_without_a_secret(
    settings: Callable[..., Settings], value: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(STORE=value)
    assert re.match(r"MOLECULE_HERMES_STORE=.* is wrong: it takes sqlite", str(caught.value))
    assert "hunter2" not in str(caught.value)


async def test_a_database_url_that_makes_no_sense_is_told_without_its_secret(
    settings: Callable[..., Settings],
) -> None:
    with pytest.raises(StartError, match="MOLECULE_HERMES_STORE") as caught:
        async with open_store(settings(STORE="postgresql://u:p@host:hunter2/db")):
            pass
    assert "hunter2" not in str(caught.value)


async def test_a_database_without_its_driver_says_what_to_install(
    settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "molecule_hermes.stores.postgresql", None)
    with pytest.raises(StartError, match=r"pip install '\.\[postgresql\]'"):
        async with open_store(settings(STORE="postgres://u:p@host/db")):
            pass


def test_the_settings_show_no_password(settings: Callable[..., Settings]) -> None:
    made = settings(STORE="postgresql://u:hunter2@host/db")
    assert "hunter2" not in repr(made)
    assert made.store.get_secret_value() == "postgresql+asyncpg://u:hunter2@host/db"
