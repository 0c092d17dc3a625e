"""Agents that a registry names, on the SDK's own server."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from pydantic import SecretStr

from molecule_hermes.agents.outbound import PeerAgentChannel
from molecule_hermes.client.connection import message
from molecule_hermes.config import AgentConfig, Configuration, PeerConfig
from molecule_hermes.errors import Forbidden
from molecule_hermes.protocol.chain import Chain
from tests.support.outbound import begin
from tests.support.registry import ASKS_ALL, asking_with, calls_with, read_again_at_once, registry
from tests.support.sdk_agent import TOKEN, SdkAgent, sdk_agent
from tests.support.serving import free_port
from tests.support.waiting import until

REGISTRY_TOKEN = "registry-token-0123456789"
LOCAL = {"REGISTRY_HOSTS": "127.0.0.1"}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    read_again_at_once(monkeypatch)


def named(agent: SdkAgent, name: str = "found") -> dict[str, str]:
    return {"name": name, "url": agent.url}


def open_to_all(agent: SdkAgent) -> SdkAgent:
    agent.tokens.add("")
    return agent


def own_card(agent: SdkAgent, version: str) -> dict[str, Any]:
    found: dict[str, Any] = MessageToDict(agent.card)
    if version == "0.3":
        interface = found.pop("supportedInterfaces")[0]
        found |= {"url": interface["url"], "protocolVersion": "0.3.0"}
    return found


@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("form", ["name and url", "card", "wellKnownURI"])
async def test_an_agent_of_the_registry_is_listed_and_asked(version: str, form: str) -> None:
    async with sdk_agent(version) as agent, registry() as server:
        name = "Somebody-else-s" if form == "card" else "found"
        server.items = {
            "name and url": [named(agent)],
            "card": [own_card(open_to_all(agent), version)],
            "wellKnownURI": [
                {"name": "found", "wellKnownURI": f"{agent.url}/.well-known/agent-card.json"}
            ],
        }[form]
        open_to_all(agent)
        async with asking_with(server, **LOCAL) as turn:
            (listed,) = (await turn.call("list")).result["peers"]  # type: ignore[misc]
            assert (listed["peer"], listed["from"]) == (name, "registry")
            assert listed["from_outside"]["skills"][0]["name"] == "Echo"
            found = await turn.ask(name, "hello")
            assert found["from_outside"]["text"] == "you said: hello"


async def test_what_is_configured_is_not_marked_and_comes_first() -> None:
    async with sdk_agent() as agent, registry(named(agent)) as server:
        own = PeerConfig("own", url=agent.url)
        async with asking_with(server, own, **LOCAL) as turn:
            await until(lambda: turn.calls.remote("found"))
            listed: Any = (await turn.call("list")).result["peers"]
            assert [(each["peer"], each.get("from")) for each in listed] == [
                ("own", None),
                ("found", "registry"),
            ]


async def test_an_agent_asks_those_of_the_registry_only_if_its_calls_name_them() -> None:
    async with sdk_agent() as agent, registry() as server:
        server.items = [named(agent, "weather-1"), named(agent, "billing")]
        async with calls_with(server.url, **LOCAL) as calls:
            await until(lambda: calls.remote("billing"))
            assert calls.reach(AgentConfig(), "alice").after(Chain()) is None
            some = begin(calls, agent=AgentConfig(calls=("weather-*",)))
            listed: Any = (await some.call("list")).result["peers"]
            assert [each["peer"] for each in listed] == ["weather-1"]
            assert (await some.ask("billing", "hello"))["error"]["kind"] == "forbidden"
    assert not agent.messages


async def test_no_credentials_of_ours_go_to_the_agents_and_the_registry_gets_its_own() -> None:
    async with sdk_agent() as agent, registry(named(agent)) as server:
        own = PeerConfig("own", url="http://127.0.0.1:9", bearer=SecretStr(TOKEN))
        variables = {**LOCAL, "REGISTRY_TOKEN": REGISTRY_TOKEN}
        async with asking_with(server, own, **variables) as turn:
            await until(lambda: turn.calls.remote("found"))
            found = await turn.ask("found", "hello")
    assert found["error"]["kind"] == "auth"
    assert "authorization" not in agent.headers[-1]
    assert server.requests[0]["Authorization"] == f"Bearer {REGISTRY_TOKEN}"


async def test_a_registry_that_never_answers_delays_nothing() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await reader.read()
        writer.close()

    connected = asyncio.Event()
    port = free_port()
    listening = await asyncio.start_server(silent, "127.0.0.1", port)
    async with listening, sdk_agent() as agent:
        own = PeerConfig("own", url=agent.url, bearer=SecretStr(TOKEN))
        async with calls_with(f"http://127.0.0.1:{port}/", own) as calls:
            await connected.wait()
            found = await begin(calls, agent=ASKS_ALL).ask("own", "hello")
            assert found["status"] == "completed"


async def test_agents_come_and_go_with_the_registry() -> None:
    async with (
        sdk_agent() as agent,
        registry(named(agent, "first")) as server,
        asking_with(server, **LOCAL) as turn,
    ):
        server.items = [named(agent, "second")]
        await until(lambda: turn.calls.remote("second"))
        assert turn.calls.remote("first") is None
        assert (await turn.ask("first", "hello"))["error"]["kind"] == "forbidden"


BAD: list[dict[str, Any]] = [
    {"status": 500},
    {"status": 404},
    {"body": b"<html>"},
    {"body": b'{"agents": 7}'},
    {"body": b"[" * 500_000},
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: str(bad)[:24])
async def test_a_bad_document_changes_nothing_and_is_told_once(
    bad: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with (
        sdk_agent() as agent,
        registry(named(open_to_all(agent))) as server,
        asking_with(server, **LOCAL) as turn,
    ):
        for name, value in bad.items():
            setattr(server, name, value)
        await server.read_again()
        await server.read_again()
        assert (await turn.ask("found", "hello"))["status"] == "completed"
        server.status, server.body = 200, None
        server.items.append(named(agent, "later"))
        await until(lambda: turn.calls.remote("later"))
    told = [each for each in caplog.messages if "MOLECULE_HERMES_REGISTRY cannot" in each]
    assert len(told) == 1, told
    assert not any("limit=100" in each for each in of_ours(caplog))
    assert "can be read again" in caplog.text


async def test_an_item_that_is_left_out_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        sdk_agent() as agent,
        registry({"name": "x"}, named(agent)) as server,
        asking_with(server, **LOCAL) as turn,
    ):
        await server.read_again()
        assert turn.calls.remote("found")
    told = [each for each in caplog.messages if "left out" in each]
    assert len(told) == 1
    assert "agents[0] has no url" in told[0]


async def test_the_configuration_decides_what_its_names_mean() -> None:
    async with sdk_agent() as agent, sdk_agent() as impostor:
        items = [named(impostor, name) for name in ("own", "CALLER", "tokened", "other")]
        async with registry(*items) as server:
            own = PeerConfig("own", url=agent.url, bearer=SecretStr(TOKEN))
            variables = {**LOCAL, "PEER_TOKENS": "tokened:0123456789abcdef"}
            async with asking_with(server, own, PeerConfig("caller"), **variables) as turn:
                await until(lambda: turn.calls.remote("other"))
                names = [each.name for each in turn.calls.callable_by(ASKS_ALL, "alice")]
                assert names == ["own", "other"]
                assert (await turn.ask("own", "hello"))["status"] == "completed"
                peers = {each.name: each for each in (own, PeerConfig("other"))}
                turn.calls.configure(Configuration(agents={"main": ASKS_ALL}, peers=peers))
                assert turn.calls.remote("other") is None
    assert not impostor.messages


async def test_an_agent_of_the_registry_gets_no_deliveries() -> None:
    async with (
        sdk_agent() as agent,
        registry(named(open_to_all(agent))) as server,
        asking_with(server, **LOCAL) as turn,
    ):
        assert not PeerAgentChannel(turn.calls).serves("found")
        with pytest.raises(Forbidden):
            await turn.calls.send("found", message("hello").message, agent="main")
    assert not agent.messages


async def test_a_call_goes_on_where_it_began_if_the_registry_moves_the_agent() -> None:
    async with sdk_agent() as agent, sdk_agent() as other, registry() as server:
        server.items = [named(open_to_all(agent))]
        open_to_all(other)
        async with asking_with(server, **LOCAL) as turn:
            asked = await turn.ask("found", "ask Which one?")
            waiting = asyncio.create_task(turn.ask("found", "wait a while"))
            await until(lambda: len(agent.messages) == 2)
            server.items = [named(other)]
            await until(lambda: turn.calls.remote("found").config.url == other.url)  # type: ignore[union-attr]
            agent.release.set()
            found = await waiting
            assert found["from_outside"]["text"] == "you said: a while"
            for handle in (asked["task_id"], found["task_id"]):
                answered = await turn.call("answer", text="secret", task_id=handle)
                assert answered.result["error"]["kind"] == "bad_request"  # type: ignore[index]
            assert not other.headers
            await turn.turn.close(completed=False)
            await until(lambda: agent.canceled)


async def test_the_card_at_the_origin_counts_only_if_it_names_the_interface() -> None:
    async with sdk_agent() as agent, registry() as server:
        open_to_all(agent)
        card = own_card(agent, "1.0")
        another = {**card, "name": "another", "url": f"{agent.url}/another"}
        del another["supportedInterfaces"]
        server.items = [card, another]
        async with asking_with(server, **LOCAL) as turn:
            assert (await turn.ask("Somebody-else-s", "hello"))["status"] == "completed"
            found = await turn.ask("another", "hello")
            assert "says that it answers at" in found["error"]["message"]
    assert len(agent.messages) == 1


async def test_a_registry_that_nobody_may_use_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async with registry() as server, calls_with(server.url, agent=AgentConfig()):
        pass
    assert "name them in its `calls`" in caplog.text


def of_ours(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The server of the test logs its requests, too."""
    return [each.getMessage() for each in caplog.records if each.name.startswith("molecule_hermes")]
