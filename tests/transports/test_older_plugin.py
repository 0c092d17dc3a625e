"""The transport to a Hermes that still has the older plugin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from molecule_hermes.errors import BadRequest
from molecule_hermes.transports.base import QuestionGoneError
from molecule_hermes.transports.plugin.transport import PluginTransport
from molecule_hermes.turns.model import Canceled, Completed, Failed, Turn, TurnEvent
from tests.support.older_plugin import OlderPlugin, older_plugin
from tests.support.waiting import until

SECRET = "a-secret-of-the-tests"


@pytest.fixture
async def plugin() -> AsyncIterator[OlderPlugin]:
    async with older_plugin(SECRET) as plugin:
        yield plugin


@pytest.fixture
async def transport(plugin: OlderPlugin) -> AsyncIterator[PluginTransport]:
    async with PluginTransport(plugin.url, secret=SECRET, watch_every=0.01) as transport:
        yield transport


def turn(name: str = "m-1") -> Turn:
    return Turn(
        name, "alice", name, f"task-{name}", f"hello from {name}", system_prompt="Be brief."
    )


async def run(transport: PluginTransport, turn: Turn) -> list[TurnEvent]:
    async with asyncio.timeout(20):
        return [event async for event in transport.run(turn)]


async def test_ok_alone_is_ready(transport: PluginTransport) -> None:
    await transport.check()


async def test_a_200_accepts_the_message_and_is_not_sent_again(
    plugin: OlderPlugin, transport: PluginTransport
) -> None:
    plugin.may_answer.clear()
    running = asyncio.create_task(run(transport, turn()))
    await until(lambda: transport.accepted == 1)
    plugin.may_answer.set()
    assert await running == [Completed("You said: hello from m-1")]
    assert [body["message_id"] for body in plugin.received] == ["m-1"]


async def test_one_callback_without_a_type_is_the_whole_answer(
    plugin: OlderPlugin, transport: PluginTransport
) -> None:
    names = [f"m-{number}" for number in range(5)]
    replies = await asyncio.gather(*(run(transport, turn(name)) for name in names))
    assert replies == [[Completed(f"You said: hello from {name}")] for name in names]
    await until(lambda: len(plugin.responses) == len(names))
    assert plugin.responses == [{"ok": True}] * len(names)


async def test_a_long_turn_is_not_interrupted_because_health_names_no_instance(
    plugin: OlderPlugin, transport: PluginTransport
) -> None:
    plugin.may_answer.clear()
    checks = 0
    health = transport._client.health

    async def counted(timeout: float) -> dict[str, object]:
        nonlocal checks
        checks += 1
        return await health(timeout)

    transport._client.health = counted  # type: ignore[method-assign]
    running = asyncio.create_task(run(transport, turn()))
    await until(lambda: transport.accepted == 1 and checks > 15)
    plugin.may_answer.set()
    assert await running == [Completed("You said: hello from m-1")]


async def test_a_turn_that_the_plugin_cannot_cancel_ends_canceled(
    plugin: OlderPlugin, transport: PluginTransport
) -> None:
    plugin.may_answer.clear()
    running = asyncio.create_task(run(transport, turn()))
    await until(lambda: transport.accepted == 1)
    await transport.cancel(turn())
    assert await running == [Canceled()]
    plugin.may_answer.set()
    await until(lambda: plugin.responses)
    assert plugin.responses == [{"ok": True, "stale": True, "unknown": []}]


async def test_an_answer_to_a_question_that_it_never_asked_is_refused(
    transport: PluginTransport,
) -> None:
    with pytest.raises(QuestionGoneError):
        await transport.answer(turn(), "q", "yes")


async def test_a_running_turn_cannot_be_steered(
    plugin: OlderPlugin, transport: PluginTransport
) -> None:
    plugin.may_answer.clear()
    running = asyncio.create_task(run(transport, turn()))
    await until(lambda: transport.accepted == 1)
    outcome = await transport.steer(turn(), "use blue")
    assert not outcome.accepted
    assert "too old" in outcome.reason
    plugin.may_answer.set()
    assert await running == [Completed("You said: hello from m-1")]


@pytest.mark.parametrize("reliance", [{"profile": "red"}, {"toolsets": ("web",)}])
async def test_a_turn_that_relies_on_what_the_plugin_ignores_is_not_sent(
    plugin: OlderPlugin, transport: PluginTransport, reliance: dict[str, Any]
) -> None:
    (end,) = await run(transport, replace(turn(), **reliance))
    assert isinstance(end, Failed)
    assert isinstance(end.failure, BadRequest)
    assert "too old" in end.failure.message
    assert plugin.received == []


async def test_a_profile_is_not_ready(plugin: OlderPlugin) -> None:
    async with PluginTransport(plugin.url, secret=SECRET, profile="red") as transport:
        with pytest.raises(BadRequest, match="too old for the profile 'red'"):
            await transport.check()
