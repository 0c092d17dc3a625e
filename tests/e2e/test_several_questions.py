"""Several questions open at once on the real Hermes, over each transport that can ask.

Hermes 0.19.0 asks one question after the other for its own tools: terminal and clarify never run
in parallel, and a subagent's dangerous command is not asked about. It has several questions open
when tools of different MCP servers run in parallel and ask for consent (elicitation).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from a2a.client import Client
from a2a.helpers import new_data_part
from a2a.types import CancelTaskRequest, GetTaskRequest, SendMessageRequest

from molecule_hermes.client.connection import message
from molecule_hermes.protocol.extensions import QUESTIONS
from molecule_hermes.turns.features import Feature, TransportName, why_not
from tests.protocol.test_several_questions import open_questions, shown_questions
from tests.support.peers import ask, card_of, peer, reply_text, send, state
from tests.support.question_schema import check_answer, check_question
from tests.support.stack import Stack, environment, up

pytestmark = pytest.mark.asyncio(loop_scope="module")

PUBLISHER = Path(__file__).parents[1] / "support" / "mcp_publisher.py"


@pytest.fixture(scope="module", params=["plugin", "chat"])
def way(request: pytest.FixtureRequest) -> TransportName:
    found: TransportName = request.param
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(
    tmp_path_factory: pytest.TempPathFactory, way: TransportName
) -> AsyncIterator[Stack]:
    folder = tmp_path_factory.mktemp("stack")
    on = "false" if way == "chat" else "true"
    servers_code = {"MOLECULE_HERMES_READABLE": str(PUBLISHER)}
    environ = environment(folder, MOLECULE_A2A_PLATFORM_ENABLED=on, **servers_code)
    home = folder / "hermes"
    home.mkdir()
    servers = {name: _server(name) for name in ("alpha", "beta")}
    (home / "config.yaml").write_text(json.dumps({"mcp_servers": servers}))
    async with up(environ) as running:
        yield running


def _server(name: str) -> dict[str, Any]:
    return {
        "command": sys.executable,
        "args": [str(PUBLISHER), name],
        "env": {"PATH": os.environ["PATH"]},
        "supports_parallel_tool_calls": True,
    }


@pytest_asyncio.fixture(loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[Client]:
    async with peer(stack.url) as client, asyncio.timeout(60):
        yield client


PUBLISH = (
    'demo:call=mcp__alpha__publish {"text": "apple"}\n'
    'demo:call=mcp__beta__publish {"text": "berry"}\n'
)


def answering(task_id: str, question_id: str, answer: str) -> SendMessageRequest:
    request = message("", task_id=task_id)
    del request.message.parts[:]
    data = {"questionId": question_id, "answer": answer}
    check_answer(data)
    request.message.parts.append(new_data_part(data))
    return request


async def both(client: Client) -> tuple[str, dict[str, str]]:
    """Has two questions asked; returns the task and the ids of the questions by their subject."""
    asked = await ask(client, PUBLISH)
    questions = await shown_questions(client, asked.task_id, 2)
    for question in questions:
        check_question(question)
        assert question["choices"] == ["once", "session", "deny"]
    ids = {question["command"]: question["questionId"] for question in questions}
    assert set(ids) == {"publish apple?", "publish berry?"}
    return asked.task_id, {name.split()[1].strip("?"): found for name, found in ids.items()}


@pytest.mark.parametrize(("yes", "no"), [("apple", "berry"), ("berry", "apple")])
async def test_each_of_several_questions_is_answered_by_its_id(
    client: Client, way: TransportName, yes: str, no: str
) -> None:
    if why := why_not(Feature.SEVERAL_QUESTIONS, way):
        pytest.skip(why)
    task_id, ids = await both(client)
    first = await send(client, answering(task_id, ids[yes], "once"))
    assert first.states[-1] == "INPUT_REQUIRED"
    assert first.data[-1]["answered"] == {"questionId": ids[yes], "answer": "once"}
    await open_questions(client, task_id, ids[no])
    done = await send(client, answering(task_id, ids[no], "deny"))
    assert done.states[-1] == "COMPLETED"
    task = await client.get_task(GetTaskRequest(id=task_id))
    assert f'"result": "{yes}: accept"' in reply_text(task)
    assert f'"result": "{no}: decline"' in reply_text(task)


async def test_answers_without_an_id_go_from_the_oldest_question_on(
    client: Client, way: TransportName
) -> None:
    if why := why_not(Feature.SEVERAL_QUESTIONS, way):
        pytest.skip(why)
    task_id, ids = await both(client)
    oldest = next(iter(ids))
    await ask(client, "no", task_id=task_id)
    done = await ask(client, "yes", task_id=task_id)
    assert done.states[-1] == "COMPLETED"
    assert f'"result": "{oldest}: decline"' in done.text
    assert done.text.count(': accept"') >= 1


async def test_a_task_with_several_questions_is_canceled_with_all_of_them(
    client: Client, way: TransportName
) -> None:
    if why := why_not(Feature.SEVERAL_QUESTIONS, way):
        pytest.skip(why)
    task_id, _ = await both(client)
    task = await client.cancel_task(CancelTaskRequest(id=task_id))
    assert state(task) == "CANCELED"


async def test_the_card_declares_the_questions_that_the_transport_can_ask(
    stack: Stack, way: TransportName
) -> None:
    card = await card_of(stack.url)
    declared = {extension.uri for extension in card.capabilities.extensions}
    assert (QUESTIONS in declared) is not bool(why_not(Feature.APPROVALS, way))


async def test_where_nobody_can_be_asked_consent_is_refused(
    client: Client, way: TransportName
) -> None:
    if not why_not(Feature.SEVERAL_QUESTIONS, way):
        pytest.skip("questions can be asked here")
    turn = await ask(client, PUBLISH)
    assert turn.states[-1] == "COMPLETED"
    assert "accept" not in turn.text
