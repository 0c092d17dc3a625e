"""The artifact `reply`: its updates as a peer sees them, and with a slow updater."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from a2a.helpers import get_text_parts
from a2a.types import CancelTaskRequest

from molecule_hermes.client.connection import message
from molecule_hermes.errors import Unreachable
from molecule_hermes.protocol.reply import ReplyArtifact
from molecule_hermes.turns.model import Completed, Failed, TextDelta
from tests.conftest import StartBridge
from tests.support.fakes import ScriptedTransport
from tests.support.peers import Turn, ask, peer

pytestmark = pytest.mark.timeout(60)

Update = tuple[str, bool, bool]


def updates(turn: Turn) -> list[Update]:
    """The text of each update, whether it appends, and whether it is the last."""
    return [
        ("".join(get_text_parts(update.artifact.parts)), update.append, update.last_chunk)
        for update in turn.reply_updates
    ]


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_the_last_update_restates_the_whole_text(bridge: StartBridge, version: str) -> None:
    transport = ScriptedTransport(
        TextDelta("one "),
        0.1,
        TextDelta("two "),
        0.1,
        TextDelta("three"),
        Completed("one two three"),
    )
    async with bridge(transport) as b, peer(b.url, version=version) as client:
        turn = await ask(client, "hi")
    *streamed, last = updates(turn)
    assert streamed[:2] == [("one ", False, False), ("two ", True, False)]
    assert last == ("one two three", False, True)
    assert all(text for text, _, _ in streamed), "no update is empty"


@pytest.mark.parametrize("script", [(), (TextDelta("all"),)], ids=["final only", "one piece"])
async def test_an_answer_that_came_in_one_piece_is_one_update(
    bridge: StartBridge, script: tuple[TextDelta, ...]
) -> None:
    transport = ScriptedTransport(*script, Completed("all"))
    async with bridge(transport) as b, peer(b.url) as client:
        turn = await ask(client, "hi")
    assert updates(turn) == [("all", False, True)]


async def test_the_first_piece_does_not_wait_for_the_second(bridge: StartBridge) -> None:
    goes_on = asyncio.Event()
    transport = ScriptedTransport(TextDelta("first "), goes_on, Completed("first second"))
    async with bridge(transport) as b, peer(b.url) as client:
        turn = Turn()
        async with asyncio.timeout(10):
            async for event in client.send_message(message("hi")):
                turn.add(event)
                if turn.text:
                    goes_on.set()
    assert updates(turn) == [("first ", False, False), ("first second", False, True)]


@pytest.mark.parametrize("ends", ["failed", "canceled"])
async def test_a_turn_that_did_not_complete_restates_what_was_streamed(
    bridge: StartBridge, ends: str
) -> None:
    end = Failed(Unreachable("away")) if ends == "failed" else 30.0
    transport = ScriptedTransport(TextDelta("so "), 0.1, TextDelta("far"), 0.1, end)
    async with bridge(transport) as b, peer(b.url) as client:
        turn = Turn()
        async for event in client.send_message(message("hi")):
            turn.add(event)
            if ends == "canceled" and event.artifact_update.append:
                await client.cancel_task(CancelTaskRequest(id=turn.task_id))
    assert updates(turn) == [
        ("so ", False, False),
        ("far", True, False),
        ("so far", False, True),
    ]


class SlowUpdater:
    def __init__(self) -> None:
        self.sending = asyncio.Event()
        self.sent: list[str] = []

    async def add_artifact(self, parts: list[Any], *ids: str, **more: Any) -> None:
        if parts[0].text == "b":
            self.sending.set()
            await asyncio.sleep(0.05)
        self.sent.append(parts[0].text)


async def test_what_is_being_sent_when_the_turn_ends_is_not_lost() -> None:
    updater = SlowUpdater()
    reply = ReplyArtifact(updater, interval=0.05)  # type: ignore[arg-type]
    async with asyncio.timeout(20):
        async with reply:
            await reply.add("a")
            await reply.flush()
            await reply.add("b")
            await updater.sending.wait()
        await reply.finish("ab")
    assert updater.sent == ["a", "b", "ab"]
