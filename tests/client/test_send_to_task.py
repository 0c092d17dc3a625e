"""`molecule-hermes send --task`: a message to a task that is running."""

from __future__ import annotations

import asyncio

import pytest
from a2a.types import ListTasksRequest

from molecule_hermes.cli.main import main
from molecule_hermes.errors import StartError
from molecule_hermes.turns.features import features_of
from molecule_hermes.turns.model import Completed, Notice, TextDelta
from molecule_hermes.wire import Steered
from tests.client.test_interaction import Sent, Session
from tests.conftest import StartBridge
from tests.protocol.test_steering import Working
from tests.support.fakes import ScriptedTransport
from tests.support.peers import peer
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(60)


async def running_task(url: str) -> str:
    """The id of the only task, once it streams."""

    async def found() -> str:
        async with peer(url) as client:
            tasks = (await client.list_tasks(ListTasksRequest(include_artifacts=True))).tasks
        return next((task.id for task in tasks if task.artifacts), "")

    return str(await until(found))


async def test_the_running_task_takes_the_message_and_its_rest_is_shown(
    bridge: StartBridge,
) -> None:
    transport = Working()
    transport.script.insert(2, TextDelta(" and more"))
    async with bridge(transport) as b, asyncio.timeout(30):
        first = asyncio.create_task(Session().send(b.url))
        task = await running_task(b.url)
        steering = asyncio.create_task(Session().send(b.url, "use blue", "", task))
        await until(lambda: transport.steers)
        transport.over.set()
        sent, began = await steering, await first
    assert (sent.code, began.code) == (0, 0)
    assert transport.steers == ["use blue"]
    assert "· the agent reads the message while it works\n" in sent.err
    assert "the end" in sent.out
    assert "so far" not in sent.out


async def test_a_message_that_is_not_taken_shows_why_and_exits_with_1(bridge: StartBridge) -> None:
    transport = Working()
    transport.steered = Steered(False, "it is too late")
    async with bridge(transport) as b, asyncio.timeout(30):
        first = asyncio.create_task(Session().send(b.url))
        task = await running_task(b.url)
        steering = asyncio.create_task(Session().send(b.url, "use blue", "", task))
        await until(lambda: transport.steers)
        transport.over.set()
        sent, began = await steering, await first
    assert (sent.code, began.code) == (1, 0)
    assert "· not taken: it is too late\n" in sent.err
    assert "the end" in sent.out


async def test_a_message_that_the_agent_has_not_read_exits_with_1(bridge: StartBridge) -> None:
    transport = Working()
    transport.script.insert(-1, Notice("it came after the answer", kind="unheard"))
    async with bridge(transport) as b, asyncio.timeout(30):
        first = asyncio.create_task(Session().send(b.url))
        task = await running_task(b.url)
        steering = asyncio.create_task(Session().send(b.url, "use blue", "", task))
        await until(lambda: transport.steers)
        transport.over.set()
        sent, began = await steering, await first
    assert (sent.code, began.code) == (1, 0)
    assert "· not taken: it came after the answer\n" in sent.err


async def test_an_interim_answer_is_not_printed_twice(bridge: StartBridge) -> None:
    transport = ScriptedTransport(
        TextDelta("first answer"),
        Notice("first answer", kind="interim"),
        TextDelta("second", replace=True),
        Completed("second answer"),
    )
    async with bridge(transport) as b:
        sent = await Session().send(b.url)
    assert sent.out == "first answer\nsecond answer\n"
    assert "· the agent goes on after this answer\n" in sent.err
    assert "first answer" not in sent.err


async def refused(url: str, task: str) -> str:
    with pytest.raises(StartError) as raised:
        await Session().send(url, "use blue", "", task)
    return str(raised.value)


async def test_a_task_that_is_unknown_or_has_ended_or_cannot_be_steered_says_so(
    bridge: StartBridge,
) -> None:
    transport = Working()
    transport.features = features_of("chat")
    async with bridge(transport) as b, asyncio.timeout(30):
        assert "the agent has no task nowhere — check the id" in await refused(b.url, "nowhere")
        first: asyncio.Task[Sent] = asyncio.create_task(Session().send(b.url))
        task = await running_task(b.url)
        why = await refused(b.url, task)
        assert "Hermes's API cannot steer a running turn" in why
        assert "without --task" in why
        transport.over.set()
        await first
        assert "TASK_STATE_COMPLETED" in await refused(b.url, task)


def test_a_file_cannot_be_sent_to_a_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["send", "--task", "t", "--file", "x", "hi"]) == 2
    assert "a task takes only text" in capsys.readouterr().err
