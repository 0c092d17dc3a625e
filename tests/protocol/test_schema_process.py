"""Validation in a process that can be killed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiohttp import web

from molecule_hermes.protocol import json_answers
from molecule_hermes.protocol.schema_process import SchemaProcesses, UnusableSchemaError
from tests.support.serving import serve
from tests.support.waiting import until

SLOW = {"type": "string", "pattern": "^(a+)+$"}


def processes() -> list[psutil.Process]:
    name = json_answers.__name__
    return [p for p in psutil.Process().children() if name in " ".join(p.cmdline())]


async def test_an_answer_is_judged() -> None:
    schemas = SchemaProcesses()
    schema = {"type": "object", "required": ["größe"]}
    await schemas.require_sound(schema, "alice")
    assert await schemas.judge(schema, '{"größe": "世界"}', "alice") == {"value": {"größe": "世界"}}
    assert "'größe' is a required" in (await schemas.judge(schema, "{}", "alice"))["problem"]
    assert await schemas.judge(None, "3", "alice") == {"value": 3}
    with pytest.raises(UnusableSchemaError, match=r"\$\.type"):
        await schemas.require_sound({"type": 3}, "alice")


@pytest.mark.parametrize("kind", ["pattern", "references", "recursion"])
async def test_a_schema_that_takes_for_ever_ends_and_blocks_nobody(kind: str) -> None:
    doubling: dict[str, Any] = {
        f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)
    }
    schema = {
        "pattern": SLOW,
        "references": {"$ref": "#/$defs/d0", "$defs": {**doubling, "d40": {"type": "string"}}},
        "recursion": {"properties": {"a": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}}},
    }[kind]
    text = '{"a":' * 23 + "1" + "}" * 23 if kind == "recursion" else f'"{"a" * 60}!"'
    schemas = SchemaProcesses()
    judging = asyncio.create_task(schemas.judge(schema, text, "alice"))
    await until(processes)
    slowest = 0.0
    loop = asyncio.get_running_loop()
    while not judging.done():
        before = loop.time()
        await asyncio.wait({judging}, timeout=0.01)
        slowest = max(slowest, loop.time() - before)
    with pytest.raises(UnusableSchemaError, match="takes"):
        await judging
    assert slowest < 1.0
    assert not processes()


async def test_a_peer_with_slow_schemas_delays_another_by_one_at_most() -> None:
    schemas = SchemaProcesses()
    slow = [
        asyncio.create_task(schemas.judge(SLOW, f'"{"a" * 60}!"', "mallory")) for _ in range(20)
    ]
    await until(lambda: len(processes()) == 2)
    assert await schemas.judge(None, "3", "alice") == {"value": 3}
    assert sum(task.done() for task in slow) <= 2
    assert len(processes()) <= 2
    for task in slow:
        task.cancel()
    await asyncio.wait(slow)
    assert not processes()


async def test_a_turn_that_ends_meanwhile_leaves_no_process() -> None:
    judging = asyncio.create_task(SchemaProcesses().judge(SLOW, f'"{"a" * 60}!"', "alice"))
    await until(processes)
    judging.cancel()
    await asyncio.wait({judging})
    assert judging.cancelled()
    assert not processes()


async def test_no_other_document_is_fetched() -> None:
    asked = []

    async def schema(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.json_response({})

    app = web.Application()
    app.router.add_get("/{name}", schema)
    async with serve(app) as url:
        with pytest.raises(UnusableSchemaError, match="leads nowhere"):
            await SchemaProcesses().judge({"$ref": f"{url}/schema"}, "1", "alice")
    assert not asked


async def test_files_in_the_working_directory_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("jsonschema", "json", "referencing"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    assert await SchemaProcesses().judge({"type": "integer"}, "3", "alice") == {"value": 3}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/type", "type": "string"},
        {"$ref": "#/enum/x", "enum": [1]},
        {"pattern": "a{99999999999999999999}"},
        {"$schema": 5},
    ],
)
async def test_a_schema_on_which_the_validator_breaks_is_unusable(schema: dict[str, Any]) -> None:
    with pytest.raises(UnusableSchemaError):
        await SchemaProcesses().require_sound(schema, "alice")


async def test_a_schema_that_breaks_on_an_answer_is_unusable() -> None:
    with pytest.raises(UnusableSchemaError, match="look-behind"):
        await SchemaProcesses().judge({"pattern": "(?<=a+)b"}, '"ab"', "alice")
