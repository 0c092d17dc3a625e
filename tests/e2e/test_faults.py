"""Hermes or the bridge is killed or stopped while turns are in every stage."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from a2a.client import A2AClientError, Client
from a2a.types import (
    GetTaskRequest,
    ListTasksRequest,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
)
from a2a.utils.errors import UnsupportedOperationError

from molecule_hermes.client.connection import message
from molecule_hermes.hermes.demo_model import demo_model
from molecule_hermes.hermes.model_choice import demo_choice
from tests.support.peers import Turn, ask, peer, reply_text, send, state
from tests.support.stack import Stack, environment, processes, up
from tests.support.waiting import until

ENDED = {"COMPLETED", "FAILED", "CANCELED", "REJECTED"}
WORDS = " ".join(f"word{i}" for i in range(300))
SLEEP = f"{700 + os.getpid() % 1000}.75"
"""Seconds that mark the tool's process."""
SECRET = "a-shared-secret-of-the-tests"


class Model:
    """The demo model, which remembers what it was asked."""

    def __init__(self, url: str, heard: list[str]) -> None:
        self.url = url
        self._heard = heard

    @property
    def asked(self) -> list[str]:
        """The last line of each message, without Hermes's own requests for titles."""
        return [text.splitlines()[-1] for text in self._heard if not text.startswith("User: ")]


@pytest.fixture
async def model() -> AsyncIterator[Model]:
    heard: list[str] = []
    async with demo_model(on_message=heard.append) as url:
        yield Model(url, heard)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "stack"


@pytest.fixture
def environ(folder: Path, model: Model) -> dict[str, str]:
    made = environment(
        folder,
        MOLECULE_HERMES_CHECKPOINT="0.1",
        MOLECULE_HERMES_DRAIN_TIMEOUT="3",
        MOLECULE_HERMES_MAX_RESTARTS="1",
        # For another bridge beside it.
        MOLECULE_A2A_PLATFORM_SHARED_SECRET=SECRET,
        MOLECULE_A2A_PLATFORM_CALLBACKS="127.0.0.1",
    )
    (folder / "hermes").mkdir()
    config = json.dumps({"model": demo_choice(model.url).block})
    (folder / "hermes" / "config.yaml").write_text(config)
    return made


@dataclass(eq=False)
class Watched:
    """A turn, as its sender and one more subscriber see it."""

    request: SendMessageRequest
    turn: Turn = field(default_factory=Turn)
    beside: Turn = field(default_factory=Turn)

    @property
    def context(self) -> str:
        return self.request.message.context_id

    @property
    def told(self) -> str:
        """The end that both were told, as far as they were told one."""
        ends = {s for seen in (self.turn, self.beside) for s in seen.states if s in ENDED}
        assert len(ends) <= 1
        return next(iter(ends), "")


class Scene:
    """A turn in every stage, and one that is over."""

    def __init__(self, client: Client, group: asyncio.TaskGroup) -> None:
        self.client = client
        self._group = group
        self.turns: dict[str, Watched] = {}
        self.stored = ""
        """What of the streamed text was on disk before the fault."""

    @property
    def followed(self) -> list[Watched]:
        """The turns with open streams: those of a task that asks have ended with the question."""
        return [watched for stage, watched in self.turns.items() if stage != "asking"]

    async def set(self, folder: Path) -> None:
        done = await self.begin("done", "demo:say mark-done")
        working = await self.begin("working", f"demo:run sleep {SLEEP}")
        streaming = await self.begin("streaming", "demo:slow=0.1\ndemo:words=300")
        queued = await self.begin("queued", "demo:say mark-queued", "streaming")
        (folder / "victim").mkdir()
        asking = await self.begin("asking", f"demo:run rm -rf {folder / 'victim'}")
        await until(lambda: asking.turn.states[-1] == "INPUT_REQUIRED", 30)
        # A stream ends with the question; one that begins after it goes on to the task's end.
        self._watch(asking)
        await until(lambda: done.told, 30)
        await until(lambda: any("tool" in data for data in working.turn.data), 30)
        await until(lambda: processes(SLEEP))
        await until(lambda: [d.get("waiting") for d in queued.turn.data] == [True])
        # Only this one passes by itself: the tool is over, and the answer is being written.
        ending = await self.begin("ending", "demo:slow=0.1\ndemo:run echo mark-ending")
        await until(lambda: ending.turn.text.startswith("The"), 30)
        self.stored = stored_text(folder, streaming.turn.task_id)
        assert self.stored

    async def begin(self, stage: str, text: str, context: str = "") -> Watched:
        watched = self.turns[stage] = Watched(message(text, context or stage))
        self._read(self.client.send_message(watched.request), watched.turn)
        await until(lambda: watched.turn.events)
        self._watch(watched)
        return watched

    def _watch(self, watched: Watched) -> None:
        request = SubscribeToTaskRequest(id=watched.turn.task_id)
        self._read(self.client.subscribe(request), watched.beside)

    def _read(self, events: AsyncIterator[StreamResponse], turn: Turn) -> None:
        self._group.create_task(_read(events, turn))


