"""Turns whose answer is data, on a scripted transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import CancelTaskRequest, GetTaskRequest, SendMessageRequest, Task
from a2a.utils.errors import ContentTypeNotSupportedError
from google.protobuf import json_format

from molecule_hermes.client.connection import message
from molecule_hermes.errors import RateLimited
from molecule_hermes.executor import HermesAgentProxyExecutor
from molecule_hermes.protocol.extensions import STRUCTURED_OUTPUT
from molecule_hermes.turns.model import (
    Completed,
    Failed,
    Question,
    TextDelta,
    ToolProgress,
    Turn,
    TurnEvent,
    Usage,
)
from tests.conftest import StartBridge
from tests.support.fakes import Answered, ScriptedTransport
from tests.support.peers import ask, peer, reply_text, send, state
from tests.support.waiting import until
from tests.support.workspace_platform import served

SCHEMA = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
BAD, GOOD = Completed('{"n": "3"}', Usage(1, 2, 3)), Completed('{"n": 3}', Usage(10, 20, 30, "m"))
APPROVAL = Question("q1", "approval", "may I?", ("once", "deny"))


class Scripts(ScriptedTransport):
    """Runs a script of its own for each message."""

    def __init__(self, *scripts: list[Any]) -> None:
        super().__init__()
        self._scripts = list(scripts)

    def run(self, turn: Turn) -> AsyncGenerator[TurnEvent, None]:
        self.script = self._scripts.pop(0)
        return super().run(turn)


def wanting(schema: dict[str, Any] | None = SCHEMA) -> SendMessageRequest:
    request = message("how many?", "ctx")
    if schema is None:
        request.configuration.accepted_output_modes.append("application/json")
    else:
        request.message.metadata.update({STRUCTURED_OUTPUT: {"schema": schema}})
    return request


def data_of(task: Task) -> Any:
    (artifact,) = task.artifacts
    return json_format.MessageToDict(artifact.parts[0].data)


async def test_text_is_not_shown_while_data_is_expected(bridge: StartBridge) -> None:
    script = [TextDelta('{"n"'), 0.1, ToolProgress("terminal", "start"), TextDelta(": 3}"), GOOD]
    async with bridge(Scripts(script)) as b, peer(b.url) as client:
        turn = await send(client, wanting())
        task = await client.get_task(GetTaskRequest(id=turn.task_id))
    assert turn.states == ["SUBMITTED", "WORKING", "WORKING", "COMPLETED"]
    assert turn.updates == 1
    assert turn.text == reply_text(task) == ""
    assert data_of(task) == {"n": 3}
    assert "firstTextSeconds" not in task.metadata


async def test_an_answer_is_repaired_once_in_the_same_conversation(bridge: StartBridge) -> None:
    transport = Scripts([BAD], [GOOD])
    async with bridge(transport) as b, peer(b.url) as client:
        turn = await send(client, wanting())
        task = await client.get_task(GetTaskRequest(id=turn.task_id))
    first, second = transport.turns
    assert second.message_id == f"{first.message_id}-repair"
    assert second.conversation == first.conversation
    assert "$.n: '3' is not of type 'integer'" in second.text
    assert data_of(task) == {"n": 3}
    assert task.metadata["usage"]["totalTokens"] == 33


async def test_the_text_of_an_answer_that_stays_invalid_is_the_reply(bridge: StartBridge) -> None:
    transport = Scripts([BAD], [TextDelta("half"), Completed("no JSON, sorry")])
    async with bridge(transport) as b, peer(b.url) as client:
        turn = await send(client, wanting())
        task = await client.get_task(GetTaskRequest(id=turn.task_id))
    assert turn.failure["kind"] == "bad_request"
    assert "not JSON" in turn.failure["message"]
    assert turn.text == reply_text(task) == "no JSON, sorry"
    assert turn.reply_updates[-1].last_chunk


async def test_a_repair_that_fails_keeps_the_first_answer(bridge: StartBridge) -> None:
    async with bridge(Scripts([BAD], [Failed(RateLimited())])) as b, peer(b.url) as client:
        turn = await send(client, wanting())
    assert turn.failure["kind"] == "rate_limit"
    assert turn.text == '{"n": "3"}'


async def test_a_repair_can_ask_the_peer_and_be_canceled(bridge: StartBridge) -> None:
    transport = Scripts([BAD], [APPROVAL, Answered(), asyncio.Event()])
    async with bridge(transport) as b, peer(b.url) as client:
        asked = await send(client, wanting())
        assert asked.question["questionId"] == "q1"
        answering = asyncio.create_task(ask(client, "yes", "ctx", asked.task_id))
        await until(lambda: transport.answers)
        task = await client.cancel_task(CancelTaskRequest(id=asked.task_id))
        answered = await answering
    assert transport.answers == [("q1", "once")]
    assert state(task) == answered.states[-1] == "CANCELED"


async def test_a_question_before_the_repair_does_not_stop_it(bridge: StartBridge) -> None:
    transport = Scripts([APPROVAL, 0.2, BAD], [GOOD])
    async with bridge(transport) as b, peer(b.url) as client:
        asked = await send(client, wanting())

        async def completed() -> Task | None:
            task = await client.get_task(GetTaskRequest(id=asked.task_id))
            return task if state(task) == "COMPLETED" else None

        task = await until(completed)
    assert data_of(task) == {"n": 3}


async def test_any_json_will_do_without_a_schema(bridge: StartBridge) -> None:
    transport = Scripts([Completed("[1, 2.5, null]")])
    async with bridge(transport) as b, peer(b.url) as client:
        turn = await send(client, wanting(None))
        task = await client.get_task(GetTaskRequest(id=turn.task_id))
        neither = message("hello")
        neither.configuration.accepted_output_modes.append("image/png")
        with pytest.raises(ContentTypeNotSupportedError, match="application/json"):
            await send(client, neither)
    assert data_of(task) == [1, 2.5, None]
    assert transport.turns[0].response_format == {"type": "json_object"}


async def test_an_embedded_executor_refuses_a_bad_schema_itself() -> None:
    transport = Scripts([GOOD])
    executor = HermesAgentProxyExecutor(transport)
    async with served(executor, InMemoryTaskStore()) as url, peer(url) as client:
        refused = await send(client, wanting({"type": 3}))
        turn = await send(client, wanting())
        task = await client.get_task(GetTaskRequest(id=turn.task_id))
    assert refused.states[-1] == "REJECTED"
    assert "$.type" in refused.failure["message"]
    assert data_of(task) == {"n": 3}
