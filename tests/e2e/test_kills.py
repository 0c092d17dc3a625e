"""A bridge that is killed in any stage of a turn, beside a Hermes that works on.

MOLECULE_TEST_KILLS is the number of rounds per stage, each with a kill at another moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest
import pytest_asyncio
from a2a.client import A2AClientError, Client
from a2a.types import (
    GetTaskRequest,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
)
from google.protobuf import json_format

from molecule_hermes.client.connection import message
from tests.support.gateway import SECRET, Hermes, running_hermes
from tests.support.peers import Turn, ask, peer, reply_text, send, state
from tests.support.stack import Stack, environment, up
from tests.support.waiting import until
from tests.support.wire_proxy import WireProxy, wire_proxy

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROUNDS = int(os.environ.get("MOLECULE_TEST_KILLS", "1"))
WORDS = " ".join(f"word{i}" for i in range(60))
SLOW = "demo:slow=0.03\ndemo:words=60"


@dataclass
class World:
    hermes: Hermes
    proxy: WireProxy
    environ: dict[str, str]
    heard: list[str] = field(default_factory=list)
    """What the model was asked."""

    def asked(self, mark: str) -> int:
        return sum(mark in text and not text.startswith("User: ") for text in self.heard)

    def lines(self, mark: str) -> int:
        """How often a tool has run."""
        file = self.hermes.work / mark
        return len(file.read_text().splitlines()) if file.exists() else 0

    def serve(self) -> contextlib.AbstractAsyncContextManager[Stack]:
        return up(self.environ, "--transport", "plugin", command="serve")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    home = tmp_path_factory.mktemp("hermes")
    heard: list[str] = []
    async with (
        running_hermes(home, on_message=heard.append) as hermes,
        wire_proxy(hermes.url("")) as proxy,
    ):
        environ = environment(
            tmp_path_factory.mktemp("bridge"),
            MOLECULE_A2A_PLATFORM_SHARED_SECRET=SECRET,
            MOLECULE_HERMES_CHECKPOINT="0.05",
        )
        environ["MOLECULE_A2A_PLATFORM_PORT"] = str(proxy.port)
        yield World(hermes, proxy, environ, heard)


class Sent:
    """A message whose sender follows it until the bridge is killed."""

    def __init__(self, client: Client, text: str, context: str = "") -> None:
        self.mark = f"mark-{uuid.uuid4().hex}"
        self.request: SendMessageRequest = message(f"{text}\n{self.mark}", context)
        self.before = Turn()
        self._following = asyncio.create_task(self._follow(client.send_message(self.request)))

    async def _follow(self, events: AsyncIterator[StreamResponse]) -> None:
        with contextlib.suppress(A2AClientError):
            async for event in events:
                copy = StreamResponse()
                copy.CopyFrom(event)
                self.before.add(copy)

    async def until(self, met: Callable[[], object]) -> None:
        await until(met, 30)

    async def cut_off(self) -> None:
        await asyncio.wait_for(self._following, 30)


async def kill(stack: Stack) -> None:
    stack.process.kill()
    await stack.ended()


async def ended(client: Client, sent: Sent) -> Task:
    """The task's end, as a subscriber that comes back sees it; it sees everything once."""
    task_id = (
        sent.before.task_id if sent.before.events else (await send(client, sent.request)).task_id
    )
    after = Turn()
    with contextlib.suppress(Exception):  # it has ended already
        async for event in client.subscribe(SubscribeToTaskRequest(id=task_id)):
            after.add(event)
    task = await client.get_task(GetTaskRequest(id=task_id))
    if after.events:
        assert after.text == reply_text(task)
    assert rising([*versions(sent.before), *versions(after)])
    again = await send(client, sent.request)
    assert again.task_id == task_id
    return task


def versions(turn: Turn) -> list[float]:
    found = []
    for event in turn.events:
        for name in ("task", "status_update", "artifact_update"):
            if event.HasField(name):
                found.append(getattr(event, name).metadata["version"])
    return found


def rising(numbers: list[float]) -> bool:
    return all(one < next_one for one, next_one in itertools.pairwise(numbers))


def told(task: Task) -> list[str]:
    """What programs read in the task's history: tools, questions, answers."""
    shown = [*task.history, task.status.message]
    found = [json_format.MessageToDict(message.metadata) for message in shown]
    return [
        f"{item['tool']['tool']} {item['tool']['phase']}" if "tool" in item else next(iter(item))
        for item in found
        if item
    ]


def completed(task: Task, text: str) -> None:
    assert state(task) == "COMPLETED", json_format.MessageToDict(task.status)
    assert reply_text(task) == text
    ids = [message.message_id for message in task.history]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("number", range(ROUNDS))
