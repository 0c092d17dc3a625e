"""What is specific to the SQLite file: its durability, foreign and damaged files, failing disks."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from a2a.types import ListTasksRequest, Task

from molecule_hermes.errors import StartError, StorageFailure
from molecule_hermes.storage.base import Sent
from molecule_hermes.storage.sqlite import database
from molecule_hermes.storage.sqlite import store as sqlite
from molecule_hermes.storage.sqlite.store import SqliteTaskStore
from tests.support.tasks import context, task

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "tasks.db"


@asynccontextmanager
async def filled(path: Path, *tasks: Task) -> AsyncIterator[SqliteTaskStore]:
    async with asyncio.timeout(30), SqliteTaskStore(path, patience=0.3) as store:
        for each in tasks:
            await store.save(each, context())
        yield store


async def found(store: SqliteTaskStore) -> list[str]:
    page = await store.list(ListTasksRequest(page_size=100), context())
    return sorted(t.id for t in page.tasks)


async def test_only_the_owner_of_the_process_may_read_the_files(path: Path) -> None:
    async with filled(path, task("t")):
        modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert modes == dict.fromkeys(
        ("tasks.db", "tasks.db-wal", "tasks.db-shm", "tasks.db.lock"), 0o600
    )


async def test_concurrent_saves_share_commits(path: Path) -> None:
    async with filled(path, task("first")) as store:
        before = store.database.commits
        await asyncio.gather(*(store.save(task(f"t{i}"), context()) for i in range(300)))
        # The first alone, and the others in batches of 128.
        assert store.database.commits - before == 4
        assert len(await found(store)) == 100


async def test_sequential_saves_are_one_commit_each(path: Path) -> None:
    async with filled(path) as store:
        for i in range(5):
            await store.save(task(f"t{i}"), context())
        assert store.database.commits == 5


WRITER = """
import asyncio, sys
from pathlib import Path
from typing import Any
from molecule_hermes.storage.sqlite.store import SqliteTaskStore
from tests.support.tasks import context, task

async def save(store, number):
    await store.save(task(f"t{number}", text="x" * 2000), context())
    sys.stdout.write(f"t{number}\\n")
    sys.stdout.flush()

async def main():
    async with SqliteTaskStore(Path(sys.argv[1])) as store:
        for start in range(0, 10**9, 8):
            await asyncio.gather(*(save(store, start + i) for i in range(8)))

