"""Opening the store that the settings name, and taking over its tasks."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from a2a.types import ListTasksRequest, Task

from molecule_hermes.config import Settings
from molecule_hermes.errors import ConfigError, StartError, StorageFailure
from molecule_hermes.storage import retention as module
from molecule_hermes.storage.base import Unfinished
from molecule_hermes.storage.opening import open_store
from molecule_hermes.storage.sqlite.store import SqliteTaskStore
from tests.support.peers import failure, state
from tests.support.tasks import context, task
from tests.support.waiting import until


def failure_of(failed: Task | None) -> dict[str, Any]:
    assert failed is not None
    assert state(failed) == "FAILED"
    return failure(failed.status)


async def test_memory_keeps_nothing_and_needs_no_folder(
    settings: Callable[..., Settings], tmp_path: Path
) -> None:
    async with open_store(settings(STORE="memory")) as store:
        await store.tasks.save(task("t"), context())
        await store.tasks.check()
    assert not list(tmp_path.iterdir())


async def test_sqlite_is_the_default(settings: Callable[..., Settings], tmp_path: Path) -> None:
    async with open_store(settings()) as store:
        await store.tasks.save(task("t"), context())
    async with open_store(settings()) as store:
        assert await store.tasks.get("t", context()) == task("t")
    assert (tmp_path / "tasks.db").exists()


async def test_unfinished_tasks_are_there_when_the_store_opens(
    settings: Callable[..., Settings], tmp_path: Path
) -> None:
    left = task("t", "WORKING", text="so far")
    async with SqliteTaskStore(tmp_path / "tasks.db") as disk:
        await disk.save(left, context(), "its turn")
        await disk.save(task("ended"), context())
    async with open_store(settings()) as store:
        assert store.unfinished == [Unfinished("alice", left, "its turn")]
        before = store.stored.of("alice")
        store.stored.saved("alice", "t", left.ByteSize() + 7, ended=True)
        assert store.stored.of("alice") == before + 7


async def test_a_bridge_that_cannot_read_unfinished_tasks_does_not_start(
    settings: Callable[..., Settings], tmp_path: Path
) -> None:
    async with SqliteTaskStore(tmp_path / "tasks.db") as disk:
        await disk.save(task("t", "WORKING"), context())
        await disk.database.write("UPDATE tasks SET task = ?", (b"\xff",))
    with pytest.raises(StartError, match="holds a task that cannot be read"):
        async with open_store(settings()):
            pass


async def test_a_disk_that_fails_while_unfinished_tasks_are_read_is_reported_at_the_start(
    settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unfinished(self: SqliteTaskStore) -> list[Unfinished]:
        raise StorageFailure("the disk is full")

    monkeypatch.setattr(SqliteTaskStore, "unfinished", unfinished)
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

        async def left() -> list[str]:
            page = await store.tasks.list(ListTasksRequest(), context())
            return [t.id for t in page.tasks] if page.total_size <= 2 else []

        assert await until(left) == ["t4", "t3"]


async def test_recent_tasks_are_not_pruned_by_default(
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
def test_an_invalid_store_is_reported_without_its_secret(
    settings: Callable[..., Settings], value: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(STORE=value)
    assert re.match(r"MOLECULE_HERMES_STORE=.* is not valid: it takes sqlite", str(caught.value))
    assert "hunter2" not in str(caught.value)


async def test_an_invalid_database_url_is_reported_without_its_secret(
    settings: Callable[..., Settings],
) -> None:
    with pytest.raises(StartError, match="MOLECULE_HERMES_STORE") as caught:
        async with open_store(settings(STORE="postgresql://u:p@host:hunter2/db")):
            pass
    assert "hunter2" not in str(caught.value)


async def test_a_database_without_its_driver_says_what_to_install(
    settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "molecule_hermes.storage.postgresql.store", None)
    with pytest.raises(StartError, match=r"pip install '\.\[postgresql\]'"):
        async with open_store(settings(STORE="postgres://u:p@host/db")):
            pass


def test_the_settings_show_no_password(settings: Callable[..., Settings]) -> None:
    made = settings(STORE="postgresql://u:hunter2@host/db")
    assert "hunter2" not in repr(made)
    assert made.store.get_secret_value() == "postgresql+asyncpg://u:hunter2@host/db"
