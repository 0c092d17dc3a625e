"""A task's log, without sockets and without a disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from a2a.auth.user import UnauthenticatedUser
from a2a.server.context import ServerCallContext
from a2a.types import (
    Artifact,
    Message,
    Part,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.errors import InternalFailure, StorageFailure
from molecule_hermes.protocol.states import TERMINAL, ends
from molecule_hermes.protocol.task_log import Subscription, TaskEvent, TaskLog
from molecule_hermes.storage.contents import merge_text

pytestmark = pytest.mark.timeout(30)

WORKING = TaskState.TASK_STATE_WORKING
COMPLETED = TaskState.TASK_STATE_COMPLETED
FAILED = TaskState.TASK_STATE_FAILED


class Disk:
    """Remembers what was recorded, and when; fails as told."""

    def __init__(self) -> None:
        self.recorded: list[Task] = []
        self.later: list[TaskLog] = []
        self.lost_logs: list[TaskLog] = []
        self.failure: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def record(self, log: TaskLog) -> None:
        await self.gate.wait()
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        copy = Task()
        copy.CopyFrom(log.task)
        self.recorded.append(copy)

    def record_later(self, log: TaskLog) -> None:
        self.later.append(log)

    def lost(self, log: TaskLog) -> None:
        self.lost_logs.append(log)


class SlowDisk(Disk):
    """Takes `pace` turns of the loop for a record, and fails at one of them and ever after."""

    def __init__(self, pace: int, fails_at: int | None) -> None:
        super().__init__()
        self._pace = pace
        self._fails_at = fails_at
        self._records = 0

    async def record(self, log: TaskLog) -> None:
        self._records += 1
        for _ in range(self._pace):
            await asyncio.sleep(0)
        if self._fails_at is not None and self._records >= self._fails_at:
            self.failure = StorageFailure("the disk is full")
        await super().record(log)


async def nobody(task: Task, event: TaskEvent) -> None:
    pass


def make(disk: Disk | None = None, listener: Any = nobody) -> TaskLog:
    context = ServerCallContext(user=UnauthenticatedUser())
    return TaskLog(Task(id="t", context_id="c"), context, disk or Disk(), listener)


def created() -> Task:
    status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
    return Task(id="t", context_id="c", status=status)


def status(state: TaskState, text: str = "") -> TaskStatusUpdateEvent:
    event = TaskStatusUpdateEvent(task_id="t", context_id="c", status=TaskStatus(state=state))
    if text:
        event.status.message.CopyFrom(Message(message_id=text, parts=[Part(text=text)]))
    return event


def piece(text: str, append: bool = True, name: str = "reply") -> TaskArtifactUpdateEvent:
    artifact = Artifact(artifact_id=name, parts=[Part(text=text)])
    return TaskArtifactUpdateEvent(task_id="t", context_id="c", artifact=artifact, append=append)


def reader(log: TaskLog, max_events: int = 1024, dropped: Callable[[], None] = lambda: None) -> Any:
    return Subscription(log, max_events, dropped)


async def rest_of(subscription: Subscription) -> list[TaskEvent]:
    return [event async for event in subscription]


def rebuilt(snapshot: Task, events: list[TaskEvent]) -> Task:
    """What a client makes of a snapshot and the events after it."""
    task = Task()
    task.CopyFrom(snapshot)
    for event in events:
        match event:
            case Task():
                task.CopyFrom(event)
            case TaskStatusUpdateEvent():
                if task.status.HasField("message"):
                    task.history.append(task.status.message)
                task.status.CopyFrom(event.status)
                task.metadata.MergeFrom(event.metadata)
            case TaskArtifactUpdateEvent():
                known = [a for a in task.artifacts if a.artifact_id == event.artifact.artifact_id]
                if not known:
                    task.artifacts.append(event.artifact)
                elif event.append:
                    known[0].parts[0].text += event.artifact.parts[0].text
                else:
                    known[0].CopyFrom(event.artifact)
    return task


events = st.lists(
    st.one_of(
        st.builds(piece, st.text("ab", min_size=1, max_size=3), st.booleans()),
        st.builds(piece, st.text("xy", max_size=3), st.booleans(), st.just("other")),
        st.builds(status, st.just(WORKING), st.text("st", max_size=2)),
        st.builds(status, st.just(TaskState.TASK_STATE_INPUT_REQUIRED), st.just("?")),
    ),
    max_size=12,
)


MOMENTS = st.lists(st.tuples(st.integers(0, 13), st.integers(0, 6)), max_size=5)
"""After which event somebody subscribes, and how many turns of the loop later."""


@given(
    middle=events,
    moments=MOMENTS,
    last=st.sampled_from(sorted(TERMINAL)),
    pace=st.integers(0, 4),
    fails_at=st.none() | st.integers(1, 8),
)
async def test_snapshot_and_tail_are_the_whole_whenever_one_subscribes(
    middle: list[TaskEvent],
    moments: list[tuple[int, int]],
    last: TaskState,
    pace: int,
    fails_at: int | None,
) -> None:
    disk = SlowDisk(pace, fails_at)
    log = make(disk)
    followers: list[tuple[Task, list[TaskEvent]]] = []

    async def follow(turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        async with reader(log) as subscription:
            snapshot = await log.subscribe(subscription)
            followers.append((snapshot, await rest_of(subscription)))

    every = reader(log)
    log.follow(every)
    async with asyncio.TaskGroup() as group:
        for number, event in enumerate([created(), *middle, status(last, "end")]):
            for moment, turns in moments:
                if moment == number:
                    group.create_task(follow(turns))
            await log.enqueue_event(event)
        for moment, turns in moments:
            if moment > len(middle) + 1:
                group.create_task(follow(turns))
    whole = await log.snapshot()
    assert whole.status.state in TERMINAL
    assert len(followers) == len(moments)
    for snapshot, tail in [(Task(), await rest_of(every)), *followers]:
        assert rebuilt(snapshot, tail) == whole
        assert not any(ends(event) for event in tail[:-1])
    if log.lost is None:
        stored = disk.recorded[-1]
        merge_text(stored)
        assert stored == whole, "the store has what subscribers saw"


async def test_a_state_is_durable_before_it_is_published() -> None:
    disk = Disk()
    log = make(disk)
    subscription = reader(log)
    log.follow(subscription)
    disk.gate.clear()
    writing = asyncio.create_task(log.enqueue_event(created()))
    for _ in range(5):
        await asyncio.sleep(0)
    assert subscription.lag == 0
    assert disk.recorded == []
    disk.gate.set()
    await writing
    assert subscription.lag == 1
    assert [task.id for task in disk.recorded] == ["t"]


async def test_a_state_cannot_be_read_before_it_is_durable() -> None:
    disk = Disk()
    log = make(disk)
    await log.enqueue_event(created())
    disk.gate.clear()
    writing = asyncio.create_task(log.enqueue_event(status(COMPLETED)))
    for _ in range(3):
        await asyncio.sleep(0)
    reading = asyncio.create_task(log.snapshot())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not reading.done()
    disk.gate.set()
    await writing
    assert (await reading).status.state == COMPLETED


async def test_text_is_published_at_once_and_recorded_later() -> None:
    disk = Disk()
    log = make(disk)
    await log.enqueue_event(created())
    subscription = reader(log)
    log.follow(subscription)
    await log.enqueue_event(piece("one ", append=False))
    await log.enqueue_event(piece("two"))
    assert subscription.lag == 2
    assert len(disk.recorded) == 1
    assert disk.later == [log, log]
    assert [p.text for p in (await log.snapshot()).artifacts[0].parts] == ["one two"]


async def test_a_writer_that_is_canceled_has_written() -> None:
    disk = Disk()
    log = make(disk)
    await log.enqueue_event(created())
    subscription = reader(log)
    log.follow(subscription)
    disk.gate.clear()
    writing = asyncio.create_task(log.enqueue_event(status(WORKING, "a tool runs")))
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    disk.gate.set()
    assert (await anext(subscription)).status.state == WORKING  # type: ignore[union-attr]
    assert disk.recorded[-1].status.message.message_id == "a tool runs"


async def test_a_state_that_cannot_be_stored_fails_the_task() -> None:
    disk = Disk()
    log = make(disk)
    await log.enqueue_event(created())
    subscription = reader(log)
    log.follow(subscription)
    disk.failure = StorageFailure("the disk is full")
    await log.enqueue_event(status(COMPLETED))
    (told,) = await rest_of(subscription)
    assert isinstance(told, TaskStatusUpdateEvent)
    assert told.status.state == FAILED
    assert "the disk is full" in told.status.message.parts[0].text
    assert disk.lost_logs == [log]
    await log.enqueue_event(status(COMPLETED))
    assert (await log.snapshot()).status.state == FAILED


async def test_a_task_that_cannot_be_created_is_published_as_failed() -> None:
    disk = Disk()
    disk.failure = RuntimeError("password=hunter2")
    log = make(disk)
    subscription = reader(log)
    log.follow(subscription)
    await log.enqueue_event(created())
    (told,) = await rest_of(subscription)
    assert isinstance(told, Task)
    assert told.status.state == FAILED
    assert "hunter2" not in str(told)


async def test_events_after_the_end_or_out_of_order_are_dropped() -> None:
    log = make()
    subscription = reader(log)
    log.follow(subscription)
    await log.enqueue_event(status(WORKING))
    await log.enqueue_event(Message(message_id="m"))
    await log.enqueue_event(created())
    await log.enqueue_event(created())
    await log.enqueue_event(Task(id="another"))
    await log.enqueue_event(status(COMPLETED))
    await log.enqueue_event(status(WORKING))
    await log.enqueue_event(piece("late"))
    assert len(await rest_of(subscription)) == 2
    assert log.version == 2


async def test_a_task_without_an_end_gets_one() -> None:
    log = make()
    subscription = reader(log)
    log.follow(subscription)
    await log.end(InternalFailure())
    await log.end(InternalFailure())
    (told,) = await rest_of(subscription)
    assert told.status.state == FAILED  # type: ignore[union-attr]


async def test_a_subscriber_that_falls_behind_is_dropped_and_delays_no_other() -> None:
    log, dropped = make(), []
    slow, quick = reader(log, 3, lambda: dropped.append(1)), reader(log, 3)
    await log.enqueue_event(created())
    log.follow(slow)
    log.follow(quick)
    reading = asyncio.create_task(rest_of(quick))
    for number in range(10):
        await log.enqueue_event(piece(str(number)))
    await log.enqueue_event(status(COMPLETED))
    assert len(await reading) == 11
    assert await rest_of(slow) == []
    assert dropped == [1]


async def test_a_subscriber_to_an_ended_task_gets_its_end_and_no_more() -> None:
    log = make()
    await log.enqueue_event(created())
    await log.enqueue_event(status(COMPLETED))
    subscription = reader(log)
    assert (await log.subscribe(subscription)).status.state == COMPLETED
    assert await rest_of(subscription) == []


async def test_a_listener_that_fails_delays_no_subscriber() -> None:
    async def broken(task: Task, event: TaskEvent) -> None:
        raise RuntimeError("no webhook")

    log = make(listener=broken)
    await log.enqueue_event(created())
    await log.enqueue_event(status(COMPLETED))
    assert log.ended


async def test_waiting_ends_when_the_task_rests() -> None:
    log = make()
    begun = asyncio.create_task(log.wait(after=0))
    rests = asyncio.create_task(log.wait())
    await asyncio.sleep(0)
    await log.enqueue_event(created())
    await begun
    assert not rests.done()
    await log.enqueue_event(status(TaskState.TASK_STATE_INPUT_REQUIRED, "what?"))
    await rests
