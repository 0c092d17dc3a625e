"""What is specific to PostgreSQL. The contract of every store is in test_contract.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from a2a.server.tasks import DatabasePushNotificationConfigStore, DatabaseTaskStore
from a2a.types import ListTasksRequest, TaskPushNotificationConfig
from sqlalchemy.ext.asyncio import create_async_engine

from molecule_hermes.config import Settings
from molecule_hermes.errors import StartError, StorageFailure
from molecule_hermes.storage.base import call_limit
from molecule_hermes.storage.opening import open_store
from molecule_hermes.storage.postgresql import schema
from molecule_hermes.storage.postgresql.store import PostgresTaskStore
from tests.storage.test_contract import fails_in_time
from tests.support.postgres import PASSWORD, Postgres
from tests.support.serving import free_port
from tests.support.tasks import context, task
from tests.support.waiting import until


@pytest.fixture
def url(database: Postgres) -> str:
    return database.new_database()


@asynccontextmanager
async def opened(url: str, patience: float = 2.0) -> AsyncIterator[PostgresTaskStore]:
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
async def test_every_form_of_the_url_leads_to_the_same_tasks(
    url: str, settings: Callable[..., Settings], scheme: str
) -> None:
    set_to = settings(STORE=url.replace("postgresql", scheme, 1) + "?sslmode=prefer")
    async with open_store(set_to) as store:
        await store.tasks.save(task("t", text="kept"), context())
        await store.tasks.check()
    async with open_store(set_to) as store:
        assert await store.tasks.get("t", context()) == task("t", text="kept")


async def test_a_second_bridge_on_the_same_database_is_refused(url: str) -> None:
    async with opened(url) as store:
        await store.save(task("t", "WORKING"), context())
        assert "another bridge" in await refused(url)
        assert await store.get("t", context()) is not None
    async with opened(url) as store:
        assert await store.get("t", context()) is not None


async def test_each_schema_of_a_database_is_a_separate_store(url: str) -> None:
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


async def test_a_wrong_url_is_explained_without_the_password(url: str) -> None:
    assert "password authentication failed" in await refused(url.replace(PASSWORD, "wrong"))
    assert "does not exist" in await refused(url + "_not")
    nobody = url.replace(url.rsplit("@")[1].split("/", maxsplit=1)[0], f"127.0.0.1:{free_port()}")
    assert "127.0.0.1" in await refused(nobody)
    assert "nonsense" in await refused(url + "?nonsense=1")


async def test_calls_fail_while_the_database_is_down_and_work_again_afterwards(
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


async def test_a_read_only_database_fails_the_check(url: str) -> None:
    async with opened(url) as store:
        name = url.rsplit("/", 1)[1]
        await sql(url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        await sql(url, _CUT_ALL)
        with pytest.raises(StorageFailure, match="ReadOnlySQLTransactionError"):
            await store.check()
        with pytest.raises(StorageFailure):
            await store.save(task("t"), context())


async def test_a_bridge_whose_database_was_taken_over_fails_the_check(url: str) -> None:
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


async def test_the_sweep_has_an_index(url: str) -> None:
    async with opened(url):
        rows = await sql(
            url, "SELECT indexdef FROM pg_indexes WHERE tablename = 'molecule_hermes_tasks'"
        )
    assert any("(ended)" in row["indexdef"] for row in rows)


# A database that does not answer.


async def test_a_backend_that_hangs_delays_one_call_only(database: Postgres, url: str) -> None:
    patience = 0.3
    async with opened(url, patience=patience) as store:
        await store.save(task("t"), context())
        hanging = database.backends(url.rsplit("/", 1)[1])
        assert len(hanging) == 2, "the lease's and one of the pool"
        for process in hanging:
            process.suspend()
        try:
            await fails_in_time(store.get("t", context()), call_limit(patience))
            assert await store.get("t", context()) == task("t")
            await fails_in_time(store.check(), call_limit(patience))
        finally:
            for process in hanging:
                process.resume()
        await until(lambda: works(store))


async def test_a_save_that_failed_does_not_overwrite_a_later_one(
    database: Postgres, url: str
) -> None:
    patience = 0.3
    async with opened(url, patience=patience) as store:
        await store.save(task("t", "SUBMITTED"), context())
        await store.check()
        hanging = database.backends(url.rsplit("/", 1)[1])
        for process in hanging:
            process.suspend()
        try:
            await fails_in_time(store.save(task("t", "WORKING"), context()), call_limit(patience))
            await store.save(task("t", "FAILED"), context())
        finally:
            for process in hanging:
                process.resume()
        await until(lambda: not any(process.is_running() for process in hanging[1:]))
        assert await store.get("t", context()) == task("t", "FAILED")


async def test_a_database_that_hangs_at_the_start_is_refused_in_time(
    database: Postgres, url: str
) -> None:
    with database.suspended():
        assert "no answer in time" in await refused(url)


async def works(store: PostgresTaskStore) -> bool:
    try:
        await store.check()
    except StorageFailure:
        return False
    return True


# Tables.


@pytest.mark.filterwarnings("ignore:This declarative base already contains a class")
async def test_tables_of_an_older_bridge_are_converted(url: str) -> None:
    engine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:"))
    tasks = DatabaseTaskStore(engine, table_name="molecule_hermes_tasks")
    configs = DatabasePushNotificationConfigStore(engine, table_name="molecule_hermes_push_configs")
    old = [task(f"t{i}", "FAILED" if i else "WORKING", at=i, text="x" * 1000) for i in range(3)]
    for each in old:
        each.history.add(message_id=f"m{each.id}").parts.add(text="hi")
        each.metadata.update({"usage": {"total": 5}})
        await tasks.save(each, context())
    config = TaskPushNotificationConfig(id="c", url="https://example.org")
    await configs.set_info("t1", config, context())
    await engine.dispose()
    for _ in range(2):
        async with opened(url) as store:
            page = await store.list(ListTasksRequest(), context())
            assert list(page.tasks) == old[::-1]
            assert (await store.bytes_by_owner())["alice"] == sum(t.ByteSize() for t in old)
            assert [m.message_id for m in await store.messages(-1)] == ["mt0", "mt1", "mt2"]
            (found,) = await store.push_configs.get_info("t1", context())
            assert found.url == config.url


async def test_tables_of_a_newer_bridge_are_refused(url: str) -> None:
    async with opened(url):
        pass
    await sql(url, "UPDATE molecule_hermes_schema SET version = 99")
    assert "version 99" in await refused(url)


async def test_a_migration_that_fails_leaves_the_tables_as_they_were(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(url) as store:
        await store.save(task("t"), context())
    broken = (*schema.MIGRATIONS, "DELETE FROM molecule_hermes_tasks; SELECT nonsense;")
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", broken)
        await refused(url)
    async with opened(url) as store:
        assert await store.get("t", context()) == task("t")