asyncio.run(main())
"""


async def test_every_save_that_returned_survives_kill_9(path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(path)]
    writer = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    reported = [writer.stdout.readline().strip() for _ in range(500)]
    writer.send_signal(signal.SIGKILL)
    # The kill may have cut the last line.
    reported += [line.strip() for line in writer.stdout if line.endswith("\n")]
    assert writer.wait(30) == -signal.SIGKILL
    writer.stdout.close()
    async with filled(path) as store:
        assert len(reported) >= 500
        for task_id in reported:
            assert await store.get(task_id, context()) == task(task_id, text="x" * 2000)


# Opening.


async def refused(path: Path) -> str:
    before = path.read_bytes()
    with pytest.raises(StartError) as caught:
        async with filled(path):
            pass
    assert path.read_bytes() == before, "what is refused is left as it is"
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_a_second_bridge_on_the_same_file_is_refused(path: Path) -> None:
    async with filled(path, task("t")) as store:
        message = await refused(path)
        assert f"process {os.getpid()}" in message
        assert "MOLECULE_HERMES_STATE_DIR" in message
        assert await found(store) == ["t"]
    async with filled(path) as store:
        assert await found(store) == ["t"]


async def test_a_newer_file_is_refused(path: Path) -> None:
    async with filled(path, task("t")):
        pass
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    assert "version 99" in await refused(path)


async def test_an_older_file_is_migrated(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with filled(path, task("t")):
        pass
    newer = (*sqlite.MIGRATIONS, "ALTER TABLE tasks ADD COLUMN note TEXT DEFAULT 'new';")
    monkeypatch.setattr(sqlite, "MIGRATIONS", newer)
    async with filled(path) as store:
        assert await found(store) == ["t"]
        notes = await store.database.read("SELECT note FROM tasks")
        version = await store.database.read("PRAGMA user_version")
    assert (notes, version) == ([("new",)], [(len(newer),)])


async def test_a_file_of_the_first_version_keeps_its_tasks_and_messages(path: Path) -> None:
    path.parent.mkdir()
    old = task("t", at=5)
    values = (
        "alice",
        "t",
        "c",
        old.status.state,
        5 * 10**9,
        1.0,
        2.0,
        "m",
        old.SerializeToString(),
    )
    with sqlite3.connect(path) as connection:
        connection.executescript(sqlite.MIGRATIONS[0])
        connection.execute(f"PRAGMA application_id = {sqlite.APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 1")
        connection.execute("INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
    connection.close()
    async with filled(path) as store:
        assert await store.get("t", context()) == old
        assert await store.messages(0) == [Sent("alice", "c", "m", "", "t", 2.0)]


async def test_a_migration_that_fails_leaves_the_file_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with filled(path, task("t")):
        pass
    broken = (*sqlite.MIGRATIONS, "DELETE FROM tasks; SELECT nonsense FROM nowhere;")
    with monkeypatch.context() as patch:
        patch.setattr(sqlite, "MIGRATIONS", broken)
        await refused(path)
    async with filled(path) as store:
        assert await found(store) == ["t"]


async def test_a_database_of_another_program_is_refused(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE tasks (id)")
    connection.close()
    assert "another program" in await refused(path)


async def test_a_file_that_is_not_a_database_is_refused(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("not a database at all, but long enough to look at " * 50)
    assert "not a database" in await refused(path)


async def test_a_damaged_file_is_refused(path: Path) -> None:
    async with filled(path, *(task(f"t{i}", text="x" * 500) for i in range(100))):
        pass
    data = bytearray(path.read_bytes())
    data[8192:40_000] = b"\xaa" * (40_000 - 8192)
    path.write_bytes(data)
    message = await refused(path)
    assert "damaged" in message or "malformed" in message
    assert "backup" in message


async def test_an_empty_file_becomes_a_new_store(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    async with filled(path, task("t")) as store:
        assert await found(store) == ["t"]


async def test_a_folder_that_cannot_be_created_is_reported_with_its_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartError, match="MOLECULE_HERMES_STATE_DIR"):
        async with filled(tmp_path / "file" / "tasks.db"):
            pass


async def test_a_disk_that_is_full_at_the_start_is_reported(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = (*database._PRAGMAS, "PRAGMA max_page_count = 4")
    monkeypatch.setattr(database, "_PRAGMAS", limit)
    with pytest.raises(StartError, match="disk is full — make room"):
        async with filled(path):
            pass


# Failures while the store is open.


async def fails(store: SqliteTaskStore, message: str) -> None:
    with pytest.raises(StorageFailure, match=message):
        await store.save(task("lost", text="x" * 100_000), context())
    with pytest.raises(StorageFailure, match=message):
        await store.check()


async def works(store: SqliteTaskStore) -> None:
    await store.check()
    await store.save(task("found"), context())
    assert await found(store) == ["found", "t"]


async def test_saves_fail_on_a_full_disk_and_work_again_afterwards(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = (*database._PRAGMAS, "PRAGMA max_page_count = 16")
    with monkeypatch.context() as patch:
        patch.setattr(database, "_PRAGMAS", limit)
        async with filled(path, task("t")) as store:
            await store.check()
            await fails(store, "the disk is full")
            assert await found(store) == ["t"]
            patch.undo()
            await works(store)


@contextmanager
def no_file_may_grow() -> Iterator[None]:
    """Every write to a file fails, as on a broken disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_saves_fail_on_a_failing_disk_and_work_again_afterwards(path: Path) -> None:
    async with filled(path, task("t")) as store:
        with no_file_may_grow():
            await fails(store, "the disk that holds tasks.db fails")
            assert await found(store) == ["t"]
        await works(store)


