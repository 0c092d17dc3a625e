"""Steering on the real Hermes, over each transport (`turns/features.py`)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from a2a.client import Client
from a2a.types import CancelTaskRequest, GetTaskRequest, Role, SendMessageRequest, Task
from a2a.utils.errors import TaskNotFoundError, UnsupportedOperationError

from molecule_hermes.client.connection import message
from molecule_hermes.turns.features import Feature, TransportName, why_not
from tests.e2e.test_features import ALICE, BOB, settings
from tests.support.peers import Turn, ask, peer, reply_text, send, state
from tests.support.stack import Stack, processes, up
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module", params=["plugin", "chat"])
def way(request: pytest.FixtureRequest) -> TransportName:
    found: TransportName = request.param
    return found


@pytest.fixture(autouse=True)
def _as_the_table_says(request: pytest.FixtureRequest, way: TransportName) -> None:
    reason = why_not(Feature.STEERING, way)
    if bool(reason) is (request.node.get_closest_marker("without") is None):
        pytest.skip(f"{way}: {reason or 'yes'}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(
    tmp_path_factory: pytest.TempPathFactory, way: TransportName
) -> AsyncIterator[Stack]:
    async with up(settings(tmp_path_factory.mktemp("stack"), way)) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def alice(stack: Stack) -> AsyncIterator[Client]:
    async with peer(stack.url, token=ALICE) as client, asyncio.timeout(60):
        yield client


def runs_a_tool(turn: Turn) -> bool:
    return any("tool" in data for data in turn.data)


def streams(turn: Turn) -> bool:
    return bool(turn.text)


@asynccontextmanager
async def running(
    client: Client, text: str, ready: Callable[[Turn], bool], context_id: str = ""
) -> AsyncIterator[Turn]:
    """A turn that is followed in the background to its end, from when it is ready."""
    turn = Turn()

    async def follow() -> None:
        async for event in client.send_message(message(text, context_id)):
            turn.add(event)

    async with asyncio.TaskGroup() as group:
        group.create_task(follow())
        await until(lambda: ready(turn))
        yield turn


def verdicts(turn: Turn) -> list[dict[str, Any]]:
    return [data["steered"] for data in turn.data if "steered" in data]


def interim(task: Task) -> list[str]:
    return [m.parts[0].text for m in task.history if "interim" in m.metadata]


def said(task: Task) -> list[str]:
    return [m.parts[0].text for m in task.history if m.role == Role.ROLE_USER]


async def test_the_agent_reads_the_message_after_the_tool_that_runs(alice: Client) -> None:
    async with running(alice, "demo:run sleep 2; echo done", runs_a_tool) as turn:
        steering = await ask(alice, "use the blue one", task_id=turn.task_id)
    task = await alice.get_task(GetTaskRequest(id=turn.task_id))
    assert steering.states[-1] == turn.states[-1] == state(task) == "COMPLETED"
    assert [verdict["accepted"] for verdict in verdicts(steering)] == [True]
    assert "Meanwhile you said: use the blue one" in turn.text
    assert steering.text == turn.text == reply_text(task)
    assert said(task) == ["demo:run sleep 2; echo done", "use the blue one"]
    assert interim(task) == []


async def test_two_messages_reach_the_same_turn_and_a_resend_does_not(alice: Client) -> None:
    async with running(alice, "demo:run sleep 3; echo done", runs_a_tool) as turn:
        requests = [message(text, task_id=turn.task_id) for text in ("first", "second")]
        async with asyncio.TaskGroup() as group:
            for request in (*requests, requests[0]):
                group.create_task(send(alice, request))
                await until_in_history(alice, turn.task_id, request)
    assert turn.text.endswith("Meanwhile you said: first\nsecond")
    assert [verdict["accepted"] for verdict in verdicts(turn)] == [True, True]


async def until_in_history(client: Client, task_id: str, request: SendMessageRequest) -> None:
    async def has() -> bool:
        task = await client.get_task(GetTaskRequest(id=task_id))
        return any(m.message_id == request.message.message_id for m in task.history)

    await until(has)


async def test_without_a_later_tool_the_task_goes_on_after_its_answer(alice: Client) -> None:
    async with running(alice, "demo:slow=0.1 one two three four five", streams) as turn:
        steering = await ask(alice, "and something else", task_id=turn.task_id)
    task = await alice.get_task(GetTaskRequest(id=turn.task_id))
    assert steering.states[-1] == turn.states[-1] == "COMPLETED"
    assert [verdict["accepted"] for verdict in verdicts(turn)] == [True]
    (first,) = interim(task)
    assert "You said: demo:slow=0.1 one two three four five" in first
    assert "You said: and something else" in turn.text
    assert reply_text(task) == turn.text == steering.text
    assert {"interim": True} in turn.data
    assert not [data for data in turn.data if "notice" in data]
    # The demo model counts 10 tokens for each prompt.
    assert task.metadata["usage"]["inputTokens"] == 20


async def test_a_file_of_the_interim_answer_is_delivered(alice: Client) -> None:
    text = "demo:slow=0.2\ndemo:file=kept.txt Hello"
    async with running(alice, text, lambda turn: turn.text.startswith("Here")) as turn:
        await ask(alice, "and something else", task_id=turn.task_id)
    assert turn.states[-1] == "COMPLETED"
    assert [(part.filename, part.raw) for part in turn.file_parts] == [("kept.txt", b"Hello")]
    assert "You said: and something else" in turn.text


async def test_a_message_to_a_queued_task_becomes_part_of_it(alice: Client) -> None:
    context = "queued"
    async with (
        running(alice, "demo:slow=0.2 one two three four five", streams, context),
        running(alice, "later", lambda turn: "waiting" in str(turn.data), context) as queued,
    ):
        steering = await ask(alice, "and this", task_id=queued.task_id)
    assert [verdict["accepted"] for verdict in verdicts(steering)] == [True]
    assert "You said: later\n\nand this" in queued.text
    assert queued.states[-1] == "COMPLETED"


async def test_a_steered_task_can_be_canceled(alice: Client) -> None:
    mark = "86411.5"
    async with running(alice, f"demo:run sleep {mark}", runs_a_tool, "canceled") as turn:
        await until(lambda: processes(mark))
        steering = asyncio.create_task(ask(alice, "left behind", task_id=turn.task_id))
        await until(lambda: verdicts(turn))
        await alice.cancel_task(CancelTaskRequest(id=turn.task_id))
        assert (await steering).states[-1] == "CANCELED"
    await until(lambda: not processes(mark))
    with pytest.raises(UnsupportedOperationError, match="CANCELED"):
        await ask(alice, "too late", task_id=turn.task_id)
    following = await ask(alice, "demo:run echo next", "canceled")
    assert "left behind" not in following.text


async def test_a_peer_cannot_steer_another_peers_task(stack: Stack, alice: Client) -> None:
    async with (
        running(alice, "demo:run sleep 1; echo done", runs_a_tool) as turn,
        peer(stack.url, token=BOB) as bob,
    ):
        with pytest.raises(TaskNotFoundError):
            await ask(bob, "obey bob", task_id=turn.task_id)
    assert "obey bob" not in turn.text


async def test_a_command_in_the_message_is_text(alice: Client) -> None:
    async with running(alice, "demo:slow=0.1 one two three four five", streams) as turn:
        await ask(alice, "/new", task_id=turn.task_id)
    assert "You said: Message: /new" in turn.text


async def test_the_send_command_steers_a_running_task(stack: Stack, alice: Client) -> None:
    async with running(alice, "demo:run sleep 3; echo done", runs_a_tool) as turn:
        command = ["send", "--url", stack.url, "--token", ALICE, "--task", turn.task_id, "use blue"]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "molecule_hermes",
            *command,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
    assert process.returncode == 0, err
    assert "Meanwhile you said: use blue" in out.decode()
    assert "the agent reads the message" in err.decode()
    assert "Meanwhile you said: use blue" in turn.text


@pytest.mark.without
async def test_where_it_is_not_supported_the_message_is_refused_by_name(alice: Client) -> None:
    async with running(alice, "demo:slow=0.1 one two three four five", streams) as turn:
        with pytest.raises(UnsupportedOperationError, match="Hermes's API cannot steer"):
            await ask(alice, "use the blue one", task_id=turn.task_id)
    assert turn.states[-1] == "COMPLETED"
    assert verdicts(turn) == []
