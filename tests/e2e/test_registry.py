"""A real stack whose agent asks one that a registry names."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.peers import ask, peer
from tests.support.registry import registry
from tests.support.sdk_agent import sdk_agent
from tests.support.stack import environment, up
from tests.support.waiting import until

REGISTRY_TOKEN = "registry-token-0123456789"


async def test_the_agent_finds_another_one_in_the_registry_and_asks_it(tmp_path: Path) -> None:
    file = tmp_path / "agents.yaml"
    file.write_text('agents:\n  main: {calls: ["[Ss]ome*"]}\n')
    async with sdk_agent() as agent, registry() as server:
        agent.tokens.add("")
        server.items = [
            {"name": "Somebody else", "url": agent.url},
            {"name": "not for us", "url": agent.url},
            {"name": "somewhere-private", "url": "http://169.254.169.254"},
        ]
        variables = environment(
            tmp_path / "state",
            MOLECULE_HERMES_CONFIG=str(file),
            MOLECULE_HERMES_REGISTRY=server.url,
            MOLECULE_HERMES_REGISTRY_TOKEN=REGISTRY_TOKEN,
            MOLECULE_HERMES_REGISTRY_HOSTS="127.0.0.1",
        )
        async with up(variables) as stack, peer(stack.url) as client:
            await until(lambda: server.requests)
            listed = await ask(client, "demo:call=list_peers {}")
            task = {"peer": "Somebody-else", "task": "echo from the registry"}
            told = await ask(client, f"demo:call=delegate_to_peer {json.dumps(task)}")
            tools = await ask(client, "demo:run env | grep REGISTRY_TOKEN || echo no such")
    found = json.JSONDecoder().raw_decode(listed.text[listed.text.index("{") :])[0]
    shown = {each["peer"]: each for each in found["peers"]}
    assert set(shown) == {"Somebody-else", "somewhere-private"}
    assert shown["Somebody-else"]["from"] == "registry"
    assert shown["somewhere-private"]["error"]["kind"] == "unreachable"
    assert "you said: from the registry" in told.text
    assert server.requests[0]["Authorization"] == f"Bearer {REGISTRY_TOKEN}"
    assert "no such" in tools.text
    assert REGISTRY_TOKEN not in tools.text
