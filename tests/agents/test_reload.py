"""`Bridge.reload`: a new configuration counts at once, and no turn is dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from a2a.types import GetTaskRequest, ListTasksRequest
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError
from pydantic import SecretStr

from molecule_hermes.config import (
    AgentConfig,
    Configuration,
    Limits,
    PeerConfig,
    RemoteHermes,
    RouteConfig,
    Settings,
)
from molecule_hermes.errors import ConfigError, StartError
from molecule_hermes.server.bridge import Bridge
from tests.agents.conftest import StartAgents
from tests.agents.test_request_handler import begin, speaking
from tests.support.agents import TOKENS, Agents, agents_bridge, peer_config, two_agents, without
from tests.support.fakes import ScriptedTransport
from tests.support.peers import ask, card_of, peer, send
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(120)


async def test_a_removed_agent_ends_its_turns_and_is_closed_after_the_last(
    start: StartAgents, agents: Agents
) -> None:
    whole = two_agents()
    async with start(whole) as bridge, peer(bridge.url, token=TOKENS["ann"]) as ann:
        waiting = asyncio.create_task(send(ann, speaking("wait", tenant="research")))
        await until(lambda: agents["research"].turns)
        await bridge.reload(without(whole, "research"))
        assert set(bridge.roster.agents) == {"main"}
        assert bridge.turns == 1
        with pytest.raises(InvalidParamsError, match="unknown tenant 'research'"):
            await send(ann, speaking("hi", tenant="research"))
        assert not agents["research"].closed
        agents.go.set()
        ended = await waiting
        assert ended.text == "research"
        await until(lambda: agents["research"].closed)
        # Its tasks cannot be reached until it is configured again.
        with pytest.raises(TaskNotFoundError):
            await ann.get_task(GetTaskRequest(id=ended.task_id))
        assert not (await ann.list_tasks(ListTasksRequest())).tasks
        await bridge.reload(whole)
        task = await ann.get_task(GetTaskRequest(id=ended.task_id))
        assert task.id == ended.task_id
        assert (await send(ann, speaking("hi", tenant="research"))).text == "research"
    assert (agents["research"].opened, agents["research"].closed) == (1, 1)


async def test_an_agent_that_returns_during_its_last_turn_goes_on_as_it_was(
    start: StartAgents, agents: Agents
) -> None:
    whole = two_agents()
    async with start(whole) as bridge, peer(bridge.url, token=TOKENS["ann"]) as ann:
        before, transport = bridge.roster["research"], agents["research"]
        task_id = await begin(ann, speaking("wait", tenant="research"))
        await until(lambda: transport.turns)
        await bridge.reload(without(whole, "research"))
        await bridge.reload(whole)
        assert bridge.roster["research"] is before
        steered = await begin(ann, speaking("more", task_id=task_id))
        assert steered == task_id
        agents.go.set()
        await until(lambda: bridge.turns == 0)
        assert (await send(ann, speaking("hi", tenant="research"))).text == "research"
        assert transport.steers == ["more"]
    assert (transport.opened, transport.closed) == (1, 1)


async def test_a_removed_agent_stays_open_for_a_request_that_has_not_become_a_turn_yet(
    start: StartAgents, agents: Agents
) -> None:
    whole = two_agents()
    async with start(whole) as bridge:
        with bridge.roster["research"].in_use():
            await bridge.reload(without(whole, "research"))
            for _ in range(20):
                await asyncio.sleep(0)
            assert not agents["research"].closed
        await until(lambda: agents["research"].closed)


async def test_an_agent_that_returns_while_it_is_closed_is_opened_after_that(
    start: StartAgents, agents: Agents
) -> None:
    whole = two_agents()
    async with start(whole) as bridge, peer(bridge.url, token=TOKENS["ann"]) as ann:
        first = agents["research"]
        first.may_close.clear()
        await bridge.reload(without(whole, "research"))
        await until(lambda: first.closing)
        returning = asyncio.create_task(bridge.reload(whole))
        assert (await send(ann, speaking("hi", tenant="main"))).text == "main"
        assert agents["research"] is first, "the address of the first may not be free yet"
        first.may_close.set()
        await returning
        assert (await send(ann, speaking("hi", tenant="research"))).text == "research"
    assert agents["research"] is not first
    assert (first.closed, agents["research"].closed) == (1, 1)


async def test_an_agent_that_cannot_be_opened_leaves_all_as_it_was(
    start: StartAgents, agents: Agents
) -> None:
    whole = two_agents()
    broken = replace(
        without(whole, "research"),
        agents={n: AgentConfig(n) for n in ("main", "fine", "broken")},
        peers={"bob": peer_config("bob")},
    )
    agents.fails["broken"] = StartError("no port is free")
    async with start(whole) as bridge, peer(bridge.url, token=TOKENS["ann"]) as ann:
        with pytest.raises(StartError, match="no port is free"):
            await bridge.reload(broken)
        assert set(bridge.roster.agents) == {"main", "research"}
        assert (agents["fine"].opened, agents["fine"].closed) == (1, 1)
        assert (await send(ann, speaking("hi", tenant="research"))).text == "research"
        with pytest.raises(InvalidParamsError):
            await send(ann, speaking("hi", tenant="fine"))


async def test_tokens_and_routes_change_at_once(start: StartAgents) -> None:
    whole = two_agents()
    new = "a-new-token-0123456789"
    changed = replace(
        whole,
        routes=(RouteConfig("research"),),
        peers={"ann": PeerConfig("ann", token=SecretStr(new)), "bob": peer_config("bob")},
    )
    async with start(whole) as bridge, httpx.AsyncClient(base_url=bridge.url) as http:
        async with peer(bridge.url, token=TOKENS["ann"]) as ann:
            first = await ask(ann, "hi")
        await bridge.reload(changed)
        for token, status in ((TOKENS["ann"], 401), (TOKENS["eve"], 401), (new, 200)):
            headers = {"Authorization": f"Bearer {token}"}
            assert (await http.get("/metrics", headers=headers)).status_code == status
        async with peer(bridge.url, token=new) as ann:
            assert (await ask(ann, "hi")).text == "research"
            # What the routes said before does not hide the tasks of then.
            assert (await ann.get_task(GetTaskRequest(id=first.task_id))).id == first.task_id
        async with peer(bridge.url, token=TOKENS["bob"]) as bob:
            assert (await send(bob, speaking("hi", tenant="main"))).text == "main"


async def test_a_stream_that_has_begun_goes_on_under_the_earlier_configuration(
    start: StartAgents, agents: Agents
) -> None:
    async with start() as bridge, peer(bridge.url, token=TOKENS["eve"]) as eve:
        waiting = asyncio.create_task(ask(eve, "wait"))
        await until(lambda: agents["main"].turns)
        await bridge.reload(two_agents(peers={"ann": peer_config("ann")}))
        agents.go.set()
        assert (await waiting).text == "main"


async def test_cards_follow_the_configuration(start: StartAgents) -> None:
    whole = two_agents()
    changed = replace(
        whole,
        agents={
            "research": AgentConfig("research", title="Librarian", models=("large",)),
            "writer": AgentConfig("writer"),
        },
        routes=(),
        default="writer",
    )
    async with start(whole) as bridge:
        await bridge.reload(changed)
        assert (await card_of(bridge.url)).name == "writer"
        librarian = await card_of(f"{bridge.url}/agents/research")
        assert librarian.name == "Librarian"
        assert "large" in str(librarian.capabilities.extensions)
        async with httpx.AsyncClient() as http:
            gone = await http.get(f"{bridge.url}/agents/main/.well-known/agent-card.json")
        assert gone.status_code == 404
        assert (await bridge.health.ready()).ready


async def test_limits_change_at_once_and_end_no_turn(start: StartAgents, agents: Agents) -> None:
    whole = two_agents()

    def limited(running: int) -> Configuration:
        research = replace(whole.agents["research"], limits=Limits(running=running))
        return replace(whole, agents={"main": whole.agents["main"], "research": research})

    async with start(limited(1)) as bridge, peer(bridge.url, token=TOKENS["ann"]) as ann:
        for _ in range(2):
            await begin(ann, speaking("wait", tenant="research"))
        await until(lambda: agents["research"].turns and bridge.turns == 2)
        assert (await send(ann, speaking("hi", tenant="main"))).text == "main"
        assert len(agents["research"].turns) == 1
        await bridge.reload(limited(2))
        await until(lambda: len(agents["research"].turns) == 2)
        await bridge.reload(limited(1))
        agents.go.set()
        await until(lambda: bridge.turns == 0)


async def test_a_configuration_that_would_expose_the_bridge_is_refused(
    settings: Callable[..., Settings], agents: Agents
) -> None:
    made = settings(HOST="0.0.0.0", DRAIN_TIMEOUT=1)
    async with agents_bridge(made, two_agents(), agents) as bridge:
        with pytest.raises(ConfigError):
            await bridge.reload(two_agents(peers={}))
        async with httpx.AsyncClient() as http:
            assert (await http.get(f"{bridge.local_url}/metrics")).status_code == 401


async def test_another_hermes_for_a_running_agent_needs_a_restart(
    start: StartAgents, caplog: pytest.LogCaptureFixture
) -> None:
    whole = two_agents()
    elsewhere = replace(whole.agents["research"], hermes=RemoteHermes(plugin="http://elsewhere"))
    async with start(whole) as bridge:
        await bridge.reload(
            replace(whole, agents={"main": whole.agents["main"], "research": elsewhere})
        )
    assert "agent research still uses the Hermes that it was started with" in caplog.text


async def test_a_bridge_with_one_transport_takes_no_second_agent(
    settings: Callable[..., Settings],
) -> None:
    async with Bridge(settings(), ScriptedTransport()) as bridge:
        with pytest.raises(StartError, match="there is no Hermes for the agent research"):
            await bridge.reload(two_agents())
        assert set(bridge.roster.agents) == {"main"}


async def test_reloads_under_load_drop_no_turn(start: StartAgents, agents: Agents) -> None:
    whole = two_agents()
    async with start(whole) as bridge, peer(bridge.url, token=TOKENS["ann"]) as ann:
        busy = asyncio.create_task(_many(ann))
        while not busy.done():
            await bridge.reload(without(whole, "research"))
            await bridge.reload(whole)
            await asyncio.sleep(0)
        texts = await busy
    assert set(texts) <= {"main", "research", "unknown"}
    assert texts.count("main") == 30


async def _many(client: Any) -> list[str]:
    async def one(number: int) -> str:
        tenant = ("main", "research")[number % 2]
        try:
            return (await send(client, speaking("hi", tenant=tenant))).text
        except InvalidParamsError:
            return "unknown"

    return list(await asyncio.gather(*map(one, range(60))))
