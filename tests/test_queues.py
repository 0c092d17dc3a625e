"""Our queue against asyncio's contract; on Python 3.13 asyncio's own runs the same tests."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from molecule_hermes.queues import Queue, QueueShutDown, Signal

QUEUES: list[Any] = [Queue]
if sys.version_info >= (3, 13):
    QUEUES.append(asyncio.Queue)


@pytest.fixture(params=QUEUES)
def make(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(autouse=True)
async def bounded() -> Any:
    async with asyncio.timeout(5):
        yield


async def begun(coroutine: Any) -> asyncio.Task[Any]:
    """A task that has got as far as it can without others."""
    task = asyncio.create_task(coroutine)
    for _ in range(3):
        await asyncio.sleep(0)
    return task


async def test_what_is_put_is_got_in_order(make: Any) -> None:
    queue = make()
    for number in range(3):
        queue.put_nowait(number)
    assert [await queue.get() for _ in range(3)] == [0, 1, 2]
    assert queue.empty()


async def test_who_waits_is_woken(make: Any) -> None:
    queue = make()
    waiters = [await begun(queue.get()) for _ in range(2)]
    queue.put_nowait("a")
    queue.put_nowait("b")
    assert [await waiter for waiter in waiters] == ["a", "b"]


@pytest.mark.parametrize("put_first", [False, True])
async def test_who_gives_up_loses_nothing(make: Any, put_first: bool) -> None:
    queue = make()
    leaves, stays = await begun(queue.get()), await begun(queue.get())
    if put_first:
        queue.put_nowait("a")
    leaves.cancel()
    await asyncio.wait({leaves})
    if not put_first:
        queue.put_nowait("a")
    assert await stays == "a"


async def test_a_full_queue_lets_who_puts_wait(make: Any) -> None:
    queue = make(1)
    await queue.put(1)
    with pytest.raises(asyncio.QueueFull):
        queue.put_nowait(2)
    waiter = await begun(queue.put(2))
    assert not waiter.done()
    assert await queue.get() == 1
    await waiter
    assert await queue.get() == 2


async def test_who_gives_up_to_put_leaves_the_place_to_the_next(make: Any) -> None:
    queue = make(1)
    await queue.put(1)
    leaves, stays = await begun(queue.put(2)), await begun(queue.put(3))
    assert await queue.get() == 1
    leaves.cancel()
    await asyncio.wait({leaves})
    await stays
    assert await queue.get() == 3


async def test_join_waits_until_all_is_done(make: Any) -> None:
    queue = make()
    for number in range(2):
        queue.put_nowait(number)
    joined = await begun(queue.join())
    for _ in range(2):
        assert not joined.done()
        await queue.get()
        queue.task_done()
        await asyncio.sleep(0)
    await joined
    with pytest.raises(ValueError, match="too many times"):
        queue.task_done()


async def test_shut_down_it_still_gives_what_it_has(make: Any) -> None:
    queue = make()
    queue.put_nowait(1)
    queue.shutdown()
    with pytest.raises(QueueShutDown):
        await queue.put(2)
    assert await queue.get() == 1
    with pytest.raises(QueueShutDown):
        await queue.get()


async def test_shut_down_at_once_it_forgets_what_it_has(make: Any) -> None:
    queue = make(2)
    queue.put_nowait(1)
    queue.put_nowait(2)
    putter, joined = await begun(queue.put(3)), await begun(queue.join())
    queue.shutdown(immediate=True)
    await joined
    for waiting in (putter, await begun(queue.get())):
        with pytest.raises(QueueShutDown):
            await waiting


async def test_a_shutdown_wakes_all_who_wait(make: Any) -> None:
    queue = make()
    waiters = [await begun(queue.get()) for _ in range(3)]
    queue.shutdown()
    outcomes = await asyncio.gather(*waiters, return_exceptions=True)
    assert all(isinstance(outcome, QueueShutDown) for outcome in outcomes)


@pytest.mark.parametrize("make", [Signal, asyncio.Event])
async def test_a_signal_wakes_all_who_wait_and_can_be_cleared(make: Any) -> None:
    signal = make()
    leaves, *stay = [await begun(signal.wait()) for _ in range(3)]
    leaves.cancel()
    await asyncio.wait({leaves})
    signal.set()
    signal.clear()
    await asyncio.gather(*stay)
    assert not signal.is_set()
    waiter = await begun(signal.wait())
    assert not waiter.done()
    signal.set()
    await waiter
    await signal.wait()
