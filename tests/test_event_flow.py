"""Our flow of events and the SDK's, held to the same behaviour."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from a2a.server.agent_execution import active_task, active_task_registry
from a2a.server.events.event_queue_v2 import EventQueueSource
from a2a.types import Message

from molecule_hermes import event_flow
from molecule_hermes.event_flow import EventFlow, FlowingTask
from molecule_hermes.queues import Queue, QueueShutDown


@pytest.fixture(params=[EventFlow, EventQueueSource])
def make(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(autouse=True)
async def bounded() -> Any:
    async with asyncio.timeout(5):
        yield


def event(number: int = 0) -> Message:
    return Message(message_id=str(number))


async def read(reader: Any, count: int) -> list[str]:
    got = []
    for _ in range(count):
        got.append((await reader.dequeue_event()).message_id)
        reader.task_done()
    return got


async def test_events_come_in_order_to_the_flow_itself_and_to_every_tap(make: Any) -> None:
    flow = make()
    taps = [await flow.tap() for _ in range(2)]
    for number in range(3):
        await flow.enqueue_event(event(number))
    for reader in (flow, *taps):
        assert await read(reader, 3) == ["0", "1", "2"]
    await flow.close()


async def test_closed_it_gives_what_it_has_and_returns_when_all_is_read(make: Any) -> None:
    flow = make()
    tap = await flow.tap()
    await flow.enqueue_event(event())
    closing = asyncio.create_task(flow.close())
    await asyncio.sleep(0.01)
    for reader in (flow, tap):
        assert not closing.done()
        assert await read(reader, 1) == ["0"]
    await closing
    for reader in (flow, tap):
        with pytest.raises(QueueShutDown):
            await reader.dequeue_event()
    with pytest.raises(QueueShutDown):
        await flow.tap()
    await flow.enqueue_event(event())  # dropped, and no error


async def test_closed_at_once_it_wakes_who_reads_and_who_writes(make: Any) -> None:
    flow = make(1)
    reading = asyncio.create_task((await flow.tap()).dequeue_event())
    writing = asyncio.create_task(write_many(flow))
    await asyncio.sleep(0.01)
    assert not writing.done()
    await reading
    await flow.close(immediate=True)
    await writing
    with pytest.raises(QueueShutDown):
        await flow.dequeue_event()


async def write_many(flow: Any) -> None:
    for number in range(10):
        await flow.enqueue_event(event(number))


async def test_a_tap_that_does_not_read_is_let_go_and_holds_up_nobody(make: Any) -> None:
    flow = make(create_default_sink=False)
    await flow.tap(evict_on_full=True)
    good = await flow.tap(evict_on_full=True)
    for number in range(1100):
        await flow.enqueue_event(event(number))
        assert await read(good, 1) == [str(number)]
    await flow.close()


async def test_a_tap_that_is_closed_gets_nothing_more_and_is_not_waited_for(make: Any) -> None:
    flow = make(create_default_sink=False)
    tap = await flow.tap()
    await flow.enqueue_event(event())
    await tap.close(immediate=True)
    await flow.enqueue_event(event())
    await flow.close()
    with pytest.raises(QueueShutDown):
        await tap.dequeue_event()


async def test_one_who_reads_slowly_does_not_keep_others_from_their_end(make: Any) -> None:
    flow = make(create_default_sink=False)
    slow, quick = await flow.tap(), await flow.tap()
    await flow.enqueue_event(event())
    closing = asyncio.create_task(flow.close())
    assert await read(quick, 1) == ["0"]
    with pytest.raises(QueueShutDown):
        await quick.dequeue_event()
    assert not closing.done()
    await read(slow, 1)
    await closing


@pytest.mark.parametrize("make", [EventFlow], ids=["ours"])
async def test_in_a_burst_who_reads_gets_all_and_nobody_stands_still(make: Any) -> None:
    flow = make(create_default_sink=False, max_events=16)
    tap = await flow.tap(evict_on_full=True)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    async def read_slowly() -> list[str]:
        got = []
        for _ in range(500):
            got += await read(tap, 1)
            for _ in range(5):
                await asyncio.sleep(0)
        return got

    ticking, reading = asyncio.create_task(tick()), asyncio.create_task(read_slowly())
    for number in range(500):
        await flow.enqueue_event(event(number))
    assert await reading == [str(number) for number in range(500)]
    assert ticks > 500
    ticking.cancel()


async def test_who_is_cancelled_while_it_writes_has_written(make: Any) -> None:
    flow = make()
    for number in range(3):
        writing = asyncio.create_task(flow.enqueue_event(event(number)))
        await asyncio.sleep(0)
        writing.cancel()
        await asyncio.wait({writing})
    assert await read(flow, 3) == ["0", "1", "2"]
    await flow.close()


async def test_those_that_are_let_go_are_counted() -> None:
    dropped: list[int] = []
    flow = EventFlow(create_default_sink=False, max_events=2, on_dropped=lambda: dropped.append(1))
    tap = await flow.tap(evict_on_full=True)
    for number in range(4):
        await flow.enqueue_event(event(number))
    assert dropped == [1]
    with pytest.raises(QueueShutDown):
        await tap.dequeue_event()


def test_the_sdk_still_makes_its_queues_by_the_names_that_are_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("EventQueueSource", "create_async_queue"):
        monkeypatch.setattr(active_task, name, getattr(active_task, name))
        assert name in active_task.ActiveTask.__init__.__code__.co_names
    monkeypatch.setattr(active_task_registry, "ActiveTask", active_task.ActiveTask)
    made = active_task_registry.ActiveTaskRegistry.get_or_create.__code__.co_names
    assert "ActiveTask" in made
    event_flow.install()
    assert active_task_registry.ActiveTask is FlowingTask  # type: ignore[attr-defined]
    assert isinstance(active_task.EventQueueSource(), EventFlow)  # type: ignore[attr-defined]
    assert isinstance(active_task.create_async_queue(), Queue)  # type: ignore[attr-defined]
