"""Readiness: the report of all parts, its time limit and its cache."""

from __future__ import annotations

import asyncio

from molecule_hermes.errors import Unreachable
from molecule_hermes.server.health import Health


async def fine() -> None:
    pass


async def down() -> None:
    raise Unreachable("nobody there", hint="start it")


async def broken() -> None:
    raise RuntimeError("secret")


async def stuck() -> None:
    await asyncio.Event().wait()


async def test_a_bridge_is_ready_when_all_parts_are() -> None:
    report = await Health({"a": fine, "b": fine}).ready()
    assert report.as_dict() == {"ready": True, "parts": {"a": {"ok": True}, "b": {"ok": True}}}


async def test_each_part_that_fails_says_why() -> None:
    report = await Health({"a": fine, "b": down, "c": broken, "d": stuck}, timeout=0.1).ready()
    assert not report.ready
    assert report.parts["b"] == {"ok": False, "reason": "nobody there", "hint": "start it"}
    assert report.parts["c"]["reason"] == "the check itself failed"
    assert report.parts["d"]["reason"] == "no response within 0.1 s"
    assert report.reason.startswith("b: nobody there; c:")
    assert "secret" not in str(report)


async def test_a_flood_of_probes_is_one_check() -> None:
    calls = 0

    async def counted() -> None:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0.01)

    health = Health({"a": counted}, fresh=10)
    await asyncio.gather(*(health.ready() for _ in range(50)))
    assert calls == 1


async def test_a_flood_of_probes_is_one_check_even_when_it_takes_long() -> None:
    calls = 0

    async def slow() -> None:
        nonlocal calls
        calls += 1
        await stuck()

    health = Health({"a": slow}, fresh=0.1, timeout=0.2)
    reports = await asyncio.gather(*(health.ready() for _ in range(20)))
    assert calls == 1
    assert not any(report.ready for report in reports)


async def test_a_started_bridge_stays_started_and_a_draining_one_is_not_ready() -> None:
    health = Health({"a": fine})
    assert not health.started
    await health.ready()
    assert health.started
    health.draining = True
    assert not (await health.ready()).ready
    assert health.started
