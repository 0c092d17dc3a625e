"""The workers of `up`: started when needed, stopped when idle, and apart also when they fail."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from a2a.client import A2AClientError, Client
from a2a.types import GetTaskRequest, Task
from a2a.utils.errors import InvalidParamsError

from molecule_hermes.client.connection import message
from molecule_hermes.hermes.credentials import SHARED_TOOLSETS
from tests.support.fleets import (
    deployment,
    model_at,
    reload,
    worker_pid,
    workers,
)
from tests.support.peers import Turn, ask, reply_text, state
from tests.support.recorded_model import RecordedModel, recorded_model
from tests.support.stack import Stack, up
from tests.support.waiting import until

_LONG = 90.0
_PEER = {"main": {"isolation": "peer"}}
_SLOW = "demo:slow=0.1\ndemo:words=60"
_ENDLESS = "demo:slow=0.1\ndemo:words=3000"
_WORDS = " ".join(f"word{i}" for i in range(60))


@pytest.fixture
async def model() -> AsyncIterator[RecordedModel]:
    async with recorded_model() as running:
        yield running


@asynccontextmanager
async def begun(client: Client, text: str = _SLOW) -> AsyncIterator[asyncio.Task[Turn]]:
    """A turn that has begun to write; the task ends with it."""
    turn, writes = Turn(), asyncio.Event()

    async def follow() -> Turn:
        async for event in client.send_message(message(text)):
            turn.add(event)
            if turn.text:
                writes.set()
        return turn

    following = asyncio.create_task(follow())
    try:
        async with asyncio.timeout(_LONG):
            await writes.wait()
        yield following
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def state_of(stack: Stack, name: str) -> str:
    return str((await workers(stack)).get(name, {}).get("state", "gone"))


async def until_state(stack: Stack, name: str, *states: str, timeout: float = _LONG) -> None:
    async def reached() -> bool:
        return await state_of(stack, name) in states

    await until(reached, timeout, every=0.1)


# Deaths.


@pytest.mark.parametrize("transport", ["plugin", "chat"])
async def test_a_worker_that_is_killed_takes_only_its_own_turns_with_it(
    tmp_path: Path, model: RecordedModel, transport: str
) -> None:
    plugin = "true" if transport == "plugin" else "false"
    made = deployment(tmp_path, "ann", "bob", MOLECULE_A2A_PLATFORM_ENABLED=plugin)
    made.environ |= model_at(model.url)
    made.write(_PEER)
    async with up(made.environ) as stack, AsyncExitStack() as clients:
        ann, bob = [await clients.enter_async_context(made.client(stack, n)) for n in made.tokens]
        await asyncio.gather(ask(ann, "hello"), ask(bob, "hello"))
        async with AsyncExitStack() as turns:
            others = [await turns.enter_async_context(begun(bob, _SLOW)) for _ in range(2)]
            doomed = [await turns.enter_async_context(begun(ann, _ENDLESS)) for _ in range(2)]
            before = await worker_pid(stack, "main@bob")
            os.kill(await worker_pid(stack, "main@ann"), signal.SIGKILL)
            for turn in await asyncio.gather(*doomed):
                assert turn.states[-1] == "FAILED"
                assert turn.failure["kind"] == "interrupted"
            for turn in await asyncio.gather(*others):
                assert (turn.states[-1], turn.text) == ("COMPLETED", _WORDS)
        assert await worker_pid(stack, "main@bob") == before
        async with asyncio.timeout(_LONG):
            assert (await ask(ann, "are you back?")).states[-1] == "COMPLETED"


# Idle stops.


async def test_an_idle_worker_is_stopped_and_starts_again_with_what_it_has_learnt(
    tmp_path: Path, model: RecordedModel
) -> None:
    made = deployment(tmp_path, "ann", "bob", MOLECULE_HERMES_WORKER_IDLE="1")
    made.environ |= model_at(model.url)
    made.write(_PEER)
    async with up(made.environ) as stack, made.client(stack, "ann") as ann:
        remember = {"action": "add", "target": "memory", "content": "likes ochre"}
        await ask(ann, f"demo:call=memory {json.dumps(remember)}", "first")
        pid = await worker_pid(stack, "main@ann")
        await until_state(stack, "main@ann", "stopped", "gone")
        assert not psutil.pid_exists(pid)
        await stack.until_ready()
        again = await ask(ann, "what did I say?", "first")
        assert "the agent is being started" in again.progress
        assert "ochre" in again.text
        new = await ask(ann, "hello", "second")
        assert new.states[-1] == "COMPLETED"
        # The last request may be for a title.
        asked = (r["messages"] for r in model.requests if r["messages"][-1]["content"] == "hello")
        assert any("likes ochre" in json.dumps(messages[0]) for messages in asked)


_BUSY = {
    "runs": 'demo:call=terminal {"command": "sleep 600", "background": true}',
    "plans": "demo:call=cronjob "
    '{"action": "create", "schedule": "every 2h", "prompt": "hello", "name": "later"}',
    "asks": "demo:ask=red|blue Which one?",
}
"""What keeps the worker of the peer with that name: a process, a cron job, an open question."""


async def test_a_worker_in_which_something_lives_is_not_stopped(
    tmp_path: Path, model: RecordedModel
) -> None:
    made = deployment(tmp_path, "bob", *_BUSY, MOLECULE_HERMES_WORKER_IDLE="0.5")
    made.environ |= model_at(model.url)
    made.write(_PEER)
    async with up(made.environ) as stack, AsyncExitStack() as clients:
        peers = {
            name: await clients.enter_async_context(made.client(stack, name))
            for name in made.tokens
        }
        busy = {name: await ask(peers[name], text) for name, text in _BUSY.items()}
        states = {name: turn.states[-1] for name, turn in busy.items()}
        assert states == {"runs": "COMPLETED", "plans": "COMPLETED", "asks": "INPUT_REQUIRED"}
        pids = {name: await worker_pid(stack, f"main@{name}") for name in _BUSY}
        # A worker that is used later is stopped, so the others would have been.
        await ask(peers["bob"], "hello")
        await until_state(stack, "main@bob", "stopped", "gone")
        assert {name: await worker_pid(stack, f"main@{name}") for name in _BUSY} == pids
        answered = await ask(peers["asks"], "red", task_id=busy["asks"].task_id)
        assert "red" in answered.text
        await until_state(stack, "main@asks", "stopped", "gone")


async def test_a_worker_with_cron_jobs_runs_again_after_a_restart_without_being_called(
    tmp_path: Path, model: RecordedModel
) -> None:
    made = deployment(tmp_path, "ann", "bob")
    made.environ |= model_at(model.url)
    made.write(_PEER)
    async with up(made.environ) as stack, AsyncExitStack() as clients:
        ann, bob = [await clients.enter_async_context(made.client(stack, n)) for n in made.tokens]
        await asyncio.gather(ask(ann, _BUSY["plans"]), ask(bob, "hello"))
    async with up(made.environ) as stack:
        await until_state(stack, "main@ann", "ready")
        assert await state_of(stack, "main@bob") == "gone"


async def test_three_peers_share_the_room_for_one_worker(
    tmp_path: Path, model: RecordedModel
) -> None:
    made = deployment(tmp_path, "ann", "bob", "eve", MOLECULE_HERMES_MAX_WORKERS="1")
    made.environ |= model_at(model.url)
    made.write(_PEER)
    async with up(made.environ) as stack, AsyncExitStack() as clients:
        peers = [await clients.enter_async_context(made.client(stack, n)) for n in made.tokens]
        async with asyncio.timeout(2 * _LONG):
            turns = await asyncio.gather(*(ask(c, f"I am {n}") for n, c in enumerate(peers)))
        assert [turn.states[-1] for turn in turns] == ["COMPLETED"] * 3
        assert all(f"I am {n}" in turn.text for n, turn in enumerate(turns))
        assert len(await workers(stack)) == 1


# Starts that fail.


async def readiness(stack: Stack, **headers: str) -> dict[str, Any]:
    async with httpx.AsyncClient(timeout=10, headers=headers) as http:
        return dict((await http.get(stack.url + "/readyz")).json())


async def test_a_worker_that_cannot_start_fails_its_own_turns_only(
    tmp_path: Path, model: RecordedModel
) -> None:
    made = deployment(tmp_path, "ann", "bob", HERMES_GATEWAY_READY_BUDGET_SEC="60")
    made.environ |= model_at(model.url)
    made.write({**_PEER, "research": {"isolation": "peer", "soul": "You are a researcher."}})
    async with up(made.environ) as stack, AsyncExitStack() as clients:
        ann = await clients.enter_async_context(made.client(stack, "ann"))
        research = await clients.enter_async_context(made.client(stack, "ann", "research"))
        made.file.with_name("research.md").unlink()
        failed = await ask(research, "hello")
        assert failed.states[-1] == "FAILED"
        assert failed.failure["kind"] == "unreachable"
        assert str(tmp_path) not in str(failed.events)
        assert "research.md" not in str(failed.events)
        assert "worker research@ann did not start" in stack.output
        assert "research.md" in stack.output
        # The tools of every peer can ask without a token, too: nobody is told whose it is.
        token = {"Authorization": f"Bearer {made.tokens['ann']}"}
        for headers in ({}, token, {"X-Forwarded-For": "203.0.113.9"}):
            report = await readiness(stack, **headers)
            assert "ann" not in json.dumps(report), report
            assert "research.md" not in json.dumps(report), report
        states = [each["state"] for each in (await readiness(stack))["workers"]]
        assert "failed" in states
        assert (await ask(ann, "hello")).states[-1] == "COMPLETED"
        made.file.with_name("research.md").write_text("You are back.")
        assert (await ask(research, "hello again")).states[-1] == "COMPLETED"


# Kept workers.


async def test_the_next_up_adopts_the_workers_of_a_bridge_that_was_killed(
    tmp_path: Path, model: RecordedModel
) -> None:
    made = deployment(
        tmp_path,
        *("ann", "bob"),
        MOLECULE_HERMES_KEEP_WORKER="true",
        MOLECULE_HERMES_DRAIN_TIMEOUT="0",
    )
    made.environ |= model_at(model.url)
    made.write(_PEER)
    left: list[psutil.Process] = []
    try:
        async with up(made.environ) as stack, made.client(stack, "bob") as bob:
            await ask(bob, "hello")
            pid = await worker_pid(stack, "main@bob")
            nobodys = await worker_pid(stack, "main@anonymous")
            left += [psutil.Process(pid), psutil.Process(nobodys)]
            turn = Turn()
            with contextlib.suppress(A2AClientError):
                async for event in bob.send_message(message(_SLOW)):
                    turn.add(event)
                    if turn.text:
                        break
            await stack.stop(signal.SIGKILL)
        assert left[0].is_running()
        async with up(made.environ) as stack, made.client(stack, "bob") as bob:
            task = await ended(bob, turn.task_id)
            assert (state(task), reply_text(task)) == ("COMPLETED", _WORDS)
            assert await worker_pid(stack, "main@bob") == pid
            assert (await ask(bob, "hello again")).states[-1] == "COMPLETED"
    finally:
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()


async def test_a_worker_that_was_kept_gets_what_the_configuration_says_now(
    tmp_path: Path, model: RecordedModel
) -> None:
    made = deployment(tmp_path, *("ann", "bob"), MOLECULE_HERMES_KEEP_WORKER="true")
    made.environ |= model_at(model.url)
    left: list[psutil.Process] = []
    try:
        for soul, toolsets in (("soul-one", ["terminal"]), ("soul-two", ["file"])):
            about = {"isolation": "peer", "soul": f"You are {soul}.", "toolsets": toolsets}
            made.write({"main": about})
            async with up(made.environ) as stack, made.client(stack, "bob") as bob:
                model.requests.clear()
                assert (await ask(bob, "hello", soul)).states[-1] == "COMPLETED"
                assert f"You are {soul}." in model.prompts()
                assert ("terminal" in model.tools()) is ("terminal" in toolsets)
                left += [psutil.Process(each["pid"]) for each in (await workers(stack)).values()]
                await stack.stop(signal.SIGKILL)
    finally:
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()


async def ended(client: Client, task_id: str) -> Task:
    async def reached() -> Task | None:
        task = await client.get_task(GetTaskRequest(id=task_id))
        return None if state(task) in ("WORKING", "SUBMITTED") else task

    return Task.FromString((await until(reached, _LONG)).SerializeToString())


# Another configuration.


async def reloaded(stack: Stack, says: str) -> None:
    before = stack.output.count(says)
    reload(stack)
    await until(lambda: stack.output.count(says) > before, 30)


async def test_a_new_configuration_counts_without_dropping_a_turn(
    tmp_path: Path, model: RecordedModel
) -> None:
    made = deployment(tmp_path, "ann")
    made.environ |= model_at(model.url)
    agents: dict[str, dict[str, Any]] = {
        "main": {"isolation": "peer", "soul": "You are soul-one."},
        "research": {"isolation": "peer", "soul": "You are soul-research."},
    }
    made.write(agents)
    async with up(made.environ) as stack, AsyncExitStack() as clients:
        ann = await clients.enter_async_context(made.client(stack, "ann"))
        research = await clients.enter_async_context(made.client(stack, "ann", "research"))
        await asyncio.gather(ask(ann, "hello"), ask(research, "hello"))
        assert "soul-one" in model.prompts()
        async with begun(ann) as running, begun(research) as retiring:
            made.file.with_name("token").write_text("zoe-token-0123456789")
            made.file.with_name("token").chmod(0o600)
            made.tokens["zoe"] = "zoe-token-0123456789"
            agents["main"]["soul"] = "You are soul-two."
            agents["main"]["toolsets"] = ["file"]
            del agents["research"]
            agents["archive"] = {"isolation": "peer", "soul": "You are soul-archive."}
            peers = {"zoe": {"token_file": "token"}}
            routes = [{"context": "old-*", "agent": "archive"}]
            made.write(agents, peers=peers, routes=routes)
            await reloaded(stack, "the configuration was read again")
            zoe = await clients.enter_async_context(made.client(stack, "zoe"))
            assert (await ask(zoe, "hello")).states[-1] == "COMPLETED"
            for turn in (await running, await retiring):
                assert (turn.states[-1], turn.text) == ("COMPLETED", _WORDS), turn.events[-1]
        model.requests.clear()
        refused = await ask(ann, "demo:run echo out-of-reach", "fresh")
        assert "soul-two" in model.prompts()
        assert "soul-one" not in model.prompts()
        assert "terminal" not in model.tools()
        assert '"output": "out-of-reach' not in refused.text
        model.requests.clear()
        await ask(ann, "hello", "old-papers")
        assert "soul-archive" in model.prompts()
        with pytest.raises(InvalidParamsError):
            await ask(research, "hello")
        await until_state(stack, "research@ann", "gone")


async def test_a_bad_configuration_changes_nothing_and_says_what_is_wrong(
    tmp_path: Path, model: RecordedModel
) -> None:
    made = deployment(tmp_path, "ann", "bob")
    made.environ |= model_at(model.url)
    made.write(_PEER)
    async with up(made.environ) as stack, made.client(stack, "ann") as ann:
        await ask(ann, "hello")
        pid = await worker_pid(stack, "main@ann")
        for text, says in (
            ("agents: {main: {isolation: neither}}\n", "agents.main.isolation='neither'"),
            ("agents: [\n", "not valid YAML"),
            ("agents: {main: {soul: nowhere.md}}\n", "nowhere.md"),
            ("agents: {main: {isolation: shared}}\n", "runs on HERMES_HOME"),
        ):
            made.file.write_text(text)
            await reloaded(stack, "the configuration stays as it was")
            assert says in stack.output
            assert (await ask(ann, "hello")).states[-1] == "COMPLETED"
        assert await worker_pid(stack, "main@ann") == pid


async def test_peers_reach_the_agents_that_routes_tenants_and_paths_name(
    tmp_path: Path, model: RecordedModel
) -> None:
    made = deployment(tmp_path, "ann", "bob")
    made.environ |= model_at(model.url)
    made.write(
        {
            "main": {"isolation": "shared", "soul": "You are soul-main."},
            "research": {"isolation": "shared", "soul": "You are soul-research."},
        },
        routes=[{"peer": "bob", "agent": "research"}],
    )

    async def soul(client: Client, text: str = "hello", **fields: str) -> str:
        model.requests.clear()
        turn = Turn()
        request = message(text)
        for name, value in fields.items():
            setattr(request, name, value)
        async for event in client.send_message(request):
            turn.add(event)
        assert turn.states[-1] == "COMPLETED", turn.events
        found = {s for s in ("soul-main", "soul-research") if s in model.prompts()}
        assert len(found) == 1
        # In none of them can one peer find what another said.
        assert "terminal" in model.tools()
        assert not model.tools() & set(SHARED_TOOLSETS)
        return found.pop()

    async with up(made.environ) as stack, AsyncExitStack() as clients:
        ann, bob = [await clients.enter_async_context(made.client(stack, n)) for n in made.tokens]
        by_path = await clients.enter_async_context(made.client(stack, "ann", "research"))
        bob_main = await clients.enter_async_context(made.client(stack, "bob", "main"))
        assert await soul(ann) == "soul-main"
        assert await soul(bob) == "soul-research"
        assert await soul(ann, tenant="research") == "soul-research"
        assert await soul(bob, tenant="main") == "soul-main"
        assert await soul(by_path) == "soul-research"
        assert await soul(bob_main) == "soul-main"
        assert set(await workers(stack)) == {"main", "research"}
