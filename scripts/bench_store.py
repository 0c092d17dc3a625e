#!/usr/bin/env python
"""What storing a task costs: our SQLite store beside the SDK's own, and memory.

    .venv/bin/python scripts/bench_store.py

Every figure is the best of several rounds, because other work on the machine only adds to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import uvloop
from a2a.server.context import ServerCallContext
from a2a.server.tasks import DatabaseTaskStore, TaskStore
from a2a.types import Message, Part, Task, TaskState, TaskStatus
from sqlalchemy.ext.asyncio import create_async_engine

from molecule_hermes.store import CheckpointedStore
from molecule_hermes.stores.memory import MemoryTaskStore
from molecule_hermes.stores.sqlite import SqliteTaskStore

ROUNDS = 5
STATES = (
    TaskState.TASK_STATE_SUBMITTED,
    TaskState.TASK_STATE_WORKING,
    TaskState.TASK_STATE_COMPLETED,
)
CONTEXT = ServerCallContext()


@contextlib.asynccontextmanager
async def sdk_sqlite(folder: Path) -> AsyncIterator[TaskStore]:
    engine = create_async_engine(f"sqlite+aiosqlite:///{folder}/sdk.db")
    store = DatabaseTaskStore(engine)
    await store.initialize()
    yield store
    await engine.dispose()


@contextlib.asynccontextmanager
async def our_sqlite(folder: Path) -> AsyncIterator[TaskStore]:
    async with SqliteTaskStore(folder / "tasks.db") as disk, CheckpointedStore(disk) as store:
        yield store


@contextlib.asynccontextmanager
async def memory(folder: Path) -> AsyncIterator[TaskStore]:
    yield MemoryTaskStore()


Open = Callable[[Path], contextlib.AbstractAsyncContextManager[TaskStore]]
STORES: dict[str, Open] = {
    "memory": memory,
    "SQLite, ours": our_sqlite,
    "SQLite, the SDK's": sdk_sqlite,
}


def new_task(name: str) -> Task:
    message = Message(message_id="m", parts=[Part(text="what is the answer to this question?")])
    return Task(id=name, context_id="c", status=TaskStatus(), history=[message])


async def turns(store: TaskStore, count: int, writers: int) -> None:
    """Three states each, as a turn has them."""

    async def writer(number: int) -> None:
        for i in range(count // writers):
            task = new_task(f"t{number}-{i}")
            for state in STATES:
                task.status.state = state
                task.status.timestamp.GetCurrentTime()
                await store.save(task, CONTEXT)

    await asyncio.gather(*(writer(number) for number in range(writers)))


async def stream(store: TaskStore, updates: int) -> None:
    """One reply that grows by a few letters with each update."""
    task = new_task(f"stream{updates}")
    task.status.state = TaskState.TASK_STATE_WORKING
    await store.save(task, CONTEXT)
    reply = task.artifacts.add(artifact_id="reply")
    for _ in range(updates):
        reply.parts.add(text="delta ")
        await store.save(task, CONTEXT)
    task.status.state = TaskState.TASK_STATE_COMPLETED
    await store.save(task, CONTEXT)


async def best(work: Callable[[], Awaitable[None]], rounds: int) -> tuple[float, float]:
    """Seconds on the clock and of CPU, of all threads."""
    clock, cpu = [], []
    for _ in range(rounds):
        began, busy = time.perf_counter(), time.process_time()
        await work()
        clock.append(time.perf_counter() - began)
        cpu.append(time.process_time() - busy)
    return min(clock), min(cpu)


async def saves(count: int = 480) -> None:
    print(f"{'saving states':20} {'writers':>7} {'µs of CPU':>10} {'saves/s':>9} {'commits':>8}")
    for name, open_store in STORES.items():
        # With more than one writer the SDK's fails with "database is locked".
        for writers in (1,) if open_store is sdk_sqlite else (1, 32):
            with tempfile.TemporaryDirectory() as folder:
                async with open_store(Path(folder)) as store:
                    clock, cpu = await best(lambda s=store, w=writers: turns(s, count, w), ROUNDS)
                    commits = "–"
                    if isinstance(store, CheckpointedStore):
                        commits = str(store._inner.database.commits // ROUNDS)
            done = 3 * count
            print(
                f"{name:20} {writers:7} {cpu / done * 1e6:10.0f} {done / clock:9.0f} {commits:>8}"
            )
    print(f"(commits: of {3 * count} saves)")


async def streams() -> None:
    print(f"\n{'one stream':20} {'updates':>7} {'s':>10} {'ms of CPU':>10}")
    for name, open_store in STORES.items():
        for updates in (2000, 8000):
            slow = open_store is sdk_sqlite
            if slow and updates > 2000:
                continue
            with tempfile.TemporaryDirectory() as folder:
                async with open_store(Path(folder)) as store:
                    clock, cpu = await best(
                        lambda s=store, u=updates: stream(s, u), 1 if slow else ROUNDS
                    )
            print(f"{name:20} {updates:7} {clock:10.3f} {cpu * 1e3:10.1f}")


async def main() -> None:
    logging.disable(logging.CRITICAL)
    await saves()
    await streams()


if __name__ == "__main__":
    uvloop.run(main())
