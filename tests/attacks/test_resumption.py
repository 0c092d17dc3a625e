"""What peers do while the bridge is still finding out what became of their turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from a2a.types import CancelTaskRequest, Message, Task

from molecule_hermes.client.connection import message
from molecule_hermes.protocol import recovery
from molecule_hermes.protocol.prompts import Prompts
from molecule_hermes.transports.base import Attached
from molecule_hermes.transports.plugin.transport import PluginTransport
from molecule_hermes.turns.model import Turn
from tests.server.test_resumption import (
    Plugin,
    Start,
    begin,
    completed,
    get,
    is_asking,
    plugin,
    start,
)
from tests.support.peers import ask, send, state
from tests.support.waiting import until

__all__ = ["plugin", "start"]


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[asyncio.Event]:
    """Attaching waits until it is set, as for a Hermes that is slow to answer."""
    opened, attach = asyncio.Event(), PluginTransport.attach

    async def held(self: PluginTransport, *args: Any) -> Attached:
        await opened.wait()
        return await attach(self, *args)

    monkeypatch.setattr(PluginTransport, "attach", held)
    return opened


async def test_an_answer_during_the_resumption_reaches_hermes(
    start: Start, plugin: Plugin, gate: asyncio.Event
) -> None:
    async with start() as (_, client):
        sent = await begin(client, message("go"))
        turn = await plugin.started()
        plugin.ask(turn)
        await until(lambda: is_asking(client, sent))
    async with start(ready=False) as (_, client):
        answering = asyncio.create_task(ask(client, "yes", task_id=sent.task_id))
        await until(lambda: has_history(client, sent, "yes"))
        assert state(await get(client, sent)) == "INPUT_REQUIRED"
        gate.set()
        await until(lambda: plugin.gateway.approved == [("rm", "once")])
        plugin.end(turn, "done")
        assert (await answering).states[-1] == "COMPLETED"


async def has_history(client: Any, sent: Any, text: str) -> bool:
    task = await get(client, sent)
    return any(part.text == text for each in task.history for part in each.parts)


async def test_a_message_during_the_resumption_steers_the_turn(
    start: Start, plugin: Plugin, gate: asyncio.Event
) -> None:
    async with start() as (_, client):
        sent = await begin(client, message("go"))
        turn = await plugin.started()
    async with start(ready=False) as (_, client):
        steering = asyncio.create_task(ask(client, "left!", task_id=sent.task_id))
        await until(lambda: has_history(client, sent, "left!"))
        gate.set()
        await until(lambda: turn.steers == 1)
        plugin.end(turn, "done")
        assert (await steering).states[-1] == "COMPLETED"


async def test_a_cancel_during_the_resumption_stops_hermes(
    start: Start, plugin: Plugin, gate: asyncio.Event
) -> None:
    async with start() as (_, client):
        sent = await begin(client, message("go"))
        turn = await plugin.started()
    async with start(ready=False) as (bridge, client):
        canceling = asyncio.create_task(client.cancel_task(CancelTaskRequest(id=sent.task_id)))
        (active,) = bridge.roster["main"].executor._runs.values()
        await until(lambda: active.run.stop is not None)
        gate.set()
        async with asyncio.timeout(5):  # less than the bridge waits for a turn that does not stop
            await until(lambda: plugin.gateway.stopped == [turn.message_id])
        plugin.dispatcher.finish(turn)
        assert state(await canceling) == "CANCELED"


async def test_a_queued_turn_does_not_overtake_the_running_one(
    start: Start, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    find: Callable[..., Any] = recovery.referenced_tasks

    async def slow(asked: Message, *args: Any) -> list[Task]:
        await asyncio.sleep(0.3 if asked.reference_task_ids else 0)
        found: list[Task] = await find(asked, *args)
        return found

    monkeypatch.setattr(recovery, "referenced_tasks", slow)
    async with start() as (_, client):
        earlier = asyncio.create_task(send(client, message("earlier", "ctx")))
        plugin.end(await plugin.started(), "0")
        first = message("first", "ctx")
        first.message.reference_task_ids.append((await earlier).task_id)
        running = await begin(client, first)
        turn = await plugin.started()
        queued = await begin(client, message("second", "ctx"))
    async with start(ready=False) as (_, client):
        plugin.ask(turn)
        await until(lambda: is_asking(client, running))
        answering = asyncio.create_task(ask(client, "yes", task_id=running.task_id))
        await until(lambda: plugin.gateway.approved == [("rm", "once")])
        plugin.end(turn, "1")
        await answering
        plugin.end(await plugin.started(), "2")
        await until(lambda: completed(client, queued))


async def test_queued_turns_keep_their_order_whatever_their_files_take(
    start: Start, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = Prompts.complete

    async def slow(self: Prompts, turn: Turn, *more: Any) -> Any:
        completed = await complete(self, turn, *more)
        await asyncio.sleep(0.3 if completed[0].text == "second" else 0)
        return completed

    async with start() as (_, client):
        await begin(client, message("first", "ctx"))
        turn = await plugin.started()
        for text in ("second", "third", "fourth"):
            await begin(client, message(text, "ctx"))
    monkeypatch.setattr(Prompts, "complete", slow)
    plugin.end(turn, "1")
    async with start():
        for text in ("second", "third", "fourth"):
            turn = await plugin.started()
            assert turn.inbound.content == text
            plugin.end(turn, text)
