"""The exchange with the peer, where events, answers and the end of a turn cross."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import TaskState

from molecule_hermes.protocol.active_turn import ActiveTurn
from molecule_hermes.protocol.dialogue import Dialogue
from molecule_hermes.protocol.reply import REASONING, ReplyArtifact
from molecule_hermes.protocol.turn_queue import TurnQueue
from molecule_hermes.turns.model import Completed, Notice, Question, TextDelta, Turn
from molecule_hermes.turns.run import State
from tests.support.fakes import ScriptedTransport
from tests.support.waiting import until

ASKED = Question("q", "clarify", "which colour?")


class _Updater:
    """Records the states that the peer would see."""

    def __init__(self) -> None:
        self.states: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.add_artifact = AsyncMock(side_effect=self._pass)
        self.new_agent_message = Mock()

    async def update_status(self, state: TaskState, *args: Any, **more: Any) -> None:
        self.states.append(TaskState.Name(state).removeprefix("TASK_STATE_"))
        await self.gate.wait()

    async def _pass(self, *args: Any, **more: Any) -> None:
        await self.gate.wait()


@pytest.fixture
async def active() -> AsyncIterator[ActiveTurn]:
    updater = cast(TaskUpdater, _Updater())
    queue = TurnQueue(cast(EventQueue, None))
    async with asyncio.timeout(10) as deadline, ReplyArtifact(updater, interval=60) as reply:
        turn = Turn("m", "peer", "ctx", "task", "hi")
        reasoning = ReplyArtifact(updater, REASONING)
        active = ActiveTurn(turn, queue, updater, reply, reasoning, deadline)
        active.run.send()
        yield active
    await active.forget_questions()


def updater(active: ActiveTurn) -> _Updater:
    return cast(_Updater, active.updater)


def dialogue() -> Dialogue:
    return Dialogue(ScriptedTransport(), question_timeout=60)


async def test_a_question_that_the_end_overtakes_is_not_asked(active: ActiveTurn) -> None:
    talk = dialogue()
    await talk.show(active, TextDelta("a"))
    await until(lambda: updater(active).add_artifact.call_count == 1)
    await talk.show(active, TextDelta("b"))
    updater(active).gate.clear()
    asking = asyncio.create_task(talk.show(active, ASKED))
    await until(lambda: updater(active).add_artifact.call_count == 2)
    ending = asyncio.create_task(talk.show(active, Completed("ab")))
    await until(lambda: active.run.asks_no_more)
    updater(active).gate.set()
    await asyncio.gather(asking, ending)
    assert updater(active).states == []
    assert active.run.state is State.RUNNING
    assert not active.resting.is_set()


async def test_the_end_settles_a_question_that_is_just_being_asked(active: ActiveTurn) -> None:
    """`execute` must not return for a question that no longer waits."""
    talk = dialogue()
    updater(active).gate.clear()
    asking = asyncio.create_task(talk.show(active, ASKED))
    await until(lambda: active.run.state is State.ASKING)
    ending = asyncio.create_task(talk.show(active, Completed("done")))
    await until(lambda: active.run.asks_no_more)
    updater(active).gate.set()
    await asyncio.gather(asking, ending)
    assert updater(active).states == ["INPUT_REQUIRED"]
    assert active.run.state is State.RUNNING
    assert not active.resting.is_set()


async def test_events_after_a_withdrawn_question_are_shown_at_once(active: ActiveTurn) -> None:
    talk = dialogue()
    await talk.show(active, ASKED)
    assert active.resting.is_set()
    await talk.show(active, Notice("something else"))
    assert updater(active).states == ["INPUT_REQUIRED"]
    await talk.show(active, Notice("no longer needed", withdraws="q"))
    assert updater(active).states == ["INPUT_REQUIRED", "WORKING", "WORKING"]
    assert not active.resting.is_set()
