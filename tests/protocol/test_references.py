from __future__ import annotations

import pytest
from a2a.helpers import new_data_part
from a2a.server.context import ServerCallContext
from a2a.types import Artifact, GetTaskRequest, Message, Part, Task, TaskState, TaskStatus
from a2a.utils.errors import InvalidParamsError

from molecule_hermes.client.connection import message
from molecule_hermes.protocol.references import MAX_QUOTED, MAX_REFERENCES, quoted, referenced_tasks
from molecule_hermes.turns.model import Completed
from tests.conftest import StartBridge
from tests.support.fakes import ScriptedTransport
from tests.support.peers import ask, peer, send


def task(name: str, *parts: Part, state: TaskState = TaskState.TASK_STATE_COMPLETED) -> Task:
    artifacts = [Artifact(artifact_id="reply", parts=parts)] if parts else []
    artifacts.append(Artifact(artifact_id="f", parts=[Part(raw=b"x", filename="secret.bin")]))
    return Task(id=name, status=TaskStatus(state=state), artifacts=artifacts)


def test_each_answer_stands_under_its_task() -> None:
    text = quoted(
        [
            task("t1", Part(text="some ```code``` "), Part(text="here")),
            task("t2", new_data_part({"n": 3})),
            task("t3", state=TaskState.TASK_STATE_FAILED),
        ]
    )
    assert text == (
        "[Earlier result: task t1, completed]\n````\nsome ```code``` here\n````\n\n"
        '[Earlier result: task t2, completed]\n```\n{"n": 3}\n```\n\n'
        "[Earlier result: task t3, failed, without an answer]"
    )
    assert quoted([]) == ""


def test_long_answers_are_cut_and_say_so() -> None:
    text = quoted([task(f"t{i}", Part(text="x" * 100_000)) for i in range(MAX_REFERENCES)])
    assert len(text) < MAX_QUOTED + MAX_REFERENCES * 200
    assert f"task t3, completed, its first {MAX_QUOTED // MAX_REFERENCES:,} of 100,000" in text


async def test_too_many_or_unknown_tasks_are_refused() -> None:
    async def find(name: str, context: ServerCallContext) -> Task | None:
        return task(name) if name.startswith("t") else None

    context = ServerCallContext()
    names = [f"t{i % 3}" for i in range(100)]
    found = await referenced_tasks(Message(reference_task_ids=names), context, find)
    assert [each.id for each in found] == ["t0", "t1", "t2"]
    for bad in (["t1", "x"], [""], ["t\0"], ["t" * 1000], [f"t{i}" for i in range(17)]):
        with pytest.raises(InvalidParamsError):
            await referenced_tasks(Message(reference_task_ids=bad), context, find)


async def test_a_message_that_is_sent_again_gets_its_task_with_its_references(
    bridge: StartBridge,
) -> None:
    transport = ScriptedTransport(Completed("an answer"))
    async with bridge(transport) as b, peer(b.url) as client:
        first = await ask(client, "one")
        request = message("two", "ctx")
        request.message.reference_task_ids.append(first.task_id)
        second = await send(client, request)
        again = await send(client, request)
        kept = await client.get_task(GetTaskRequest(id=second.task_id))
    assert again.task_id == second.task_id
    assert list(kept.history[0].reference_task_ids) == [first.task_id]
    assert [turn.text.partition("\n")[0] for turn in transport.turns] == [
        "one",
        f"[Earlier result: task {first.task_id}, completed]",
    ]