async def test_streaming_and_queued_behind_it(world: World, number: int) -> None:
    context = uuid.uuid4().hex
    async with world.serve() as stack, peer(stack.url) as client:
        first = Sent(client, SLOW, context)
        await first.until(lambda: first.before.text)
        queued = Sent(client, "demo:say it was queued", context)
        await queued.until(lambda: any(d.get("waiting") is True for d in queued.before.data))
        await asyncio.sleep(random.uniform(0, 1.5))
        await kill(stack)
        await first.cut_off()
        await queued.cut_off()
    async with world.serve() as stack, peer(stack.url) as client:
        completed(await ended(client, first), WORDS)
        completed(await ended(client, queued), "it was queued")
    assert (world.asked(first.mark), world.asked(queued.mark)) == (1, 1)


@pytest.mark.parametrize("arrives", [True, False])
@pytest.mark.parametrize("number", range(ROUNDS))
async def test_before_the_plugin_has_answered(world: World, number: int, arrives: bool) -> None:
    async with world.serve() as stack, peer(stack.url) as client:

        async def kill_now() -> None:
            await asyncio.sleep(random.uniform(0, 0.05))
            await kill(stack)
            if not arrives:
                raise asyncio.CancelledError

        setattr(world.proxy, "after_inbound" if arrives else "before_inbound", kill_now)
        sent = Sent(client, SLOW)
        await sent.cut_off()
    async with world.serve() as stack, peer(stack.url) as client:
        completed(await ended(client, sent), WORDS)
    assert world.asked(sent.mark) == 1


@pytest.mark.parametrize("number", range(ROUNDS))
async def test_while_a_tool_runs(world: World, number: int) -> None:
    async with world.serve() as stack, peer(stack.url) as client:
        name = uuid.uuid4().hex
        sent = Sent(client, f"demo:run sleep 1.5; echo done >> {name}; echo tool {name}")
        await sent.until(lambda: any("tool" in data for data in sent.before.data))
        await asyncio.sleep(random.uniform(0, 2.0))
        await kill(stack)
        await sent.cut_off()
    async with world.serve() as stack, peer(stack.url) as client:
        task = await ended(client, sent)
    assert state(task) == "COMPLETED"
    assert f"tool {name}" in reply_text(task)
    assert told(task) == ["terminal start", "terminal end"]
    assert (world.lines(name), world.asked(sent.mark)) == (1, 2)


@pytest.mark.parametrize("number", range(ROUNDS))
async def test_while_a_question_waits(world: World, number: int) -> None:
    name = uuid.uuid4().hex
    async with world.serve() as stack, peer(stack.url) as client:
        (world.hermes.work / f"{name}.d").mkdir()
        command = f"rm -rf {world.hermes.work}/{name}.d; echo done >> {name}"
        sent = Sent(client, f"demo:run {command}")
        await sent.until(lambda: "INPUT_REQUIRED" in sent.before.states)
        await asyncio.sleep(random.uniform(0, 0.3))
        await kill(stack)
        await sent.cut_off()
    async with world.serve() as stack, peer(stack.url) as client:
        task = await client.get_task(GetTaskRequest(id=sent.before.task_id))
        asked = json_format.MessageToDict(task.status.message.metadata)["question"]
        assert (state(task), asked) == ("INPUT_REQUIRED", sent.before.question)
        answered = await ask(client, "yes", task_id=task.id)
        assert answered.states[-1] == "COMPLETED"
        task = await ended(client, sent)
    assert told(task) == ["terminal start", "question", "answered", "terminal end"]
    assert (world.lines(name), world.asked(sent.mark)) == (1, 2)
    assert not (world.hermes.work / f"{name}.d").exists()


@pytest.mark.parametrize("number", range(ROUNDS))
async def test_while_an_answer_is_on_its_way(world: World, number: int) -> None:
    name = uuid.uuid4().hex
    async with world.serve() as stack, peer(stack.url) as client:
        (world.hermes.work / f"{name}.d").mkdir()
        sent = Sent(client, f"demo:run rm -rf {world.hermes.work}/{name}.d; echo done >> {name}")
        await sent.until(lambda: "INPUT_REQUIRED" in sent.before.states)
        answer = message("yes", task_id=sent.before.task_id)
        answering = asyncio.create_task(send(client, answer))
        await asyncio.sleep(random.uniform(0, 0.03))
        await kill(stack)
        with contextlib.suppress(A2AClientError):
            await answering
    async with world.serve() as stack, peer(stack.url) as client:
        assert (await send(client, answer)).states[-1] == "COMPLETED"
        task = await ended(client, sent)
    assert told(task) == ["terminal start", "question", "answered", "terminal end"]
    assert (world.lines(name), world.asked(sent.mark)) == (1, 2)


@pytest.mark.parametrize("moment", ["before_final", "after_final"])
@pytest.mark.parametrize("number", range(ROUNDS))
async def test_at_the_final(world: World, number: int, moment: str) -> None:
    async with world.serve() as stack, peer(stack.url) as client:

        async def kill_now() -> None:
            await asyncio.sleep(random.uniform(0, 0.002))
            await kill(stack)

        setattr(world.proxy, moment, kill_now)
        sent = Sent(client, "demo:slow=0.02\ndemo:words=60")
        await sent.cut_off()
    async with world.serve() as stack, peer(stack.url) as client:
        completed(await ended(client, sent), WORDS)
    assert world.asked(sent.mark) == 1