async def test_saves_fail_in_time_while_the_file_is_locked_and_reads_work(path: Path) -> None:
    async with filled(path, task("t")) as store:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        await fails(store, "another process keeps tasks.db locked")
        assert await found(store) == ["t"]
        other.execute("ROLLBACK")
        other.close()
        await works(store)


async def test_saves_fail_while_the_file_is_missing_and_work_when_it_is_back(path: Path) -> None:
    async with filled(path, task("t")) as store:
        path.rename(path.with_name("away"))
        await fails(store, "deleted or replaced")
        path.touch()
        await fails(store, "deleted or replaced")
        path.with_name("away").rename(path)
        await works(store)


async def test_a_call_to_a_disk_that_does_not_answer_fails_in_time(path: Path) -> None:
    async with filled(path, task("t")) as store:
        # Private: SQLite calls a slow function only on the connection that knows it.
        store.database._reading.get().create_function("hang", 0, lambda: time.sleep(1))
        with pytest.raises(StorageFailure, match=r"did not answer in 0\.3 s"):
            await store.database.read("SELECT hang()")
        store.database._writing.get().create_function("hang", 0, lambda: time.sleep(3))
        with pytest.raises(StorageFailure, match=r"did not answer in 1\.6 s"):
            await store.database.write("DELETE FROM checks WHERE number = hang()", ())


async def test_a_canceled_save_is_not_written_later(path: Path) -> None:
    async with filled(path, task("t")) as store:
        store.database._writing.get().create_function("hang", 0, lambda: time.sleep(0.3))
        hanging = store.database.write("DELETE FROM checks WHERE number = hang()", ())
        first = asyncio.create_task(hanging)
        second = asyncio.create_task(store.save(task("u"), context()))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        await store.save(task("v"), context())
        assert await found(store) == ["t", "v"]


async def test_a_query_that_fails_does_not_affect_others(path: Path) -> None:
    async with filled(path, task("t")) as store:
        bad = store.database.read("SELECT nonsense")
        good = store.get("t", context())
        results = await asyncio.gather(bad, good, return_exceptions=True)
    assert isinstance(results[0], StorageFailure)
    assert results[1] == task("t")


# Indexes and batches.


async def test_finding_unfinished_tasks_pruning_and_listing_use_an_index(path: Path) -> None:
    questions = {
        "SELECT owner, task FROM tasks WHERE ended IS NULL": "tasks_ended",
        "SELECT owner, id FROM tasks WHERE ended < 1": "tasks_ended",
        "SELECT count(*) FROM tasks WHERE owner = 'a' AND context_id = 'c'": "tasks_of_context",
        "SELECT task FROM tasks WHERE owner = 'a' "
        "ORDER BY last_updated DESC NULLS LAST, id DESC": "tasks_listed",
    }
    async with filled(path, task("t")) as store:
        for sql, index in questions.items():
            plan = await store.database.read(f"EXPLAIN QUERY PLAN {sql}")
            assert [index in step[-1] for step in plan] == [True], plan


async def test_tasks_are_pruned_in_batches(path: Path) -> None:
    async with SqliteTaskStore(path) as store:
        await asyncio.gather(*(store.save(task(f"t{i}"), context()) for i in range(250)))
        assert await store.prune(time.time() + 60, 0) == 200
        assert await store.prune(time.time() + 60, 0) == 50
        assert await store.prune(time.time() + 60, 0) == 0


async def test_a_listing_whose_steps_are_all_slow_fails_in_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with filled(path, task("t")) as store:
        read = store.database.read

        async def slow(sql: str, values: Sequence[Any] = ()) -> Sequence[tuple[Any, ...]]:
            await asyncio.sleep(0.7 * store.database.limit)
            return await read(sql, values)

        monkeypatch.setattr(store.database, "read", slow)
        with pytest.raises(StorageFailure, match=r"the listing took longer than 1\.6 s"):
            await store.list(ListTasksRequest(), context())
