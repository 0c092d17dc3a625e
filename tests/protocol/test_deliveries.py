"""Which deliveries are taken: the conversation's own agent and peer, policies, bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events import EventQueue
from a2a.types import ListTasksRequest, Task, TaskState
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.agents.policies import delivery_policy
from molecule_hermes.config import AgentConfig, Configuration, PeerConfig, Settings
from molecule_hermes.errors import (
    Busy,
    Draining,
    Forbidden,
    QuotaExceeded,
    RateLimited,
    StorageFailure,
)
from molecule_hermes.net.addresses import PublicOnly
from molecule_hermes.protocol.caller import Caller
from molecule_hermes.protocol.deliveries import Deliveries, DeliveryLimits, _Bounds
from molecule_hermes.protocol.recovery import Resumed
from molecule_hermes.protocol.task_registry import TaskRegistry
from molecule_hermes.protocol.turn_record import TurnRecord
from molecule_hermes.protocol.webhooks import PushConfigs, PushSender
from molecule_hermes.storage.base import Conversation
from molecule_hermes.storage.memory import MemoryTaskStore
from molecule_hermes.storage.quota import StorageQuota
from molecule_hermes.transports.deliveries import Opening
from molecule_hermes.turns.model import Place


class Executor:
    """Follows nothing."""

    def __init__(self) -> None:
        self.resumed: list[tuple[RequestContext, TurnRecord]] = []

    def resume(
        self, context: RequestContext, record: TurnRecord, event_queue: EventQueue
    ) -> Resumed:
        self.resumed.append((context, record))
        return Resumed(context.current_task or Task(), record)


class House:
    def __init__(self, **options: Any) -> None:
        self.store = MemoryTaskStore()
        self.executor = Executor()
        push = PushSender(PushConfigs(self.store.push_configs), PublicOnly())
        self.tasks = TaskRegistry(self.store, push.notify)
        executors = {"main": self.executor, "other": self.executor}
        self.deliveries = Deliveries(self.tasks, executors.get, push, **options)
        self.deliveries.open()

    async def receive(
        self, push_id: str = "p", chat: str = "anns", agent: str = "main", peer: str | None = None
    ) -> str:
        opening = Opening(push_id, chat, "cron", Place("http://hermes", "one", "bridge"))
        return await self.deliveries.receive(opening, agent, peer)

    async def listed(self, owner: str) -> list[Task]:
        call = ServerCallContext(user=Caller.from_scope(owner))
        return list((await self.store.list(ListTasksRequest(), call)).tasks)


async def house_with(**options: Any) -> House:
    house = House(**options)
    for name, owner in {"anns": "ann", "bobs": "bob", "others": "other/ann"}.items():
        await house.store.remember(name, Conversation(owner, f"context-of-{name}"))
    return house


@pytest.fixture
async def house() -> AsyncIterator[House]:
    yield await house_with()


async def test_a_delivery_is_stored_and_followed(house: House) -> None:
    assert await house.receive() == "new"
    (task,) = await house.listed("ann")
    assert task.status.state == TaskState.TASK_STATE_WORKING
    assert (task.context_id, task.metadata["cause"]) == ("context-of-anns", "cron")
    ((context, record),) = house.executor.resumed
    assert context.message is None
    assert (record.message_id, record.sent, record.delivery) == ("p", True, True)
    assert await house.receive() == "known"
    assert len(house.executor.resumed) == 1


@pytest.mark.parametrize(
    ("chat", "agent", "peer"),
    [("others", "main", None), ("anns", "other", None), ("anns", "main", "bob")],
)
async def test_no_one_speaks_into_the_conversations_of_others(
    house: House, chat: str, agent: str, peer: str | None
) -> None:
    with pytest.raises(Forbidden):
        await house.receive(chat=chat, agent=agent, peer=peer)
    assert not [*await house.listed("ann"), *await house.listed("other/ann")]


async def test_the_worker_of_a_peer_speaks_into_that_peers_conversations(house: House) -> None:
    assert await house.receive(peer="ann") == "new"


async def test_two_agents_of_one_hermes_hear_of_each_others_deliveries() -> None:
    house = await house_with(shares=lambda agent, other: True)
    assert await house.receive(chat="others", agent="main") == "known"
    assert len(await house.listed("other/ann")) == 1
    assert house.executor.resumed[0][0].call_context.user.user_name == "other/ann"


async def test_while_the_bridge_starts_or_ends_deliveries_come_later(house: House) -> None:
    house.deliveries.close()
    with pytest.raises(Draining):
        await house.receive()
    assert not await house.listed("ann")


async def test_a_peer_without_room_gets_no_deliveries() -> None:
    house = await house_with()
    house.deliveries._quota = StorageQuota(house.tasks.stored, 10, 30)
    await house.receive("first")
    with pytest.raises(QuotaExceeded):
        await house.receive("second")
    assert await house.receive("third", chat="bobs") == "new"


async def test_a_delivery_that_comes_twice_at_once_is_stored_once_also_if_that_fails_first(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:

        async def fail(*given: Any) -> None:
            await asyncio.sleep(0)
            raise StorageFailure("the disk is full")

        broken.setattr(house.store, "save", fail)
        both = await asyncio.gather(house.receive(), house.receive(), return_exceptions=True)
        assert {type(each) for each in both} == {StorageFailure, Draining}
    assert await house.receive() == "new"
    assert len(await house.listed("ann")) == 1
    assert house.deliveries.unfinished == 1


async def test_one_peers_deliveries_do_not_use_up_those_of_another() -> None:
    house = await house_with(limits=DeliveryLimits(total=3, of_peer=2))
    await house.receive("a")
    await house.receive("b")
    with pytest.raises(Busy):
        await house.receive("c")
    assert await house.receive("d", chat="bobs") == "new"
    with pytest.raises(Busy):
        await house.receive("e", chat="bobs")


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 5), st.sampled_from(["take", "end"])),
        max_size=60,
    )
)
def test_the_bounds_hold_in_any_order(steps: list[tuple[str, int, str]]) -> None:
    limits, now = DeliveryLimits(total=4, of_peer=3, per_hour=6), 0.0
    bounds = _Bounds(limits, lambda: now)
    open_ones: set[tuple[str, str]] = set()
    taken: list[tuple[float, str]] = []
    for owner, number, step in steps:
        now += 300.0
        key = (owner, str(number))
        if step == "end":
            bounds.remove(*key)
            open_ones.discard(key)
        elif key not in open_ones:
            try:
                bounds.take(*key)
            except (Busy, RateLimited):
                of_owner = sum(each[0] == owner for each in open_ones)
                recent = sum(at > now - 3600 and each == owner for at, each in taken)
                assert of_owner == 3 or len(open_ones) == 4 or recent == 6
            else:
                open_ones.add(key)
                taken.append((now, owner))
        assert len(bounds) == len(open_ones) <= 4


@pytest.mark.parametrize(
    ("setting", "agent", "peer", "allowed"),
    [
        (True, None, None, True),
        (False, None, None, False),
        (False, "allow", None, True),
        (True, "deny", None, False),
        (True, "deny", "allow", False),
        (True, None, "deny", False),
        (True, "allow", "allow", True),
    ],
)
def test_the_agent_decides_and_the_peer_can_only_take_away(
    setting: bool, agent: Any, peer: Any, allowed: bool
) -> None:
    configuration = Configuration(
        agents={"main": AgentConfig(deliveries=agent)},
        peers={"ann": PeerConfig("ann", deliveries=peer)},
    )
    settings = Settings.from_env({"MOLECULE_HERMES_DELIVERIES": "on" if setting else "off"})
    allows = delivery_policy(configuration, settings)
    assert allows("main", "ann") is allowed
    assert allows("gone", "ann") is False
