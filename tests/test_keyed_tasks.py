from __future__ import annotations

import asyncio
from collections import deque

import pytest

from molecule_hermes.keyed_tasks import KeyedTasks
from tests.support.waiting import until


class Queues:
    """Items by key, and a handler that records them and waits where it is told to."""

    def __init__(self) -> None:
        self.waiting: dict[str, deque[str]] = {}
        self.handled: list[str] = []
        self.running: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.tasks = KeyedTasks(self._take, self._handle)

    def add(self, item: str) -> None:
        key = item[0]
        self.waiting.setdefault(key, deque()).append(item)
        self.tasks.wake(key)

    def _take(self, key: str) -> str | None:
        return self.waiting[key].popleft() if self.waiting[key] else None

    async def _handle(self, item: str) -> None:
        self.running.append(item)
        assert len({running[0] for running in self.running}) == len(self.running)
        try:
            if item in self.gates:
                await self.gates[item].wait()
            if item.endswith("!"):
                raise RuntimeError(item)
            self.handled.append(item)
        finally:
            self.running.remove(item)


async def test_items_of_a_key_are_handled_in_order_and_keys_side_by_side() -> None:
    queues = Queues()
    queues.gates["a1"] = asyncio.Event()
    for item in ("a1", "a2", "b1", "b2"):
        queues.add(item)
    await until(lambda: queues.handled == ["b1", "b2"])
    assert queues.running == ["a1"]
    queues.gates["a1"].set()
    await until(lambda: queues.handled == ["b1", "b2", "a1", "a2"])
    await queues.tasks.close()


async def test_an_item_added_after_the_last_one_is_handled() -> None:
    queues = Queues()
    for number in range(5):
        queues.add(f"a{number}")
        await until(lambda n=number: len(queues.handled) == n + 1)
    await queues.tasks.close()


async def test_an_item_that_fails_does_not_hold_up_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    queues = Queues()
    queues.add("a!")
    queues.add("a2")
    await until(lambda: queues.handled == ["a2"])
    assert "a!" in caplog.text
    await queues.tasks.close()


async def test_closing_finishes_what_it_can_in_time_and_cancels_the_rest() -> None:
    queues = Queues()
    queues.gates["a1"] = asyncio.Event()
    for item in ("a1", "a2", "b1", "b2"):
        queues.add(item)
    await queues.tasks.flush(0.1)
    await queues.tasks.close()
    assert queues.handled == ["b1", "b2"]
    assert queues.running == []


async def test_a_key_can_be_woken_again_after_closing() -> None:
    queues = Queues()
    queues.add("a1")
    await queues.tasks.close()
    assert queues.handled == []
    queues.add("a2")
    await until(lambda: queues.handled == ["a1", "a2"])
    await queues.tasks.close()
