"""When tasks are written: what peers are told at once, streamed text now and then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from a2a.server.context import ServerCallContext
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import (
    Artifact,
    ListTasksRequest,
    Message,
    Part,
    Task,
    TaskArtifactUpdateEvent,
    TaskStatusUpdateEvent,
)

from molecule_hermes.errors import StorageFailure
from molecule_hermes.protocol import task_registry as module
from molecule_hermes.protocol.task_log import Subscription, TaskEvent, TaskLog
from molecule_hermes.protocol.task_registry import TaskRegistry
from tests.support.peers import failure, reply_text, state
from tests.support.tasks import NamedUser, context, task
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(60)


class Disk(InMemoryTaskStore):
    """Notes what it is given; `go` holds it up, `failure` makes it fail."""

    def __init__(self) -> None:
        super().__init__()
        self.saves: list[Task] = []
        self.contexts: list[ServerCallContext] = []
        self.reads = 0
        self.failure: Exception | None = None
        self.go = asyncio.Event()
        self.go.set()
        self.saving = asyncio.Event()

    async def save(self, task: Task, context: ServerCallContext, turn: str = "") -> None:
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


async def nobody(task: Task, event: TaskEvent) -> None:
    pass


@pytest.fixture
def disk() -> Disk:
    return Disk()


@asynccontextmanager
async def over(disk: Disk, checkpoint: float = 3600, **more: Any) -> AsyncIterator[TaskRegistry]:
    more = {"check": disk.check} | more
    async with (
        asyncio.timeout(20),
        TaskRegistry(disk, nobody, checkpoint=checkpoint, **more) as tasks,
    ):
        yield tasks


async def begun(tasks: TaskRegistry, status: str = "WORKING") -> TaskLog:
    log = tasks.begin(Task(id="t", context_id="c"), context())
    await log.enqueue_event(task("t", status))
    return log


def became(status: str, text: str = "") -> TaskStatusUpdateEvent:
    event = TaskStatusUpdateEvent(task_id="t", context_id="c", status=task("t", status).status)
    event.status.timestamp.GetCurrentTime()
    if text:
        event.status.message.CopyFrom(Message(message_id=text, parts=[Part(text=text)]))
    return event


def piece(text: str) -> TaskArtifactUpdateEvent:
    artifact = Artifact(artifact_id="reply", parts=[Part(text=text)])
    return TaskArtifactUpdateEvent(task_id="t", context_id="c", artifact=artifact, append=True)


async def let_others_run() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def read(tasks: TaskRegistry, task_id: str = "t") -> Task:
    found = await tasks.get(task_id, context())
    assert found is not None
    return found


def failure_of(failed: Task) -> dict[str, Any]:
    assert state(failed) == "FAILED"
    return failure(failed.status)


async def test_every_state_is_on_disk_before_its_event_is_taken(disk: Disk) -> None:
    async with over(disk) as tasks:
        log = tasks.begin(Task(id="t", context_id="c"), context())
        events: list[TaskEvent] = [task("t", "SUBMITTED")]
        events += [became(s) for s in ("WORKING", "INPUT_REQUIRED", "WORKING", "COMPLETED")]
        for event in events:
            disk.saving.clear()
            disk.go.clear()
            writing = asyncio.create_task(log.enqueue_event(event))
            await disk.saving.wait()
            assert not writing.done()
            disk.go.set()
            await writing
            assert disk.saves[-1].status == event.status  # type: ignore[union-attr]
        assert len(disk.saves) == 5


async def test_a_status_with_another_message_and_an_answer_are_on_disk_too(disk: Disk) -> None:
    async with over(disk) as tasks:
        log = await begun(tasks)
        for text in ("one", "two"):
            await log.enqueue_event(became("WORKING", text))
        await log.add_message(Message(message_id="an answer"))
    assert [[m.message_id for m in t.history] for t in disk.saves] == [
        [],
        [],
        ["one"],
        ["one", "two", "an answer"],
    ]


async def test_streamed_text_is_read_at_once_and_written_later(disk: Disk) -> None:
    text = ""
    async with over(disk) as tasks:
        log = await begun(tasks)
        for i in range(100):
            text += f"{i} "
            await log.enqueue_event(piece(f"{i} "))
            assert reply_text(await read(tasks)) == text
        (listed,) = (await tasks.list(ListTasksRequest(), context())).tasks
        assert reply_text(listed) == text
        assert len(disk.saves) == 1
    assert [reply_text(t) for t in disk.saves[1:]] == [text]


async def test_text_is_checkpointed_though_no_more_comes(disk: Disk) -> None:
    async with over(disk, checkpoint=0.05) as tasks:
        log = await begun(tasks)
        await log.enqueue_event(piece("some"))
        await until(lambda: len(disk.saves) == 2)
        await log.enqueue_event(piece(" more"))
        await until(lambda: len(disk.saves) == 3)
    assert [reply_text(t) for t in disk.saves] == ["", "some", "some more"]


async def test_the_end_has_all_the_text(disk: Disk) -> None:
    async with over(disk) as tasks:
        log = await begun(tasks)
        await log.enqueue_event(piece("some"))
        await log.enqueue_event(piece(" more"))
        await log.enqueue_event(became("COMPLETED"))
        assert len(disk.saves) == 2
        await log.enqueue_event(piece("what comes after the end"))
        assert reply_text(await read(tasks)) == "some more"


async def test_a_state_is_not_published_before_it_is_on_disk(disk: Disk) -> None:
    async with over(disk) as tasks:
        log = await begun(tasks)
        disk.go.clear()
        writing = asyncio.create_task(log.enqueue_event(became("COMPLETED")))
        await let_others_run()
        reading = asyncio.create_task(read(tasks))
        listed = (await tasks.list(ListTasksRequest(), context())).tasks
        assert [state(t) for t in listed] == ["WORKING"]
        await let_others_run()
        assert not reading.done()
        disk.go.set()
        assert state(await reading) == "COMPLETED"
        await writing


async def test_a_checkpoint_never_overtakes_a_state(disk: Disk) -> None:
    async with over(disk, checkpoint=0.05) as tasks:
        log = await begun(tasks)
        disk.saving.clear()
        disk.go.clear()
        await log.enqueue_event(piece("text"))
        await disk.saving.wait()
        writing = asyncio.create_task(log.enqueue_event(became("COMPLETED")))
        await let_others_run()
        disk.go.set()
        await writing
    assert [state(t) for t in disk.saves] == ["WORKING", "WORKING", "COMPLETED"]


async def test_text_that_a_state_took_along_is_not_written_again(disk: Disk) -> None:
    ended: list[TaskLog] = []
    async with over(disk, on_end=ended.append) as tasks:
        log = await begun(tasks, "SUBMITTED")
        disk.go.clear()
        await log.enqueue_event(piece("all"))
        states = [asyncio.create_task(log.enqueue_event(became("WORKING")))]
        await let_others_run()
        states.append(asyncio.create_task(log.enqueue_event(became("COMPLETED"))))
        await let_others_run()
        checkpointing = asyncio.create_task(log.checkpoint())
        await let_others_run()
        disk.go.set()
        await asyncio.gather(*states, checkpointing)
    assert [state(t) for t in disk.saves] == ["SUBMITTED", "WORKING", "COMPLETED"]
    assert ended == [log]


async def test_a_state_that_cannot_be_stored_ends_the_task_and_is_stored_later(disk: Disk) -> None:
    ended: list[TaskLog] = []
    async with over(disk, checkpoint=0.05, on_end=ended.append) as tasks:
        log = await begun(tasks)
        await log.enqueue_event(piece("so far"))
        await until(lambda: len(disk.saves) == 2)
        disk.failure = StorageFailure("the disk is full")
        await log.enqueue_event(became("COMPLETED"))
        assert log.lost is not None
        assert "could not be stored: the disk is full" in log.lost.message
        assert log.lost.retryable
        seen = await read(tasks)
        assert failure_of(seen) == log.lost.as_dict()
        assert reply_text(seen) == "so far"
        await log.enqueue_event(became("COMPLETED"))
        assert state(await read(tasks)) == "FAILED", "its end was told already"
        (listed,) = (await tasks.list(ListTasksRequest(), context())).tasks
        assert state(listed) == "FAILED"
        with pytest.raises(StorageFailure):
            await tasks.check()
        disk.failure = None
        await until(lambda: len(disk.saves) == 3)
        await tasks.check()
        assert len(tasks) == 0
    assert [state(t) for t in disk.saves] == ["WORKING", "WORKING", "FAILED"]
    assert ended == [log]


async def test_a_lost_task_keeps_the_store_unready_though_the_disk_is_well(disk: Disk) -> None:
    async with over(disk) as tasks:
        log = await begun(tasks)
        disk.failure = StorageFailure("the disk is full")
        await log.enqueue_event(became("COMPLETED"))
        disk.failure = None
        with pytest.raises(StorageFailure, match="1 ended tasks are not stored yet"):
            await tasks.check()
    assert state(disk.saves[-1]) == "FAILED"


async def test_a_disk_that_hangs_is_not_ready_and_the_last_reason_is_reported(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(module, "_CHECK_WITHIN", 0.05)
    async with over(disk, check=hang) as tasks:
        log = await begun(tasks)
        with pytest.raises(StorageFailure, match="does not respond"):
            await tasks.check()
        disk.failure = StorageFailure("the disk is full")
        await log.enqueue_event(became("COMPLETED"))
        with pytest.raises(StorageFailure, match="the disk is full"):
            await tasks.check()


async def test_a_task_that_cannot_be_created_leaves_nothing_behind(disk: Disk) -> None:
    async with over(disk) as tasks:
        disk.failure = StorageFailure("the disk is full")
        log = await begun(tasks, "SUBMITTED")
        assert failure_of(await log.snapshot())["kind"] == "internal"
        disk.failure = None
        assert await tasks.get("t", context()) is None
        await tasks.check()
        assert len(tasks) == 0
    assert disk.saves == []


async def test_an_answer_that_cannot_be_stored_ends_the_task_for_everybody(disk: Disk) -> None:
    async with over(disk) as tasks:
        log = await begun(tasks, "INPUT_REQUIRED")
        reader = Subscription(log, 10, lambda: None)
        await log.subscribe(reader)
        disk.failure = StorageFailure("the disk is full")
        await log.add_message(Message(message_id="an answer"))
        (told,) = [event async for event in reader]
        assert state(told) == "FAILED"  # type: ignore[arg-type]
        disk.failure = None


async def test_an_answer_after_the_end_changes_nothing(disk: Disk) -> None:
    async with over(disk) as tasks:
        log = await begun(tasks, "INPUT_REQUIRED")
        await log.enqueue_event(became("COMPLETED"))
        await log.add_message(Message(message_id="late"))
        assert not (await read(tasks)).history
    assert len(disk.saves) == 2


async def test_a_checkpoint_that_fails_costs_the_turn_nothing(disk: Disk) -> None:
    async with over(disk, checkpoint=0.05) as tasks:
        log = await begun(tasks)
        disk.failure = StorageFailure("the disk is full")
        disk.saving.clear()
        await log.enqueue_event(piece("some"))
        await disk.saving.wait()
        disk.failure = None
        await until(lambda: len(disk.saves) == 2)
        await log.enqueue_event(became("COMPLETED"))
    assert [(state(t), reply_text(t)) for t in disk.saves[1:]] == [
        ("WORKING", "some"),
        ("COMPLETED", "some"),
    ]


async def test_what_no_disk_could_store_is_not_tried_for_ever(disk: Disk) -> None:
    async with over(disk, checkpoint=0.05) as tasks:
        log = await begun(tasks)
        disk.failure = ValueError("secret: such a task cannot be written at all")
        await log.enqueue_event(became("COMPLETED"))
        assert "secret" not in str(await log.snapshot())
        disk.saving.clear()
        await disk.saving.wait()
        await until(lambda: not len(tasks))
        disk.failure = None
        await tasks.check()


async def test_a_write_that_is_cut_off_is_made_up_for(disk: Disk) -> None:
    async with over(disk) as tasks:
        log = await begun(tasks)
        disk.go.clear()
        writing = asyncio.create_task(log.enqueue_event(became("FAILED")))
        await let_others_run()
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        asyncio.get_running_loop().call_later(0.1, disk.go.set)
    assert state(disk.saves[-1]) == "FAILED"


async def test_the_request_and_its_token_are_not_kept(disk: Disk) -> None:
    request = ServerCallContext(user=NamedUser("alice"), state={"headers": "Bearer secret"})
    async with over(disk) as tasks:
        log = tasks.begin(Task(id="t", context_id="c"), request)
        await log.enqueue_event(task("t", "WORKING"))
    assert [c.state for c in disk.contexts] == [{}]


async def test_ended_tasks_are_kept_on_disk_only(disk: Disk) -> None:
    async with over(disk) as tasks:
        log = await begun(tasks)
        await read(tasks)
        assert disk.reads == 0
        await log.enqueue_event(became("COMPLETED"))
        await read(tasks)
        assert disk.reads == 1
        assert len(tasks) == 0


async def test_a_task_that_is_about_to_be_made_is_waited_for_and_no_disk_is_asked(
    disk: Disk,
) -> None:
    async with over(disk) as tasks:
        log = tasks.begin(Task(id="t", context_id="c"), context())
        reading = asyncio.create_task(read(tasks))
        await let_others_run()
        assert not reading.done()
        await log.enqueue_event(task("t", "WORKING"))
        assert (await reading).status == task("t", "WORKING").status
        assert disk.reads == 0


async def test_a_working_task_belongs_to_its_peer(disk: Disk) -> None:
    async with over(disk) as tasks:
        await begun(tasks)
        assert await tasks.get("t", context("bob")) is None
        assert tasks.log("t", context("bob")) is None
        assert not (await tasks.list(ListTasksRequest(), context("bob"))).tasks


async def test_a_stored_task_is_adopted_and_an_ended_one_takes_no_memory(disk: Disk) -> None:
    await disk.save(task("t", "INPUT_REQUIRED", text="so far"), context())
    await disk.save(task("u", "COMPLETED"), context())
    async with over(disk) as tasks:
        log = tasks.adopt(await read(tasks), context())
        assert tasks.log("t", context()) is log
        reader = Subscription(log, 10, lambda: None)
        await log.subscribe(reader)
        disk.failure = StorageFailure("the disk is full")
        await log.enqueue_event(became("COMPLETED"))
        (told,) = [event async for event in reader]
        assert isinstance(told, TaskStatusUpdateEvent), "the task itself was told before"
        disk.failure = None
        assert tasks.adopt(await read(tasks, "u"), context()).ended
        assert tasks.log("u", context()) is None
