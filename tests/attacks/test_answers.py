"""A peer cannot fill the store, or occupy the capacity of others, by answering questions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from a2a.types import GetTaskRequest
from a2a.utils.errors import InvalidParamsError

from molecule_hermes.client.connection import message
from molecule_hermes.protocol.validation import MAX_ANSWERS
from molecule_hermes.turns.model import Completed, Question, Turn, TurnEvent
from tests.attacks.test_open_questions import BOB, MALLORY, QUESTION, TOKENS
from tests.conftest import StartBridge
from tests.support.fakes import Answered, ScriptedTransport
from tests.support.peers import ask, peer, send
from tests.support.waiting import until


class AskingFirst(ScriptedTransport):
    """`ask` asks, and goes on until the end of the test when it is answered, as `wait` does."""

    def __init__(self) -> None:
        super().__init__()
        self.over = asyncio.Event()

    def run(self, turn: Turn) -> AsyncGenerator[TurnEvent, None]:
        steps: dict[str, list[Question | Answered | asyncio.Event]]
        steps = {"ask": [QUESTION, Answered(), self.over], "wait": [self.over]}
        self.script = [*steps.get(turn.text, ()), Completed("hello")]
        return super().run(turn)


async def test_answered_turns_do_not_exceed_the_limit_of_their_peer(
    bridge: StartBridge,
) -> None:
    transport = AskingFirst()
    async with (
        bridge(transport, PEER_TOKENS=TOKENS, MAX_RUNNING=3) as b,
        peer(b.url, token=MALLORY) as mallory,
        peer(b.url, token=BOB) as bob,
        asyncio.timeout(30),
        asyncio.TaskGroup() as group,
    ):
        asked = [await ask(mallory, "ask") for _ in range(3)]
        for number in range(2):
            group.create_task(ask(mallory, "wait", f"c{number}"))
        await until(lambda: len(transport.turns) >= 5)
        for turn in asked:
            group.create_task(ask(mallory, "yes", task_id=turn.task_id))
        await until(lambda: len(transport.answers) >= 3)
        try:
            async with asyncio.timeout(20):
                assert (await ask(bob, "hi")).text == "hello"
        finally:
            transport.over.set()


async def test_messages_that_answer_nothing_do_not_fill_the_store(bridge: StartBridge) -> None:
    transport = AskingFirst()
    async with bridge(transport) as b, peer(b.url) as client:
        asked = await ask(client, "ask")
        wrong = "x" * (MAX_ANSWERS // 3)
        for _ in range(2):
            assert (await ask(client, wrong, task_id=asked.task_id)).states[-1] == "INPUT_REQUIRED"
        for text in (wrong, "x" * 8 * MAX_ANSWERS):
            with pytest.raises(InvalidParamsError, match="without taskId"):
                await send(client, message(text, task_id=asked.task_id))
        kept = await client.get_task(GetTaskRequest(id=asked.task_id))
        assert kept.ByteSize() < MAX_ANSWERS
        transport.over.set()
        # A short answer is still taken.
        assert (await ask(client, "yes", task_id=asked.task_id)).states[-1] == "COMPLETED"
