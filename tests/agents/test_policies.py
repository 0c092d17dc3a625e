"""What the configuration allows a peer with an agent, and what an agent is told."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import httpx
import pytest

from molecule_hermes.agents.policies import policy_of, settings_of
from molecule_hermes.config import AgentConfig, Limits, PeerConfig, RemoteHermes, Settings
from molecule_hermes.turns.model import Completed, Question
from tests.agents.conftest import StartAgents
from tests.agents.test_request_handler import begin, speaking
from tests.support.agents import TOKENS, Agents, peer_config, two_agents
from tests.support.fakes import Answered
from tests.support.peers import ask, peer, send
from tests.support.waiting import until

APPROVAL = Question("q", "approval", "may I?", ("once", "deny"))
SETTINGS = Settings.from_env({"MOLECULE_HERMES_MODELS": "small,large"}, system_prompt="all")


def test_an_agents_own_words_replace_the_settings() -> None:
    agent = AgentConfig(
        "a", title="A", description="d", models=("x",), system_prompt="", approvals="deny"
    )
    own = settings_of(agent, SETTINGS)
    assert (own.name, own.description, own.models) == ("A", "d", ("x",))
    assert (own.system_prompt, own.approvals) == ("", "deny")
    assert settings_of(AgentConfig(), SETTINGS) == SETTINGS
    assert settings_of(AgentConfig("b"), SETTINGS).name == "b"


def test_a_peers_policy_only_takes_away() -> None:
    agent = AgentConfig("a", approvals="deny", hermes=RemoteHermes(profile="p"))
    peer = PeerConfig("p", models=("large", "huge"), approvals="ask", toolsets=("web",))
    policy = policy_of(agent, peer, SETTINGS)
    assert (policy.models, policy.approvals, policy.toolsets) == (("large",), "deny", ("web",))
    assert (policy.system_prompt, policy.profile) == ("all", "p")
    of_others = policy_of(AgentConfig(), PeerConfig("q"), SETTINGS)
    assert (of_others.models, of_others.approvals) == (("small", "large"), "ask")
    assert of_others.toolsets is None
    denied = policy_of(AgentConfig(), PeerConfig("q", approvals="deny"), SETTINGS)
    assert denied.approvals == "deny"


async def test_each_turn_gets_the_policy_of_its_agent_and_peer(
    start: StartAgents, agents: Agents
) -> None:
    whole = two_agents()
    configuration = replace(
        whole,
        agents={
            "main": AgentConfig("main", system_prompt="be short"),
            "research": AgentConfig(
                "research", models=("deep",), hermes=RemoteHermes(plugin="http://x", profile="lab")
            ),
        },
        peers={
            "ann": peer_config("ann", toolsets=("web",)),
            "bob": peer_config("bob", models=()),
        },
    )
    async with (
        start(configuration) as bridge,
        peer(bridge.url, token=TOKENS["ann"]) as ann,
        peer(bridge.url, token=TOKENS["bob"]) as bob,
    ):
        await send(ann, speaking("hi", tenant="main"))
        chosen = speaking("hi", tenant="research")
        chosen.message.metadata.update({"model": "deep"})
        assert (await send(ann, chosen)).text == "research"
        chosen.message.message_id = "another"
        refused = await send(bob, chosen)
    (main,), (research,) = agents["main"].turns, agents["research"].turns
    assert (main.system_prompt, main.profile, main.toolsets) == ("be short", "", ("web",))
    assert (research.model, research.profile, research.toolsets) == ("deep", "lab", ("web",))
    assert refused.states[-1] == "REJECTED"
    assert "'deep' is not offered" in refused.failure["message"]


async def test_approvals_are_denied_by_agent_and_by_peer_and_a_running_turn_keeps_its_policy(
    start: StartAgents, agents: Agents
) -> None:
    asks = two_agents(
        peers={"ann": peer_config("ann"), "bob": peer_config("bob", approvals="deny")}
    )
    async with (
        start(asks) as bridge,
        peer(bridge.url, token=TOKENS["ann"]) as ann,
        peer(bridge.url, token=TOKENS["bob"]) as bob,
    ):
        for name in ("main", "research"):
            agents[name].script = [APPROVAL, Answered(), Completed("done")]
        asked = await send(ann, speaking("hi", tenant="main"))
        assert asked.states[-1] == "INPUT_REQUIRED"
        assert (await send(bob, speaking("hi", tenant="main"))).states[-1] == "COMPLETED"
        assert agents["main"].answers == [("q", "deny")]

        gate = asyncio.Event()
        agents["research"].script = [gate, APPROVAL, Answered(), Completed("done")]
        begun = asyncio.create_task(send(ann, speaking("hi", tenant="research")))
        await until(lambda: agents["research"].turns)
        denies = replace(asks.agents["research"], approvals="deny")
        await bridge.reload(replace(asks, agents={"main": asks.agents["main"], "research": denies}))
        gate.set()
        second = await begun
        assert second.states[-1] == "INPUT_REQUIRED"
        assert (await send(ann, speaking("hi", tenant="research"))).states[-1] == "COMPLETED"
        for question in (asked, second):
            ended = await ask(ann, "once", task_id=question.task_id)
            assert ended.states[-1] == "COMPLETED"


async def test_a_peers_limits_count_for_all_agents_together(
    start: StartAgents, agents: Agents
) -> None:
    limits = Limits(running=1, waiting=1)
    configuration = two_agents(
        peers={"ann": peer_config("ann", limits=limits), "bob": peer_config("bob")}
    )
    async with (
        start(configuration) as bridge,
        peer(bridge.url, token=TOKENS["ann"]) as ann,
        peer(bridge.url, token=TOKENS["bob"]) as bob,
    ):
        await begin(ann, speaking("wait", tenant="main"))
        await until(lambda: agents["main"].turns)
        await begin(ann, speaking("wait", tenant="research"))
        await until(lambda: bridge.turns == 2)
        refused = await send(ann, speaking("wait", tenant="research"))
        assert (refused.states[-1], refused.failure["kind"]) == ("REJECTED", "busy")
        assert (await send(bob, speaking("hi", tenant="research"))).text == "research"
        agents.go.set()
        await until(lambda: bridge.turns == 0)


async def test_all_agents_share_the_capacity_of_the_bridge(
    start: StartAgents, agents: Agents
) -> None:
    async with start(MAX_RUNNING=2) as bridge, peer(bridge.url, token=TOKENS["ann"]) as ann:
        for tenant in ("main", "research", "research", "main"):
            await begin(ann, speaking("wait", tenant=tenant))
        await until(lambda: bridge.turns == 4)
        headers = {"Authorization": f"Bearer {TOKENS['ann']}"}
        async with httpx.AsyncClient(headers=headers) as http:
            figures = (await http.get(f"{bridge.url}/metrics")).text
        running = len(agents["main"].turns) + len(agents["research"].turns)
        agents.go.set()
        await until(lambda: bridge.turns == 0)
        async with httpx.AsyncClient(headers=headers) as http:
            after = (await http.get(f"{bridge.url}/metrics")).text
    assert "molecule_hermes_running_turns 1.0" in figures  # one peer cannot take all capacity
    assert running == 1
    for name in ("main", "research"):
        line = f'molecule_hermes_turns_total{{agent="{name}",kind="",state="completed"}} 2.0'
        assert line in after


@pytest.mark.parametrize("name", ["main", "research"])
async def test_the_log_names_the_agent_of_a_turn_that_fails(
    start: StartAgents, agents: Agents, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    async with start() as bridge, peer(bridge.url, token=TOKENS["ann"]) as ann:
        agents[name].script = [RuntimeError("a mistake")]
        failed = await send(ann, speaking("hi", tenant=name))
    assert failed.states[-1] == "FAILED"
    assert f"of agent {name} failed" in caplog.text
