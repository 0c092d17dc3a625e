#!/usr/bin/env python
"""Measures the cost of storing a task: our registry with SQLite and in memory, and the SDK's store.

    .venv/bin/python scripts/bench_store.py

Every figure is the best of several rounds, because other load on the machine only increases it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Protocol

import uvloop
from a2a.server.context import ServerCallContext
from a2a.server.tasks import DatabaseTaskStore, TaskStore
from a2a.types import Artifact, Message, Part, Task, TaskArtifactUpdateEvent, TaskState, TaskStatus
from sqlalchemy.ext.asyncio import create_async_engine

from molecule_hermes.protocol.status import status_of
from molecule_hermes.protocol.task_log import TaskEvent
from molecule_hermes.protocol.task_registry import TaskRegistry
from molecule_hermes.storage.memory import MemoryTaskStore
from molecule_hermes.storage.sqlite.store import SqliteTaskStore

ROUNDS = 5
STATES = (
    TaskState.TASK_STATE_SUBMITTED,
    TaskState.TASK_STATE_WORKING,
    TaskState.TASK_STATE_COMPLETED,
)
CONTEXT = ServerCallContext()


class Tasks(Protocol):
    """Stores a task whenever it changes."""

    async def set_state(self, task: Task) -> None: ...

    async def add_text(self, task: Task, text: str) -> None: ...


class Saved:
    """The SDK saves the whole task after every event."""

    def __init__(self, store: TaskStore) -> None:
        self._store = store

    async def set_state(self, task: Task) -> None:
        await self._store.save(task, CONTEXT)

    async def add_text(self, task: Task, text: str) -> None:
        if not task.artifacts:
            task.artifacts.add(artifact_id="reply")
        task.artifacts[0].parts.add(text=text)
        await self._store.save(task, CONTEXT)


class Logged:
    """Events go to the log of their task."""

    def __init__(self, tasks: TaskRegistry, commits: Callable[[], int] | None = None) -> None:
        self._tasks = tasks
        self.commits = commits

    async def set_state(self, task: Task) -> None:
        if log := self._tasks.log(task.id, CONTEXT):
            await log.enqueue_event(status_of(task))
        else:
            new = Task(id=task.id, context_id=task.context_id)
            await self._tasks.begin(new, CONTEXT).enqueue_event(task)

    async def add_text(self, task: Task, text: str) -> None:
        artifact = Artifact(artifact_id="reply", parts=[Part(text=text)])
        log = self._tasks.log(task.id, CONTEXT)
        assert log is not None
        await log.enqueue_event(
            TaskArtifactUpdateEvent(
                task_id=task.id, context_id=task.context_id, artifact=artifact, append=True
            )
        )


async def no_webhooks(task_id: str, event: TaskEvent) -> None:
    pass


@contextlib.asynccontextmanager
async def sdk_sqlite(folder: Path) -> AsyncIterator[Tasks]:
    engine = create_async_engine(f"sqlite+aiosqlite:///{folder}/sdk.db")
    store = DatabaseTaskStore(engine)
    await store.initialize()
    yield Saved(store)
    await engine.dispose()


@contextlib.asynccontextmanager
async def our_sqlite(folder: Path) -> AsyncIterator[Tasks]:
    async with (
        SqliteTaskStore(folder / "tasks.db") as disk,
        TaskRegistry(disk, no_webhooks) as tasks,
    ):
        yield Logged(tasks, lambda: disk.database.commits)


@contextlib.asynccontextmanager
async def memory(folder: Path) -> AsyncIterator[Tasks]:
    async with TaskRegistry(MemoryTaskStore(), no_webhooks) as tasks:
        yield Logged(tasks)


Open = Callable[[Path], contextlib.AbstractAsyncContextManager[Tasks]]
STORES: dict[str, Open] = {
    "memory": memory,
    "SQLite, ours": our_sqlite,
    "SQLite, the SDK's": sdk_sqlite,
}


def new_task(name: str) -> Task:
    message = Message(message_id="m", parts=[Part(text="what is the answer to this question?")])
    return Task(id=name, context_id="c", status=TaskStatus(), history=[message])


async def turns(tasks: Tasks, count: int, writers: int) -> None:
    """Stores three states for each task, as a turn does."""

    async def writer(number: int) -> None:
        for i in range(count // writers):
            task = new_task(f"t{number}-{i}")
            for state in STATES:
                task.status.state = state
                task.status.timestamp.GetCurrentTime()
                await tasks.set_state(task)

    await asyncio.gather(*(writer(number) for number in range(writers)))


async def stream(tasks: Tasks, updates: int) -> None:
    """Stores one reply that grows by a few characters with each update."""
    task = new_task(f"stream{updates}")
    task.status.state = TaskState.TASK_STATE_WORKING
    await tasks.set_state(task)
    for _ in range(updates):
        await tasks.add_text(task, "delta ")
    task.status.state = TaskState.TASK_STATE_COMPLETED
    await tasks.set_state(task)


async def best(work: Callable[[], Awaitable[None]], rounds: int) -> tuple[float, float]:
    """Returns wall-clock seconds and CPU seconds of all threads."""
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
        # With more than one writer, the SDK's store fails with "database is locked".
        for writers in (1,) if open_store is sdk_sqlite else (1, 32):
            with tempfile.TemporaryDirectory() as folder:
                async with open_store(Path(folder)) as tasks:
                    clock, cpu = await best(lambda t=tasks, w=writers: turns(t, count, w), ROUNDS)
                    commits = "–"
                    if isinstance(tasks, Logged) and tasks.commits is not None:
                        commits = str(tasks.commits() // ROUNDS)
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
                async with open_store(Path(folder)) as tasks:
                    clock, cpu = await best(
                        lambda t=tasks, u=updates: stream(t, u), 1 if slow else ROUNDS
                    )
            print(f"{name:20} {updates:7} {clock:10.3f} {cpu * 1e3:10.1f}")


async def main() -> None:
    logging.disable(logging.CRITICAL)
    await saves()
    await streams()


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    uvloop.run(main())