async def _read(events: AsyncIterator[StreamResponse], turn: Turn) -> None:
    # The connection breaks with the bridge; and who subscribes at the end is told so.
    with contextlib.suppress(A2AClientError, UnsupportedOperationError):
        async for event in events:
            copy = StreamResponse()
            copy.CopyFrom(event)
            turn.add(copy)


def stored_text(folder: Path, task_id: str) -> str:
    with contextlib.closing(sqlite3.connect(folder / "tasks.db")) as reader:
        (data,) = reader.execute("SELECT task FROM tasks WHERE id = ?", (task_id,)).fetchone()
    return reply_text(Task.FromString(data))


@asynccontextmanager
async def every_stage(stack: Stack, folder: Path) -> AsyncGenerator[Scene, None]:
    """On exit every stream and every subscription has ended, in time."""
    async with asyncio.timeout(90), peer(stack.url) as client, asyncio.TaskGroup() as group:
        scene = Scene(client, group)
        await scene.set(folder)
        yield scene


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    left = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                left.append(process)
    return left


def failure(task: Task) -> dict[str, Any]:
    turn = Turn()
    turn.add(StreamResponse(task=task))
    return turn.failure


async def settled(client: Client, scene: Scene) -> dict[str, str]:
    """How each task ended: as its peers were told, with its own answer and nobody left hanging."""
    ends = {}
    for stage, watched in scene.turns.items():
        task = await client.get_task(GetTaskRequest(id=watched.turn.task_id))
        assert state(task) in ENDED, stage
        assert watched.told in ("", state(task)), stage
        if state(task) == "COMPLETED":
            ends[stage] = "COMPLETED"
            assert f"mark-{stage}" in reply_text(task)
            assert reply_text(task).count("mark-") == 1
        else:
            ends[stage] = failure(task)["kind"]
            assert failure(task)["hint"], stage
        with pytest.raises(UnsupportedOperationError):
            await anext(client.subscribe(SubscribeToTaskRequest(id=task.id)))
        with pytest.raises(UnsupportedOperationError):
            await ask(client, "yes", task_id=task.id)
        if stage == "streaming":
            assert reply_text(task).startswith(scene.stored)
            assert WORDS.startswith(reply_text(task))
    listed = await client.list_tasks(ListTasksRequest(page_size=100))
    assert {task.id for task in listed.tasks} >= {w.turn.task_id for w in scene.turns.values()}
    assert {state(task) for task in listed.tasks} <= ENDED
    return ends


async def goes_on(client: Client, scene: Scene, model: Model, before: int, *also: str) -> None:
    """Every conversation's next turn gets its own answer; nothing else was run since `before`."""
    contexts = sorted({watched.context for watched in scene.turns.values()})
    says = [f"demo:say after-{context}" for context in contexts]
    turns = await asyncio.gather(*map(ask, [client] * len(says), says, contexts))
    assert [turn.text for turn in turns] == [f"after-{context}" for context in contexts]
    assert sorted(model.asked[before:]) == sorted([*says, *also])


async def sent_again(client: Client, scene: Scene) -> None:
    """Peers that lost the connection try again with the same message."""
    for stage, watched in scene.turns.items():
        again = await send(client, watched.request)
        assert again.task_id == watched.turn.task_id, stage
        assert again.states[-1] in ENDED


