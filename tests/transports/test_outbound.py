"""The calls of a turn to other agents, from the plugin's request to the end of the turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from molecule_hermes.transports.plugin.transport import PluginTransport
from molecule_hermes.turns.model import Canceled, Completed, Notice, Turn
from molecule_hermes.turns.outbound import Progress
from molecule_hermes.wire import OUTBOUND, OUTBOUND_PATH, SECRET_HEADER, Called, PeerCall
from tests.support.waiting import until
from tests.transports.test_plugin import SECRET, FakePlugin, nothing, plugin, run, serving, turn

__all__ = ["plugin"]


@dataclass
class Asked:
    """Notes the calls of turns, and how they end."""

    conversations: list[str] = field(default_factory=list)
    calls: list[PeerCall] = field(default_factory=list)
    ends: list[bool] = field(default_factory=list)
    progress: Progress = print

    def begin(self, conversation: str, progress: Progress) -> Asked:
        self.conversations.append(conversation)
        self.progress = progress
        return self

    async def call(self, call: PeerCall) -> Called:
        self.calls.append(call)
        self.progress("bee: reading")
        return Called({"status": "completed"})

    async def close(self, *, completed: bool) -> None:
        self.ends.append(completed)


@pytest.fixture
async def transport(plugin: FakePlugin) -> AsyncIterator[PluginTransport]:
    async with PluginTransport(plugin.url, secret=SECRET, watch_every=0.05) as transport:
        yield transport


def asking(asked: Asked) -> Turn:
    return replace(turn(), outbound=asked)


async def ask(plugin: FakePlugin, body: dict[str, Any]) -> int:
    url = body["callback_url"].replace("/a2a/reply", OUTBOUND_PATH)
    call = PeerCall(body["message_id"], "c", "delegate", "bee", "add").to_json()
    return (await plugin.http.post(url, json=call, headers={SECRET_HEADER: SECRET})).status_code


async def test_a_turn_asks_and_its_peer_sees_what_the_other_agent_does(
    plugin: FakePlugin, transport: PluginTransport
) -> None:
    statuses: list[int] = []

    async def script(plugin: FakePlugin, body: dict[str, Any]) -> None:
        statuses.append(await ask(plugin, body))
        await plugin.call(body, "done", type="final", status="completed", seq=0)
        await until(lambda: not transport.pending)
        statuses.append(await ask(plugin, body))

    plugin.script = script
    asked = Asked()
    assert await run(transport, asking(asked)) == [Notice("bee: reading"), Completed("done")]
    await asyncio.gather(*plugin.tasks)
    assert statuses == [200, 404]
    assert OUTBOUND in plugin.received[0]["wants"]
    assert asked.conversations == [turn().conversation]
    assert [call.peer for call in asked.calls] == ["bee"]
    assert asked.ends == [True]


async def test_a_canceled_turn_ends_its_calls(
    plugin: FakePlugin, transport: PluginTransport
) -> None:
    plugin.script = nothing
    asked = Asked()
    running = asyncio.create_task(run(transport, asking(asked)))
    await until(lambda: transport.accepted)
    await transport.cancel(asking(asked))
    assert await running == [Canceled()]
    assert asked.ends == [False]


async def test_a_turn_that_may_ask_nobody_is_not_offered_it(
    plugin: FakePlugin, transport: PluginTransport
) -> None:
    statuses: list[int] = []

    async def script(plugin: FakePlugin, body: dict[str, Any]) -> None:
        statuses.append(await ask(plugin, body))
        await plugin.call(body, "done", type="final", status="completed", seq=0)

    plugin.script = script
    assert await run(transport) == [Completed("done")]
    assert statuses == [404]
    assert OUTBOUND not in plugin.received[0]["wants"]


async def test_without_a_secret_no_turn_asks() -> None:
    asked = Asked()
    plain = FakePlugin()
    async with serving(plain), PluginTransport(plain.url) as transport:
        running = asyncio.create_task(run(transport, asking(asked)))
        await asyncio.wait({running}, timeout=20)
    assert asked.conversations == []
    await plain.http.aclose()
