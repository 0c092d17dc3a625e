"""Questions that nobody answers delay no other peer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from molecule_hermes.turns.model import Completed, Question, Turn, TurnEvent
from tests.conftest import StartBridge
from tests.support.fakes import Answered, ScriptedTransport
from tests.support.peers import ask, peer
from tests.support.stack import environment, up

MALLORY, BOB = "mallory-token-0123456789", "bob-token-0123456789"
TOKENS = f"mallory:{MALLORY},bob:{BOB}"
QUESTION = Question("q", "approval", "may I?", ("once", "deny"))


class Asking(ScriptedTransport):
    """Asks for `ask`, and answers everything else at once."""

    def run(self, turn: Turn) -> AsyncGenerator[TurnEvent, None]:
        asks = turn.text == "ask"
        self.script = [QUESTION, Answered(), Completed("done")] if asks else [Completed("hello")]
        return super().run(turn)


async def test_open_questions_take_no_running_place(bridge: StartBridge) -> None:
    limits = {"MAX_RUNNING": 2, "MAX_QUESTIONS_OF_PEER": 5}
    async with (
        bridge(Asking(), PEER_TOKENS=TOKENS, DRAIN_TIMEOUT=0, **limits) as b,
        peer(b.url, token=MALLORY) as mallory,
        peer(b.url, token=BOB) as bob,
        asyncio.timeout(20),
    ):
        for _ in range(5):
            assert (await ask(mallory, "ask")).states[-1] == "INPUT_REQUIRED"
        assert (await ask(mallory, "hi")).text == "hello"
        assert (await ask(bob, "hi")).text == "hello"
        assert (await ask(bob, "ask")).states[-1] == "INPUT_REQUIRED"


async def test_a_peer_with_too_many_questions_gets_a_refusal(bridge: StartBridge) -> None:
    limits = {"MAX_QUESTIONS": 3, "MAX_QUESTIONS_OF_PEER": 2}
    transport = Asking()
    async with (
        bridge(transport, PEER_TOKENS=TOKENS, DRAIN_TIMEOUT=0, **limits) as b,
        peer(b.url, token=MALLORY) as mallory,
        peer(b.url, token=BOB) as bob,
        asyncio.timeout(20),
    ):
        first = await ask(mallory, "ask")
        await ask(mallory, "ask")
        third = await ask(mallory, "ask")
        assert third.states[-1] == "COMPLETED"
        assert any("2 of your questions" in text for text in third.progress)
        assert transport.answers == [("q", "deny")]
        assert (await ask(bob, "ask")).states[-1] == "INPUT_REQUIRED"
        assert any("3 questions" in text for text in (await ask(bob, "ask")).progress)
        # An answer makes room for the next question.
        assert (await ask(mallory, "yes", task_id=first.task_id)).states[-1] == "COMPLETED"
        assert (await ask(mallory, "ask")).states[-1] == "INPUT_REQUIRED"


@pytest.mark.hermes
async def test_hermes_has_threads_for_others_while_questions_wait(tmp_path: Path) -> None:
    """Hermes's own pool has 10 threads, and a turn that asks keeps its thread."""
    shared = {"MOLECULE_HERMES_ISOLATION": "shared"}
    environ = environment(tmp_path, MOLECULE_HERMES_PEER_TOKENS=TOKENS, **shared)
    victim = tmp_path / "victim"
    async with (
        up(environ) as stack,
        peer(stack.url, token=MALLORY) as mallory,
        peer(stack.url, token=BOB) as bob,
        asyncio.timeout(120),
    ):
        asked = await asyncio.gather(
            *(ask(mallory, f"demo:run rm -rf {victim}", f"c{i}") for i in range(12))
        )
        assert [turn.states[-1] for turn in asked] == ["INPUT_REQUIRED"] * 12
        assert (await ask(bob, "demo:say mine")).text == "mine"
