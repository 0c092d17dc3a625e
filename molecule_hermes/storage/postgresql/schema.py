"""The tables in PostgreSQL, created or brought up to date at the start."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC
from typing import Any

import asyncpg
from a2a.types import Task, TaskPushNotificationConfig
from google.protobuf.json_format import Parse, ParseDict

from molecule_hermes.errors import StartError
from molecule_hermes.storage.sql import task_row

__all__ = ["PREFIX", "migrate"]

PREFIX = "molecule_hermes_"

# Ids sort by code points, as in the other stores.
_V1 = """
CREATE TABLE molecule_hermes_tasks (
    owner TEXT NOT NULL,
    id TEXT COLLATE "C" NOT NULL,
    context_id TEXT NOT NULL,
    state INTEGER NOT NULL,
    last_updated BIGINT,
    ended DOUBLE PRECISION,
    created DOUBLE PRECISION NOT NULL,
    message_id TEXT NOT NULL,
    digest TEXT NOT NULL,
    task BYTEA NOT NULL,
    PRIMARY KEY (owner, id)
);
CREATE INDEX ON molecule_hermes_tasks (owner, last_updated DESC NULLS LAST, id DESC);
CREATE INDEX ON molecule_hermes_tasks (ended);
CREATE INDEX ON molecule_hermes_tasks (created);
CREATE TABLE molecule_hermes_push_configs (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    owner TEXT NOT NULL,
    task_id TEXT NOT NULL,
    id TEXT NOT NULL,
    config BYTEA NOT NULL,
    UNIQUE (task_id, owner, id)
);
"""
# The webhooks of tasks that have ended were told, or given up.
_V2 = """
ALTER TABLE molecule_hermes_tasks ADD COLUMN turn TEXT NOT NULL DEFAULT '';
ALTER TABLE molecule_hermes_push_configs ADD COLUMN told INTEGER NOT NULL DEFAULT 1;
CREATE INDEX ON molecule_hermes_push_configs (told) WHERE told = 0;
"""
# What Hermes's names for conversations stand for, and the events of deliveries.
_V3 = """
CREATE TABLE molecule_hermes_conversations (
    name TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    context_id TEXT NOT NULL
);
CREATE INDEX ON molecule_hermes_conversations (owner, context_id);
CREATE INDEX ON molecule_hermes_tasks (owner, context_id);
ALTER TABLE molecule_hermes_tasks ADD COLUMN opened BIGINT;
ALTER TABLE molecule_hermes_tasks ADD COLUMN closed BIGINT;
CREATE INDEX ON molecule_hermes_tasks (opened) WHERE opened IS NOT NULL;
CREATE INDEX ON molecule_hermes_tasks (closed) WHERE closed IS NOT NULL;
"""
MIGRATIONS = (_V1, _V2, _V3)

_CREATE_SCHEMA = """
CREATE TABLE molecule_hermes_schema (version INTEGER NOT NULL);
INSERT INTO molecule_hermes_schema VALUES (0);
"""
_BATCH = 200


async def migrate(connection: asyncpg.Connection) -> None:
    """Brings the tables to the newest version, in one transaction. Raises `StartError`."""
    async with connection.transaction():
        version = await _version(connection)
        if version > len(MIGRATIONS):
            raise StartError(
                f"the tables of MOLECULE_HERMES_STORE have version {version}, and this bridge "
                f"knows versions up to {len(MIGRATIONS)}",
                "run the newer bridge that made them, or name another database",
            )
        unversioned = not version and await _exists(connection, "molecule_hermes_tasks")
        if unversioned:
            await connection.execute(_SET_ASIDE)
        for step in MIGRATIONS[version:]:
            await connection.execute(step)
        if unversioned:
            await _convert_tasks(connection)
            await _convert_configs(connection)
        await connection.execute("UPDATE molecule_hermes_schema SET version = $1", len(MIGRATIONS))


async def _exists(connection: asyncpg.Connection, table: str) -> bool:
    return bool(await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", table))


async def _version(connection: asyncpg.Connection) -> int:
    """0 if there are no tables, or tables without a version."""
    if not await _exists(connection, "molecule_hermes_schema"):
        await connection.execute(_CREATE_SCHEMA)
    return int(await connection.fetchval("SELECT version FROM molecule_hermes_schema"))


# Tables without a version have the layout of the SDK's database stores: tasks as JSON.

_SET_ASIDE = """
ALTER TABLE molecule_hermes_tasks RENAME TO molecule_hermes_tasks_json;
ALTER TABLE molecule_hermes_push_configs RENAME TO molecule_hermes_push_configs_json;
"""


async def _convert_tasks(connection: asyncpg.Connection) -> None:
    insert = (
        "INSERT INTO molecule_hermes_tasks VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"
    )
    old = connection.cursor("SELECT * FROM molecule_hermes_tasks_json", prefetch=_BATCH)
    async for row in old:
        await connection.execute(insert, *_converted(row))
    await connection.execute("DROP TABLE molecule_hermes_tasks_json")


def _converted(row: Any) -> Sequence[Any]:
    task = Task(id=row["id"], context_id=row["context_id"])
    ParseDict(json.loads(row["status"]), task.status)
    for artifact in json.loads(row["artifacts"] or "null") or ():
        ParseDict(artifact, task.artifacts.add())
    for message in json.loads(row["history"] or "null") or ():
        ParseDict(message, task.history.add())
    if metadata := json.loads(row["metadata"] or "null"):
        task.metadata.update(metadata)
    updated = row["last_updated"]
    now = updated.replace(tzinfo=UTC).timestamp() if updated else time.time()
    return task_row(row["owner"], task, now)


async def _convert_configs(connection: asyncpg.Connection) -> None:
    insert = (
        "INSERT INTO molecule_hermes_push_configs (owner, task_id, id, config) "
        "VALUES ($1, $2, $3, $4)"
    )
    for row in await connection.fetch("SELECT * FROM molecule_hermes_push_configs_json"):
        config = Parse(row["config_data"], TaskPushNotificationConfig())
        key = (row["owner"], row["task_id"], row["config_id"])
        await connection.execute(insert, *key, config.SerializeToString())
    await connection.execute("DROP TABLE molecule_hermes_push_configs_json")
