"""Several questions of one turn that are open at once, as a peer sees and answers them."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import httpx
from a2a.client import Client
from a2a.types import CancelTaskRequest, GetTaskRequest, SendMessageRequest
from google.protobuf import json_format

from molecule_hermes.client.connection import message
from molecule_hermes.turns.model import Completed, Notice, Question, TextDelta, ToolProgress
from molecule_hermes.turns.run import MAX_OPEN
from tests.conftest import StartBridge
from tests.support.fakes import Answered, ScriptedTransport
from tests.support.peers import ask, peer, reply_text, send, state
from tests.support.waiting import until

FIRST = Question("q1", "approval", "may I run rm -rf x?", ("once", "deny"), command="rm -rf x")
SECOND = Question("q2", "approval", "may I run rm -rf y?", ("once", "deny"), command="rm -rf y")
COLOUR = Question("q3", "clarify", "which colour?", ("Red", "Blue"))


async def shown_questions(client: Client, task_id: str, count: int) -> list[dict[str, Any]]:
    """Waits until that many questions are open; returns them."""

    async def shown() -> list[dict[str, Any]] | None:
        task = await client.get_task(GetTaskRequest(id=task_id))
        data = json_format.MessageToDict(task.status.message.metadata)
        questions: list[dict[str, Any]] = data.get("questions", [])
        return questions if len(questions) == count else None

    return list(await until(shown))


async def open_questions(client: Client, task_id: str, *ids: str) -> dict[str, Any]:
    """Waits until exactly these questions are open; returns the metadata of the status."""

    async def shown() -> dict[str, Any] | None:
        task = await client.get_task(GetTaskRequest(id=task_id))
        if state(task) != "INPUT_REQUIRED":
            return None
        data: dict[str, Any] = json_format.MessageToDict(task.status.message.metadata)
        names = [one["questionId"] for one in data.get("questions", [data["question"]])]
        return data if names == list(ids) else None

    return dict(await until(shown))


async def measured(url: str) -> float:
    """The number of open questions in the metrics."""
    async with httpx.AsyncClient() as http:
        lines = (await http.get(f"{url}/metrics")).text.splitlines()
    return float(
        next(x for x in lines if x.startswith("molecule_hermes_open_questions ")).split()[1]
    )


def answering(task_id: str, question_id: str, text: str) -> SendMessageRequest:
    request = message(text, task_id=task_id)
    request.message.metadata["questionId"] = question_id
    return request


async def test_all_open_questions_are_shown_and_each_is_answered_by_its_id(
    bridge: StartBridge,
) -> None:
    script = (FIRST, SECOND, COLOUR, Answered(), Answered(), Answered(), Completed("done"))
    transport = ScriptedTransport(*script)
    async with bridge(transport) as b, peer(b.url) as client:
        task_id = (await ask(client, "go")).task_id
        data = await open_questions(client, task_id, "q1", "q2", "q3")
        assert data["question"] == data["questions"][0]
        assert [one.get("command") for one in data["questions"]] == ["rm -rf x", "rm -rf y", None]
        assert all(datetime.fromisoformat(one["expiresAt"]) for one in data["questions"])
        assert await measured(b.url) == 3
        answered = await send(client, answering(task_id, "q2", "yes"))
        assert answered.states == ["INPUT_REQUIRED"]
        assert answered.data[-1]["answered"] == {"questionId": "q2", "answer": "once"}
        assert [one["questionId"] for one in answered.data[-1]["questions"]] == ["q1", "q3"]
        answered = await send(client, answering(task_id, "q3", "blue"))
        assert "questions" not in answered.data[-1]
        assert answered.question["questionId"] == "q1"
        done = await send(client, answering(task_id, "q1", "no"))
    assert done.states[-1] == "COMPLETED"
    assert done.states[0] == "WORKING"
    assert transport.answers == [("q2", "once"), ("q3", "Blue"), ("q1", "deny")]


async def test_a_message_without_an_id_answers_the_oldest_question(bridge: StartBridge) -> None:
    transport = ScriptedTransport(FIRST, SECOND, Answered(), Answered(), Completed("done"))
    async with bridge(transport) as b, peer(b.url) as client:
        task_id = (await ask(client, "go")).task_id
        await open_questions(client, task_id, "q1", "q2")
        assert (await ask(client, "no", task_id=task_id)).question["questionId"] == "q2"
        assert (await ask(client, "yes", task_id=task_id)).states[-1] == "COMPLETED"
    assert transport.answers == [("q1", "deny"), ("q2", "once")]


async def test_people_read_every_open_question(bridge: StartBridge) -> None:
    transport = ScriptedTransport(FIRST, COLOUR, Answered(), Answered(), Completed("done"))
    async with bridge(transport) as b, peer(b.url) as client:
        task_id = (await ask(client, "go")).task_id
        await open_questions(client, task_id, "q1", "q3")
        task = await client.get_task(GetTaskRequest(id=task_id))
    text = task.status.message.parts[0].text
    assert text.startswith("may I run rm -rf x?\n\n(once / deny)")
    assert "q3: which colour?\n\n(Red / Blue)" in text


async def test_an_answer_that_is_none_leaves_every_question_open(bridge: StartBridge) -> None:
    transport = ScriptedTransport(FIRST, SECOND, Answered(), Completed("done"))
    async with bridge(transport) as b, peer(b.url) as client:
        task_id = (await ask(client, "go")).task_id
        await open_questions(client, task_id, "q1", "q2")
        wrong = await send(client, answering(task_id, "q2", "perhaps"))
        first, second = wrong.data[-1]["questions"]
        assert "remark" not in first
        assert "'perhaps' is not one of the choices" in second["remark"]
        gone = await send(client, answering(task_id, "never", "yes"))
        first, second = gone.data[-1]["questions"]
        assert "no longer open" in first["remark"]
        assert "remark" not in second
    assert transport.answers == []


async def test_a_withdrawn_question_disappears_and_the_others_stay(bridge: StartBridge) -> None:
    go = asyncio.Event()
    transport = ScriptedTransport(
        FIRST, SECOND, go, Notice("gone", withdraws="q1"), Answered(), Completed("done")
    )
    async with bridge(transport) as b, peer(b.url) as client:
        task_id = (await ask(client, "go")).task_id
        await open_questions(client, task_id, "q1", "q2")
        go.set()
        await open_questions(client, task_id, "q2")
        late = await send(client, answering(task_id, "q1", "yes"))
        assert "no longer open" in late.question["remark"]
        done = await ask(client, "yes", task_id=task_id)
    assert done.states[-1] == "COMPLETED"
    assert "gone" in done.progress
    assert transport.answers == [("q2", "once")]


async def test_each_question_expires_by_itself(bridge: StartBridge) -> None:
    later = asyncio.Event()
    transport = ScriptedTransport(FIRST, later, SECOND, Answered(), Answered(), Completed("done"))
    async with bridge(transport, QUESTION_TIMEOUT=1.5) as b, peer(b.url) as client:
        task_id = (await ask(client, "go")).task_id
        await asyncio.sleep(0.5)  # so that the second question expires later
        later.set()
        both = await open_questions(client, task_id, "q1", "q2")
        ends = [datetime.fromisoformat(one["expiresAt"]) for one in both["questions"]]
        assert (ends[1] - ends[0]).total_seconds() >= 0.4
        left = await open_questions(client, task_id, "q2")
        assert left["refused"]["questionId"] == "q1"
        assert left["question"]["expiresAt"] == both["questions"][1]["expiresAt"]
        done = await ask(client, "yes", task_id=task_id)
    assert done.states[-1] == "COMPLETED"
    assert transport.answers == [("q1", "deny"), ("q2", "once")]


async def test_a_command_that_the_operator_denies_does_not_close_other_questions(
    bridge: StartBridge,
) -> None:
    transport = ScriptedTransport(COLOUR, FIRST, Answered(), Answered(), Completed("done"))
    async with bridge(transport, APPROVALS="deny") as b, peer(b.url) as client:
        task_id = (await ask(client, "go")).task_id
        await until(lambda: transport.answers)
        data = await open_questions(client, task_id, "q3")
        assert data["refused"]["questionId"] == "q1"
        assert (await ask(client, "Red", task_id=task_id)).states[-1] == "COMPLETED"
    assert transport.answers == [("q1", "deny"), ("q3", "Red")]


async def test_a_question_beyond_the_limit_of_a_turn_is_refused(bridge: StartBridge) -> None:
    questions = [Question(f"q{n}", "approval", "?", ("once", "deny")) for n in range(MAX_OPEN + 1)]
    transport = ScriptedTransport(*questions, Answered(), asyncio.Event())
    async with bridge(transport, DRAIN_TIMEOUT=0) as b, peer(b.url) as client:
        task_id = (await ask(client, "go")).task_id
        names = [question.question_id for question in questions]
        data = await open_questions(client, task_id, *names[:-1])
        await until(lambda: transport.answers)
        data = await open_questions(client, task_id, *names[:-1])
        assert data["refused"]["questionId"] == names[-1]
    assert transport.answers == [(names[-1], "deny")]


async def test_the_turns_time_goes_on_when_no_question_is_open(bridge: StartBridge) -> None:
    transport = ScriptedTransport(
        FIRST, SECOND, TextDelta("b"), Answered(), Answered(), 30.0, Completed("never")
    )
    async with bridge(transport, TURN_TIMEOUT=0.6) as b, peer(b.url) as client:
        task_id = (await ask(client, "go")).task_id
        await open_questions(client, task_id, "q1", "q2")
        await ask(client, "yes", task_id=task_id)
        await asyncio.sleep(0.8)  # longer than TURN_TIMEOUT
        done = await ask(client, "yes", task_id=task_id)
        task = await client.get_task(GetTaskRequest(id=task_id))
    assert done.failure["kind"] == "timeout"
    assert reply_text(task) == "b"


async def test_a_task_with_several_questions_can_be_canceled(bridge: StartBridge) -> None:
    transport = ScriptedTransport(FIRST, SECOND, Answered(), Completed("never"))
    async with bridge(transport) as b, peer(b.url) as client:
        task_id = (await ask(client, "go")).task_id
        await open_questions(client, task_id, "q1", "q2")
        task = await client.cancel_task(CancelTaskRequest(id=task_id))
        assert await measured(b.url) == 0
    assert state(task) == "CANCELED"
    assert transport.answers == []


async def test_the_end_of_the_turn_closes_every_question(bridge: StartBridge) -> None:
    go = asyncio.Event()
    tool = ToolProgress("web", "end", ok=True)
    transport = ScriptedTransport(FIRST, SECOND, tool, go, Completed("so I guessed"))
    async with bridge(transport) as b, peer(b.url) as client:
        task_id = (await ask(client, "go")).task_id
        await open_questions(client, task_id, "q1", "q2")
        go.set()

        async def ended() -> bool:
            return state(await client.get_task(GetTaskRequest(id=task_id))) == "COMPLETED"

        await until(ended)
        assert await measured(b.url) == 0
