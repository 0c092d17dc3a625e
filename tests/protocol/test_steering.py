"""Messages to a task that is working, as peers of the bridge see them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from a2a.client import Client
from a2a.helpers import new_data_part, new_raw_part
from a2a.server.agent_execution import RequestContext
from a2a.server.context import ServerCallContext
from a2a.types import CancelTaskRequest, GetTaskRequest, Role, Task, TaskState
from a2a.utils.errors import UnsupportedOperationError
from google.protobuf import json_format

from molecule_hermes.client.connection import message
from molecule_hermes.errors import Unreachable
from molecule_hermes.turns.features import features_of
from molecule_hermes.turns.model import Completed, Notice, Question, TextDelta
from molecule_hermes.wire import MAX_STEER, Steered
from tests.conftest import StartBridge
from tests.support.fakes import Answered, ScriptedTransport
from tests.support.peers import Turn, ask, peer, reply_text, send, state
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(60)

APPROVAL = Question("q1", "approval", "may I?", ("once", "deny"))


class Working(ScriptedTransport):
    """A turn that streams something and then works until `over` is set."""

    def __init__(self, *more: Any) -> None:
        self.over = asyncio.Event()
        super().__init__(TextDelta("so far"), *more, self.over, Completed("the end"))


async def begun(client: Client, text: str = "go", context_id: str = "ctx") -> Turn:
    """Sends a message and leaves it when its turn streams."""
    turn = Turn()
    async for event in client.send_message(message(text, context_id)):
        turn.add(event)
        if turn.text:
            break
    return turn


@asynccontextmanager
async def listening(client: Client, text: str, task_id: str) -> AsyncIterator[Turn]:
    """A message to a task, followed in the background to the end of the block and its stream."""
    turn = Turn()

    async def follow() -> None:
        async for event in client.send_message(message(text, task_id=task_id)):
            turn.add(event)

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(follow())
        yield turn


def verdicts(turn: Turn) -> list[dict[str, Any]]:
    return [data["steered"] for data in turn.data if "steered" in data]


def said(task: Task, role: Role) -> list[str]:
    return [m.parts[0].text for m in task.history if m.role == role]


async def test_a_message_reaches_the_running_turn_and_its_stream_shows_the_rest(
    bridge: StartBridge,
) -> None:
    transport = Working()
    async with bridge(transport) as b, peer(b.url) as client:
        turn = await begun(client)
        async with listening(client, "use blue", turn.task_id) as steering:
            await until(lambda: verdicts(steering))
            transport.over.set()
        task = await client.get_task(GetTaskRequest(id=turn.task_id))
    (verdict,) = verdicts(steering)
    assert verdict.pop("messageId")
    assert verdict == {"accepted": True}
    assert steering.states[0] == "WORKING"
    assert steering.states[-1] == state(task) == "COMPLETED"
    assert transport.steers == ["use blue"]
    assert len(transport.turns) == 1
    assert said(task, Role.ROLE_USER) == ["go", "use blue"]
    assert "reads the message" in " ".join(said(task, Role.ROLE_AGENT))
    assert reply_text(task) == "the end"


async def test_a_peer_without_streaming_gets_the_task_when_it_rests(bridge: StartBridge) -> None:
    transport = Working()
    async with (
        bridge(transport) as b,
        peer(b.url) as client,
        peer(b.url, streaming=False) as plain,
    ):
        turn = await begun(client)
        waiting = asyncio.create_task(ask(plain, "use blue", task_id=turn.task_id))
        await until(lambda: transport.steers)
        assert not waiting.done()
        transport.over.set()
        assert (await waiting).states == ["COMPLETED"]


async def test_a_peer_that_does_not_wait_gets_the_working_task(bridge: StartBridge) -> None:
    transport = Working()
    async with (
        bridge(transport) as b,
        peer(b.url) as client,
        peer(b.url, streaming=False) as plain,
    ):
        turn = await begun(client)
        request = message("use blue", task_id=turn.task_id)
        request.configuration.return_immediately = True
        assert (await send(plain, request)).states == ["WORKING"]
        await until(lambda: transport.steers)
        transport.over.set()


@pytest.mark.parametrize("retried", ["at once", "after the end"])
async def test_a_message_that_is_sent_again_steers_once(bridge: StartBridge, retried: str) -> None:
    transport = Working()
    async with bridge(transport) as b, peer(b.url) as client:
        turn = await begun(client)
        request = message("use blue", task_id=turn.task_id)
        first = asyncio.create_task(send(client, request))
        await until(lambda: transport.steers)
        if retried == "at once":
            again = asyncio.create_task(send(client, request))
            transport.over.set()
            assert (await again).states[-1] == "COMPLETED"
        else:
            transport.over.set()
            await first
            assert (await send(client, request)).states == ["COMPLETED"]
        assert (await first).states[-1] == "COMPLETED"
    assert transport.steers == ["use blue"]


async def test_a_message_to_a_queued_task_becomes_part_of_it(bridge: StartBridge) -> None:
    transport = Working()
    async with bridge(transport) as b, peer(b.url) as client, asyncio.timeout(20):
        await begun(client)
        queued = Turn()
        stream = client.send_message(message("second", "ctx"))
        while "waiting" not in str(queued.data):
            queued.add(await anext(stream))
        async with listening(client, "and third", queued.task_id) as steering:
            await until(lambda: verdicts(steering))
            transport.over.set()
        assert verdicts(steering)[0]["accepted"] is True
        assert "has not begun" in " ".join(steering.progress)
    assert transport.turns[1].text == "second\n\nand third"
    assert not transport.steers


async def test_over_chat_completions_the_message_is_refused_by_name(bridge: StartBridge) -> None:
    transport = Working()
    transport.features = features_of("chat")
    async with bridge(transport) as b, peer(b.url) as client:
        turn = await begun(client)
        with pytest.raises(UnsupportedOperationError, match=r"API cannot steer.*without taskId"):
            await ask(client, "use blue", task_id=turn.task_id)
        task = await client.get_task(GetTaskRequest(id=turn.task_id))
        transport.over.set()
    assert state(task) == "WORKING"
    assert said(task, Role.ROLE_USER) == ["go"]


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (Steered(False, "the agent is busy with itself"), "the agent is busy with itself"),
        (Unreachable("Hermes is away"), "may not have reached Hermes: Hermes is away"),
        (RuntimeError("password=hunter2"), ""),
    ],
)
async def test_a_message_that_hermes_does_not_take_is_refused_and_the_turn_goes_on(
    bridge: StartBridge, outcome: Steered | Exception, reason: str
) -> None:
    transport = Working()
    transport.steered = outcome
    async with bridge(transport) as b, peer(b.url) as client:
        turn = await begun(client)
        async with listening(client, "use blue", turn.task_id) as steering:
            await until(lambda: verdicts(steering))
            transport.over.set()
    (verdict,) = verdicts(steering)
    assert verdict["accepted"] is False
    assert reason in verdict["reason"]
    assert "hunter2" not in str(steering.events)
    assert any(line.startswith("not taken: ") for line in steering.progress)
    assert steering.states[-1] == "COMPLETED"


async def test_only_text_of_a_bounded_length_steers_a_turn(bridge: StartBridge) -> None:
    transport = Working()
    file = new_raw_part(b"x", media_type="text/plain", filename="notes.txt")
    async with (
        bridge(transport) as b,
        peer(b.url) as client,
        peer(b.url, streaming=False) as plain,
        asyncio.timeout(20),
    ):
        turn = await begun(client)
        for parts, reason in (
            ([file], "part 2 (notes.txt) is not text"),
            ([new_data_part({"a": 1})], "part 2 (data) is not text"),
            (None, f"longer than {MAX_STEER:,}"),
            ([], "no text"),
        ):
            text = "x" * (MAX_STEER + 1) if parts is None else "see" if parts else " "
            request = message(text, task_id=turn.task_id, files=parts or [])
            request.configuration.return_immediately = True
            await send(plain, request)
            task = Task()

            async def refused(why: str = reason, into: Task = task) -> bool:
                into.CopyFrom(await client.get_task(GetTaskRequest(id=turn.task_id)))
                return why in str(json_format.MessageToDict(into.status.message))

            await until(refused)
        transport.over.set()
    assert not transport.steers


async def test_a_message_during_a_question_is_its_answer(bridge: StartBridge) -> None:
    transport = ScriptedTransport(TextDelta("x"), APPROVAL, Answered(), Completed("xy"))
    async with bridge(transport) as b, peer(b.url) as client:
        asked = await ask(client, "go")
        answered = await ask(client, "yes", task_id=asked.task_id)
    assert answered.states[-1] == "COMPLETED"
    assert transport.answers == [("q1", "once")]
    assert not transport.steers


async def test_a_message_from_before_the_question_leaves_the_question_open(
    bridge: StartBridge,
) -> None:
    transport = ScriptedTransport(TextDelta("x"), APPROVAL, Answered(), Completed("xy"))
    async with bridge(transport) as b, peer(b.url) as client:
        asked = await ask(client, "go")
        task = await client.get_task(GetTaskRequest(id=asked.task_id))
        # As it was when the peer wrote.
        task.status.state = TaskState.TASK_STATE_WORKING
        request = message("yes", task_id=asked.task_id)
        call = RequestContext(ServerCallContext(), request, task.id, task.context_id, task)
        (active,) = b.roster["main"].executor._runs.values()
        await b.roster["main"].executor.execute(call, active.queue.inner)
        assert transport.steers == ["yes"]
        assert not transport.answers
        task = await client.get_task(GetTaskRequest(id=asked.task_id))
        assert state(task) == "INPUT_REQUIRED"
        assert "question" in task.status.message.metadata
        assert "steered" in task.history[-1].metadata
        answered = await ask(client, "deny", task_id=asked.task_id)
    assert transport.answers == [("q1", "deny")]
    assert answered.states[-1] == "COMPLETED"


async def test_a_message_that_arrives_after_the_end_is_refused_as_one_to_an_ended_task(
    bridge: StartBridge,
) -> None:
    transport = Working()
    async with bridge(transport) as b, peer(b.url) as client:
        turn = await begun(client)
        take = b.roster["main"].executor._steering.take

        async def late(active: Any, given: Any) -> None:
            transport.over.set()
            await active.ended.wait()
            await take(active, given)

        b.roster["main"].executor._steering.take = late  # type: ignore[method-assign]
        with pytest.raises(UnsupportedOperationError, match="ended before the message reached it"):
            await ask(client, "use blue", task_id=turn.task_id)
    assert not transport.steers


async def test_a_peer_that_gets_messages_gets_the_answer_of_the_steered_turn(
    bridge: StartBridge,
) -> None:
    transport = Working()
    async with bridge(transport, REPLY="message") as b, peer(b.url) as client, asyncio.timeout(20):
        first = asyncio.create_task(ask(client, "go"))
        await until(lambda: transport.turns)
        steering = asyncio.create_task(ask(client, "blue", task_id=transport.turns[0].task_id))
        await until(lambda: transport.steers)
        transport.over.set()
        replies = [(await each).events[-1].message.parts[0].text for each in (first, steering)]
    assert replies == ["the end", "the end"]


async def test_a_canceled_task_takes_no_message(bridge: StartBridge) -> None:
    transport = Working()
    transport.deaf = True
    async with bridge(transport) as b, peer(b.url) as client:
        turn = await begun(client)
        canceling = asyncio.create_task(client.cancel_task(CancelTaskRequest(id=turn.task_id)))
        await until(lambda: _stopping(b))
        with pytest.raises(UnsupportedOperationError, match="is being canceled"):
            await ask(client, "use blue", task_id=turn.task_id)
        transport.over.set()
        await canceling
    assert not transport.steers


def _stopping(b: Any) -> bool:
    return any(active.run.stop for active in b.roster["main"].executor._runs.values())


async def test_an_interim_answer_stays_in_the_history(bridge: StartBridge) -> None:
    transport = ScriptedTransport(
        TextDelta("first"),
        Notice("first answer", kind="interim"),
        TextDelta("second", replace=True),
        Notice("came too late", kind="unheard"),
        Completed("second answer"),
    )
    async with bridge(transport) as b, peer(b.url) as client:
        turn = await ask(client, "go")
        task = await client.get_task(GetTaskRequest(id=turn.task_id))
    assert {"interim": True} in turn.data
    assert "first answer" in said(task, Role.ROLE_AGENT)
    assert reply_text(task) == turn.text == "second answer"
    assert verdicts(turn) == [{"accepted": False, "reason": "came too late"}]


class EndsWhenSteered(Working):
    """The turn completes before the text is passed on."""

    async def steer(self, turn: Any, text: str) -> Steered:
        self.over.set()
        return Steered(False, "the turn has just ended")


async def test_a_message_that_meets_the_end_is_told_so(bridge: StartBridge) -> None:
    transport = EndsWhenSteered()
    async with bridge(transport) as b, peer(b.url) as client:
        turn = await begun(client)
        steering = await ask(client, "use blue", task_id=turn.task_id)
    assert [verdict["accepted"] for verdict in verdicts(steering)] == [False]
    assert steering.states[-1] == "COMPLETED"
