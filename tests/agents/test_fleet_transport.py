"""The transport of an agent with workers: what its deliveries mean for these."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, cast

from molecule_hermes.agents.fleet_transport import FleetTransport
from molecule_hermes.hermes.fleet import Fleet
from molecule_hermes.hermes.worker import Worker
from molecule_hermes.turns.model import Completed, Turn
from tests.hermes.test_fleet import ALICE, BOB, World, use
from tests.hermes.test_fleet import Worker as FakeWorker
from tests.support.agents import SaysItsName
from tests.support.waiting import until


async def test_a_worker_whose_delivery_runs_is_neither_stopped_nor_replaced() -> None:
    world, go = World(), asyncio.Event()
    async with world.fleet() as fleet:
        await use(fleet, BOB)
        alice = await use(fleet, ALICE)
        cast(Any, alice).transport = SaysItsName("alice", go)
        transport = agent(fleet)
        turn = Turn("push-1", "alice", "ctx", "task", "wait")
        world.plans["main"] = 2  # what it was made from has changed
        attached = await transport.attach(turn, transport.place(turn))
        world.age()
        await until(lambda: "stop main@bob" in world.log)
        assert "stop main@alice" not in world.log
        go.set()
        async with aclosing(attached.events) as events:
            assert [event async for event in events] == [Completed("alice")]
        world.age()
        await until(lambda: "stop main@alice" in world.log)
    assert world.log.count("start main@alice") == 1


def agent(fleet: Fleet[FakeWorker]) -> FleetTransport:
    async def check() -> None:
        pass

    return FleetTransport(
        cast(Fleet[Worker], fleet),
        lambda peer: ALICE,
        "plugin",
        check=check,
        on_close=lambda: None,
        on_receiver=lambda receiver: None,
    )
