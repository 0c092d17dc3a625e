"""What follows from the end of a task."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from molecule_hermes.turns.model import Question
from tests.conftest import StartBridge
from tests.support.fakes import Answered, ScriptedTransport
from tests.support.peers import ask, peer
from tests.support.waiting import until


async def test_the_bridge_closes_after_the_turn_of_a_lost_task_has_stopped(
    bridge: StartBridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = Question("q", "approval", "may I?", ("once", "deny"))
    transport = SlowToStop(question, Answered(), asyncio.Event())
    async with AsyncExitStack() as stack:
        b = await stack.enter_async_context(bridge(transport))
        client = await stack.enter_async_context(peer(b.url))
        asked = await ask(client, "hi")

        async def full(*_: object) -> None:
            raise OSError("no space left")

        monkeypatch.setattr("molecule_hermes.storage.sqlite.store.SqliteTaskStore.save", full)
        lost = await ask(client, "once", task_id=asked.task_id)
        assert lost.states[-1] == "FAILED"
        await transport.stopping.wait()
        closing = asyncio.create_task(stack.aclose())
        await until(lambda: b.health.draining)
        assert not closing.done()
        transport.may_stop.set()
        await closing
    assert transport.stopped


class SlowToStop(ScriptedTransport):
    def __init__(self, *script: Any) -> None:
        super().__init__(*script)
        self.stopping, self.may_stop = asyncio.Event(), asyncio.Event()
        self.stopped = False

    async def cancel(self, turn: Any) -> None:
        self.stopping.set()
        await self.may_stop.wait()
        await super().cancel(turn)
        self.stopped = True
