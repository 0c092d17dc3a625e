"""The executor under the SDK's own request handler and stores, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from a2a.client import Client
from a2a.server.agent_execution import RequestContext, SimpleRequestContextBuilder
from a2a.server.tasks import DatabaseTaskStore, InMemoryTaskStore, TaskStore
from a2a.types import CancelTaskRequest, GetTaskRequest
from a2a.utils.errors import UnsupportedOperationError
from sqlalchemy.ext.asyncio import create_async_engine

from molecule_hermes.client.connection import message
from molecule_hermes.errors import Unreachable
from molecule_hermes.executor import HermesAgentProxyExecutor
from molecule_hermes.turns.features import features_of
from molecule_hermes.turns.model import Completed, Failed, Question, TextDelta, Usage
from tests.support.fakes import Answered, ScriptedTransport
from tests.support.peers import Turn, ask, peer, send, state
from tests.support.waiting import until
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


class Working(ScriptedTransport):
    """A turn that works until `over` is set."""

    def __init__(self, *more: Question | Answered) -> None:
        self.over = asyncio.Event()
        super().__init__(TextDelta("so far"), self.over, *more, Completed("the end"))


async def begun(client: Client) -> Turn:
    turn = Turn()
    async for event in client.send_message(message("go", "ctx")):
        turn.add(event)
        if turn.text:
            break
    return turn


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_message_to_a_working_task_steers_it(store: TaskStore, streaming: bool) -> None:
    transport = Working()
    executor = HermesAgentProxyExecutor(transport)
    async with (
        served(executor, store, executor.request_context_builder) as url,
        peer(url) as client,
        peer(url, streaming=streaming) as other,
    ):
        turn = await begun(client)
        # Without a contextId, which the SDK would invent.
        steering = asyncio.create_task(ask(other, "use blue", task_id=turn.task_id))
        await until(lambda: transport.steers)
        transport.over.set()
        assert (await steering).states[-1] == "COMPLETED"
        task = await client.get_task(GetTaskRequest(id=turn.task_id))
    assert transport.steers == ["use blue"]
    assert len(transport.turns) == 1
    assert any("reads the message" in m.parts[0].text for m in task.history)
    assert task.artifacts[0].parts[0].text == "the end"


async def test_a_message_that_steered_a_task_does_not_answer_its_next_question(
    store: TaskStore,
) -> None:
    transport = Working(APPROVAL, Answered())
    executor = HermesAgentProxyExecutor(transport)
    async with (
        served(executor, store, executor.request_context_builder) as url,
        peer(url) as client,
    ):
        turn = await begun(client)
        steering = asyncio.create_task(ask(client, "yes", task_id=turn.task_id))
        await until(lambda: transport.steers)
        transport.over.set()
        await until(lambda: executor.questions)
        await steering
        assert not transport.answers
        answered = await ask(client, "deny", "ctx", turn.task_id)
        assert answered.states[-1] == "COMPLETED"
    assert transport.answers == [("q1", "deny")]


async def test_a_message_that_cannot_steer_is_refused_before_it_is_queued(
    store: TaskStore,
) -> None:
    transport = Working()
    transport.features = features_of("chat")
    executor = HermesAgentProxyExecutor(transport)
    async with (
        served(executor, store, executor.request_context_builder) as url,
        peer(url) as client,
    ):
        turn = await begun(client)
        with pytest.raises(UnsupportedOperationError, match="still working"):
            await ask(client, "use blue", "ctx", turn.task_id)
        transport.over.set()

        async def completed() -> bool:
            return state(await client.get_task(GetTaskRequest(id=turn.task_id))) == "COMPLETED"

        await until(completed)
    assert not transport.steers


class Noted(SimpleRequestContextBuilder):
    """The SDK's own builder, with the number of messages so far."""

    messages = 0

    async def build(self, *args: Any, **given: Any) -> RequestContext:
        self.messages += 1
        return await super().build(*args, **given)


async def test_without_the_context_builder_a_message_never_ends_the_running_turn(
    store: TaskStore,
) -> None:
    transport, noted = Working(), Noted()
    executor = HermesAgentProxyExecutor(transport)
    async with served(executor, store, noted) as url, peer(url) as client:
        turn = await begun(client)
        waiting = asyncio.create_task(ask(client, "use blue", "ctx", turn.task_id))
        await until(lambda: noted.messages == 2)
        transport.over.set()
        with contextlib.suppress(UnsupportedOperationError):  # the turn ended before
            assert (await waiting).states[-1] == "COMPLETED"
        task = await client.get_task(GetTaskRequest(id=turn.task_id))
    assert state(task) == "COMPLETED"
    assert len(transport.turns) == 1
