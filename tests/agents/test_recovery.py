"""A restart with several agents: each gets back its own turns, and no other's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from a2a.server.context import ServerCallContext
from a2a.types import GetTaskRequest, Message, Part, Role

from molecule_hermes.config import Settings
from molecule_hermes.protocol.caller import Caller
from molecule_hermes.protocol.turn_record import TurnRecord
from molecule_hermes.storage.opening import open_store
from molecule_hermes.turns.model import Place
from tests.agents.conftest import StartAgents
from tests.agents.test_request_handler import begin, speaking
from tests.support.agents import TOKENS, Agents, agents_bridge, two_agents, without
from tests.support.peers import failure, peer, reply_text, send, state
from tests.support.tasks import task
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(120)


async def left_behind(settings: Settings, tasks: Mapping[str, Caller]) -> None:
    """Stores running tasks, each of its caller, as a bridge that was killed leaves them."""
    async with open_store(settings) as store:
        for task_id, caller in tasks.items():
            left = task(task_id, "WORKING", "c", at=1)
            said = Message(message_id=f"m-{task_id}", role=Role.ROLE_USER, task_id=task_id)
            said.parts.append(Part(text="hi"))
            left.history.append(said)
            record = TurnRecord(f"turn-{task_id}", Place(), sent=True, began=1.0, seconds_left=60.0)
            await store.tasks.save(left, ServerCallContext(user=caller), record.to_json())


async def test_each_unfinished_task_is_resumed_by_the_agent_of_its_scope(
    settings: Callable[..., Settings], agents: Agents
) -> None:
    made = settings(STORE="sqlite")
    tasks = {
        "t-main": Caller("ann"),
        "t-research": Caller("ann", "research"),
        "t-bob": Caller("bob", "research"),
    }
    await left_behind(made, tasks)
    async with (
        agents_bridge(made, two_agents(), agents) as bridge,
        peer(bridge.url, token=TOKENS["ann"]) as ann,
        peer(bridge.url, token=TOKENS["bob"]) as bob,
    ):
        await until(lambda: bridge.turns == 0)
        for task_id, caller in tasks.items():
            client = ann if caller.peer == "ann" else bob
            found = await client.get_task(GetTaskRequest(id=task_id, tenant=caller.agent))
            assert (state(found), reply_text(found)) == ("COMPLETED", caller.agent)
    resumed = {
        (name, turn.task_id, turn.peer, turn.agent)
        for name in ("main", "research")
        for turn in agents[name].resumed
    }
    assert resumed == {
        (caller.agent, task_id, caller.peer, caller.agent) for task_id, caller in tasks.items()
    }
    assert sum(len(agents[name].resumed) for name in ("main", "research")) == 3


async def test_tasks_of_an_agent_that_is_gone_end_as_interrupted(
    settings: Callable[..., Settings], agents: Agents
) -> None:
    made = settings(STORE="sqlite")
    await left_behind(made, {"t": Caller("ann", "research")})
    async with agents_bridge(made, without(two_agents(), "research"), agents) as bridge:
        assert bridge.turns == 0
        assert not agents["main"].resumed
    async with (
        agents_bridge(made, two_agents(), agents) as bridge,
        peer(bridge.url, token=TOKENS["ann"]) as ann,
    ):
        ended = await ann.get_task(GetTaskRequest(id="t"))
    assert failure(ended.status)["kind"] == "interrupted"
    assert failure(ended.status)["message"] == "the agent research is no longer configured"


async def test_after_a_restart_a_resend_finds_its_task_under_its_agent_only(
    start: StartAgents, agents: Agents
) -> None:
    request = speaking("hi", tenant="research", context_id="c")
    async with start(STORE="sqlite") as bridge, peer(bridge.url, token=TOKENS["ann"]) as ann:
        first = await send(ann, request)
    async with start(STORE="sqlite") as bridge, peer(bridge.url, token=TOKENS["ann"]) as ann:
        again = await send(ann, request)
        request.tenant = "main"
        other = await send(ann, request)
        assert not agents["research"].turns
        assert len(agents["main"].turns) == 1
    assert again.task_id == first.task_id != other.task_id


async def test_a_task_from_before_there_were_agents_belongs_to_the_main_one(
    start: StartAgents,
) -> None:
    one = without(two_agents(), "research")
    async with start(one, STORE="sqlite") as bridge, peer(bridge.url, token=TOKENS["ann"]) as ann:
        task_id = await begin(ann, speaking("hi"))
        await until(lambda: bridge.turns == 0)
    async with start(STORE="sqlite") as bridge, peer(bridge.url, token=TOKENS["ann"]) as ann:
        found = await ann.get_task(GetTaskRequest(id=task_id, tenant="main"))
    assert reply_text(found) == "main"
