"""PostgreSQL: what is its own about it. What every store does is in test_stores.py."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from a2a.types import ListTasksRequest, Task, TaskPushNotificationConfig

from molecule_hermes.config import Settings
from molecule_hermes.errors import StartError, StorageFailure
from molecule_hermes.protocol.recovery import InterruptedTasks
from molecule_hermes.storage.opening import open_store
from molecule_hermes.storage.postgresql.store import PostgresTaskStore
from tests.support.postgres import PASSWORD, Postgres
from tests.support.serving import free_port
from tests.support.tasks import context, task


@pytest.fixture
def url(database: Postgres) -> str:
    return database.new_database()


@asynccontextmanager
async def opened(url: str, patience: float = 2.0) -> AsyncIterator[PostgresTaskStore]:
    url = url.replace("postgresql:", "postgresql+asyncpg:")
    async with asyncio.timeout(60), PostgresTaskStore(url, patience=patience) as store:
        yield store


async def sql(url: str, statement: str) -> Any:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetch(statement)
    finally:
        await connection.close()


async def refused(url: str) -> str:
    with pytest.raises(StartError) as caught:
        async with opened(url, patience=1.0):
            pass
    assert PASSWORD not in str(caught.value)
    assert "MOLECULE_HERMES_STORE" in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+asyncpg"])
async def test_tasks_are_there_after_a_restart(
    url: str, settings: Callable[..., Settings], scheme: str
) -> None:
    set_to = settings(STORE=url.replace("postgresql", scheme, 1) + "?sslmode=prefer")
    async with open_store(set_to, InterruptedTasks().end) as store:
        await store.tasks.save(task("t", text="kept"), context())
        await store.check()
    async with open_store(set_to, InterruptedTasks().end) as store:
        assert await store.tasks.get("t", context()) == task("t", text="kept")


async def test_a_second_bridge_on_the_same_database_is_refused(url: str) -> None:
    async with opened(url) as store:
        await store.save(task("t", "WORKING"), context())
        assert "another bridge" in await refused(url)
        assert await store.get("t", context()) is not None
    async with opened(url) as store:
        assert await store.get("t", context()) is not None


async def test_schemas_of_one_database_are_stores_of_their_own(url: str) -> None:
    await sql(url, "CREATE SCHEMA other")
    await sql(url, "ALTER ROLE bridge SET search_path = other")
    try:
        async with opened(url) as one:
            await one.save(task("t"), context())
            await sql(url, "ALTER ROLE bridge RESET search_path")
            async with opened(url) as two:
                assert await two.get("t", context()) is None
    finally:
        await sql(url, "ALTER ROLE bridge RESET search_path")


async def test_what_is_wrong_with_the_url_is_told_without_the_password(url: str) -> None:
    assert "password authentication failed" in await refused(url.replace(PASSWORD, "wrong"))
    assert "does not exist" in await refused(url + "_not")
    nobody = url.replace(url.rsplit("@")[1].split("/", maxsplit=1)[0], f"127.0.0.1:{free_port()}")
    assert "127.0.0.1" in await refused(nobody)
    assert "nonsense" in await refused(url + "?nonsense=1")


async def test_a_database_that_is_down_is_told_in_time_and_gets_well(
    database: Postgres, url: str
) -> None:
    async with opened(url) as store:
        await store.save(task("t"), context())
        database.stop()
        try:
            with pytest.raises(StorageFailure):
                await store.save(task("lost"), context())
            with pytest.raises(StorageFailure):
                await store.get("t", context())
            with pytest.raises(StorageFailure):
                await store.list(ListTasksRequest(), context())
            with pytest.raises(StorageFailure):
                await store.push_configs.get_info("t", context())
            with pytest.raises(StorageFailure) as caught:
                await store.check()
            assert PASSWORD not in caught.value.message
        finally:
            database.start()
        await store.check()
        assert await store.get("t", context()) == task("t")
        assert "another bridge" in await refused(url), "the lease is held again"


async def test_a_database_that_cannot_be_written_is_not_ready(url: str) -> None:
    async with opened(url) as store:
        name = url.rsplit("/", 1)[1]
        await sql(url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        await sql(url, _CUT_ALL)
        with pytest.raises(StorageFailure, match="ReadOnlySQLTransactionError"):
            await store.check()
        with pytest.raises(StorageFailure):
            await store.save(task("t"), context())


async def test_a_bridge_that_lost_the_database_to_another_says_so(url: str) -> None:
    async with opened(url) as store:
        await sql(url, _CUT_ALL)
        async with opened(url):
            with pytest.raises(StorageFailure, match="another bridge has taken over"):
                await store.check()
        await store.check()


_CUT_ALL = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


async def test_the_sweep_ends_what_has_no_end_and_nothing_else(url: str) -> None:
    open_states = ("SUBMITTED", "WORKING", "INPUT_REQUIRED", "AUTH_REQUIRED")
    ended = [task(s, s, text=s) for s in ("COMPLETED", "FAILED", "CANCELED", "REJECTED")]
    unfinished = [task(f"{s}{i}", s, text=s) for s in open_states for i in range(60)]

    def end(each: Task) -> None:
        each.status.CopyFrom(task("", "FAILED").status)

    async with opened(url, patience=10) as store:
        await asyncio.gather(*(store.save(t, context()) for t in ended + unfinished))
        assert await store.sweep(end) == 240
        assert await store.sweep(end) == 0
        for before in ended:
            assert await store.get(before.id, context()) == before
        after = await store.get("WORKING1", context())
        assert after == task("WORKING1", "FAILED", text="WORKING")


async def test_old_tasks_are_pruned_with_their_push_configurations(url: str) -> None:
    now = int(time.time())
    config = TaskPushNotificationConfig(id="c", url="https://example.org")
    async with opened(url) as store:
        for i in range(6):
            await store.save(task(f"t{i}", at=now - 100 * i), context())
            await store.push_configs.set_info(f"t{i}", config, context())
        await store.save(task("working", "WORKING", at=1), context())
        assert await store.prune(now - 350, 0) == 2
        assert await store.prune(now - 350, 0) == 0
        assert await store.prune(now - 350, 2) == 2
        assert await store.prune(now - 350, 2) == 0
        left = (await store.list(ListTasksRequest(), context())).tasks
        assert [t.id for t in left] == ["t0", "t1", "working"]
        assert len(await store.push_configs.get_info("t1", context())) == 1
        assert await store.push_configs.get_info("t2", context()) == []


async def test_the_sweep_has_an_index(url: str) -> None:
    async with opened(url):
        rows = await sql(
            url, "SELECT indexdef FROM pg_indexes WHERE tablename = 'molecule_hermes_tasks'"
        )
    assert any("status ->> 'state'" in row["indexdef"] for row in rows)