async def test_a_killed_bridge_leaves_no_task_without_an_end(
    environ: dict[str, str], folder: Path, model: Model
) -> None:
    async with up(environ) as stack, every_stage(stack, folder) as scene:
        hermes = psutil.Process(stack.hermes_pid())
        stack.process.kill()
        assert await stack.ended() == -signal.SIGKILL
        await until(lambda: not alive([hermes]))
    before = len(model.asked)
    async with up(environ) as stack, peer(stack.url) as client, asyncio.timeout(60):
        assert not processes(SLEEP)
        queued = GetTaskRequest(id=scene.turns["queued"].turn.task_id)

        async def queued_has_ended() -> bool:
            return state(await client.get_task(queued)) in ENDED

        await until(queued_has_ended, 30)
        ends = await settled(client, scene)
        assert ends.pop("done") == ends.pop("queued") == "COMPLETED"
        assert ends.pop("ending") in ("COMPLETED", "interrupted")
        assert ends == dict.fromkeys(("working", "streaming", "asking"), "interrupted")
        await sent_again(client, scene)
        await goes_on(client, scene, model, before, "demo:say mark-queued")
        assert await stack.stop() == 0
        assert "Traceback" not in stack.output
    assert (folder / "victim").exists()


async def test_a_killed_hermes_ends_its_turns_and_queued_turns_wait_for_the_next(
    environ: dict[str, str], folder: Path, model: Model
) -> None:
    async with up(environ) as stack:
        async with every_stage(stack, folder) as scene:
            family = psutil.Process(stack.process.pid).children(recursive=True)
            before = len(model.asked)
            os.kill(stack.hermes_pid(), signal.SIGKILL)
            cut = [watched for watched in scene.followed if watched is not scene.turns["queued"]]
            await until(lambda: all(watched.told for watched in cut), 5)
            asking = GetTaskRequest(id=scene.turns["asking"].turn.task_id)

            async def question_has_ended() -> bool:
                return state(await scene.client.get_task(asking)) in ENDED

            await until(question_has_ended, 5)
        assert not alive(family)
        await stack.until_ready()
        async with peer(stack.url) as client, asyncio.timeout(60):
            ends = await settled(client, scene)
            assert ends.pop("done") == ends.pop("queued") == "COMPLETED"
            assert ends.pop("ending") in ("COMPLETED", "interrupted")
            assert set(ends.values()) == {"interrupted"}
            await goes_on(client, scene, model, before, "demo:say mark-queued")
        await outlives_failed_starts(stack)


async def outlives_failed_starts(stack: Stack) -> None:
    """Hermes dies once more, and then before it is ready, more often than MAX_RESTARTS says."""
    async with peer(stack.url) as client, asyncio.timeout(120), asyncio.TaskGroup() as group:
        scene = Scene(client, group)
        running = await scene.begin("running", "demo:hang")
        waiting = await scene.begin("waiting", "demo:say at last", "running")
        await until(lambda: [d.get("waiting") for d in waiting.turn.data] == [True])
        killed: set[int] = set()

        def killed_three() -> bool:
            with contextlib.suppress(StopIteration, psutil.Error, ProcessLookupError):
                if (pid := stack.hermes_pid()) not in killed:
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
            return len(killed) == 3

        await until(killed_three, 60)
        await until(lambda: waiting.told, 90)
    assert running.turn.failure["kind"] == "interrupted"
    assert waiting.turn.text == "at last", waiting.turn.data
    assert "Traceback" not in stack.output


async def test_sigterm_lets_running_turns_end_and_reports_the_end_of_every_other(
    environ: dict[str, str], folder: Path
) -> None:
    async with up(environ) as stack:
        async with every_stage(stack, folder) as scene:
            family = psutil.Process(stack.process.pid).children(recursive=True)
            stack.process.send_signal(signal.SIGTERM)
            report = await stack.until_ready(False, 5)
            assert report["parts"]["bridge"]["reason"] == "shutting down"  # type: ignore[index]
            late = await ask(scene.client, "too late")
            assert (late.states[-1], late.failure["kind"]) == ("REJECTED", "draining")
        assert all(watched.told for watched in scene.followed)
        assert await stack.ended() == 0
        assert "Traceback" not in stack.output
        assert not alive(family)
    # Its peers read the same from the next bridge, even before there is a Hermes.
    options = ("--transport", "plugin")
    async with up(environ, *options, command="serve", ready=False) as stack:
        await stack.until_ready(False)
        async with peer(stack.url) as client, asyncio.timeout(60):
            ends = await settled(client, scene)
    assert ends.pop("done") == ends.pop("ending") == "COMPLETED"
    assert ends.pop("queued") == "draining"
    assert set(ends.values()) == {"interrupted"}
    assert (folder / "victim").exists()
