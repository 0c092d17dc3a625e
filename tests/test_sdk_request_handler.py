"""The executor under the SDK's own request handler and stores, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from a2a.server.tasks import DatabaseTaskStore, InMemoryTaskStore, TaskStore
from a2a.types import CancelTaskRequest, GetTaskRequest
from sqlalchemy.ext.asyncio import create_async_engine

from molecule_hermes.client.connection import message
from molecule_hermes.errors import Unreachable
from molecule_hermes.executor import HermesAgentProxyExecutor
from molecule_hermes.turns.model import Completed, Failed, Question, TextDelta, Usage
from tests.support.fakes import Answered, ScriptedTransport
from tests.support.peers import Turn, ask, peer, send, state
from tests.support.workspace_platform import served

pytestmark = pytest.mark.timeout(60)

APPROVAL = Question("q1", "approval", "may I?", ("once", "deny"))


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TaskStore]:
    if request.param == "memory":
        yield InMemoryTaskStore()
        return
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'tasks.db'}")
    database = DatabaseTaskStore(engine)
    await database.initialize()
    yield database
    await engine.dispose()


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_turn_is_answered_and_stored(store: TaskStore, streaming: bool) -> None:
    usage = Usage(1, 2, 3, "m")
    transport = ScriptedTransport(TextDelta("a"), 0.1, TextDelta("b"), 0.1, Completed("ab", usage))
    async with (
        served(HermesAgentProxyExecutor(transport), store) as url,
        peer(url, streaming=streaming) as client,
    ):
        turn = await ask(client, "go", "ctx")
        task = await client.get_task(GetTaskRequest(id=turn.task_id))
    assert turn.states[-1] == state(task) == "COMPLETED"
    assert turn.states[0] == ("SUBMITTED" if streaming else "COMPLETED")
    assert [part.text for part in task.artifacts[0].parts] == ["ab"]
    assert task.metadata["usage"]["totalTokens"] == 3


async def test_a_question_is_answered_and_the_same_turn_goes_on(store: TaskStore) -> None:
    transport = ScriptedTransport(TextDelta("x"), APPROVAL, Answered(), Completed("xy"))
    async with served(HermesAgentProxyExecutor(transport), store) as url, peer(url) as client:
        asked = await ask(client, "go", "ctx")
        assert asked.question["questionId"] == "q1"
        not_an_answer = await ask(client, "perhaps", "ctx", asked.task_id)
        assert "perhaps" in not_an_answer.question["remark"]
        answered = await ask(client, "yes", "ctx", asked.task_id)
    assert answered.states[-1] == "COMPLETED"
    assert transport.answers == [("q1", "once")]
    assert len(transport.turns) == 1


@pytest.mark.parametrize("asks", [True, False], ids=["asking", "working"])
async def test_a_turn_is_canceled(store: TaskStore, asks: bool) -> None:
    script = [TextDelta("so far"), APPROVAL if asks else asyncio.Event(), Answered()]
    transport = ScriptedTransport(*script)
    async with served(HermesAgentProxyExecutor(transport), store) as url, peer(url) as client:
        turn = Turn()
        async for event in client.send_message(message("go", "ctx")):
            turn.add(event)
            if turn.text:
                break
        task = await client.cancel_task(CancelTaskRequest(id=turn.task_id))
        kept = await client.get_task(GetTaskRequest(id=turn.task_id))
    assert state(task) == state(kept) == "CANCELED"
    assert kept.artifacts[0].parts[0].text == "so far"
    assert transport.turns
    assert transport.all_canceled()


async def test_a_failure_says_why_and_leaks_nothing(store: TaskStore) -> None:
    transport = ScriptedTransport(TextDelta("half"), Failed(Unreachable("Hermes is away")))
    broken = ScriptedTransport(RuntimeError("password=hunter2"))
    for each, kind in ((transport, "unreachable"), (broken, "internal")):
        async with served(HermesAgentProxyExecutor(each), store) as url, peer(url) as client:
            turn = await send(client, message("go"))
        assert turn.states[-1] == "FAILED"
        assert turn.failure["kind"] == kind
        assert "hunter2" not in str(turn.events)
