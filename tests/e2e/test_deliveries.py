"""What the real Hermes says after its turns, with bridges that come and go.

The peer's list, the feed, the store and the webhook must agree: nothing lost, nothing doubled,
nothing under another's id.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from a2a.client import Client
from a2a.types import ListTasksRequest, Task, TaskPushNotificationConfig
from aiohttp import web

from molecule_hermes.client.connection import message
from molecule_hermes.hermes.demo_model import demo_model
from molecule_hermes.protocol.reply import artifact_text
from tests.e2e.test_kept_worker import SECRETS, killed_at_the_end
from tests.support.deliveries import background, call
from tests.support.peers import Turn, ask, peer, send, state
from tests.support.serving import serve
from tests.support.stack import Stack, environment, processes, up
from tests.support.waiting import until

_DOWN_FOR = float(os.environ.get("MOLECULE_TEST_DOWNTIME", "1"))
"""Seconds for which no bridge runs."""


@pytest.fixture
async def environ(tmp_path: Path) -> AsyncIterator[dict[str, str]]:
    async with demo_model() as url:
        yield environment(
            tmp_path / "stack",
            HERMES_CUSTOM_BASE_URL=url,
            HERMES_INFERENCE_MODEL="molecule-demo",
            HERMES_CUSTOM_API_KEY="a-key-of-the-tests",
            MOLECULE_HERMES_KEEP_WORKER="true",
            MOLECULE_HERMES_DRAIN_TIMEOUT="0",
            MOLECULE_HERMES_PUSH_HOSTS="127.0.0.1",
            **SECRETS,
        )


@dataclass
class Hook:
    url: str = ""
    ended: list[str] = field(default_factory=list)
    """The ids of tasks whose ends it was told of."""


@asynccontextmanager
async def webhook() -> AsyncIterator[Hook]:
    hook = Hook()

    async def take(request: web.Request) -> web.Response:
        body = await request.json()
        update, task = body.get("statusUpdate"), body.get("task")
        known = (update["taskId"], update["status"]) if update else None
        known = (task["id"], task["status"]) if task else known
        if known and known[1]["state"] == "TASK_STATE_COMPLETED":
            hook.ended.append(known[0])
        return web.Response()

    app = web.Application(client_max_size=2**24)
    app.router.add_post("/hook", take)
    async with serve(app) as url:
        hook.url = f"{url}/hook"
        yield hook


async def start_job(client: Client, mark: str, seconds: float, hook: Hook, context: str) -> Turn:
    """Has the agent start a job that says the mark at its end."""
    command = f"sleep {seconds} # {mark}\necho said-{mark}"
    return await start(client, background(command), hook, context)


async def start_each(client: Client, hook: Hook) -> dict[str, Turn]:
    """Starts something for each cause of a delivery, each in a context of its own."""
    soon = (datetime.now(UTC) + timedelta(seconds=2)).isoformat()
    words = {
        "process": background("sleep 2; echo said-process"),
        "pattern": background(
            "sleep 2; echo said-pattern; sleep 60",
            notify_on_complete=False,
            watch_patterns=["said-pattern"],
        ),
        "subagent": call("delegate_task", goal="demo:say said-subagent", background=True),
        "cron": call(
            "cronjob",
            action="create",
            prompt="demo:say said-cron",
            schedule=soon,
            name="the report",
            deliver="origin",
        ),
    }
    return {name: await start(client, text, hook, name) for name, text in words.items()}


async def start(client: Client, text: str, hook: Hook, context: str) -> Turn:
    request = message(text, context)
    config = TaskPushNotificationConfig(url=hook.url)
    request.configuration.task_push_notification_config.CopyFrom(config)
    return await send(client, request)


async def deliveries(client: Client, count: int) -> list[Task]:
    """All deliveries, once there are that many that have ended."""

    async def enough() -> list[Task]:
        params = ListTasksRequest(include_artifacts=True, page_size=100)
        tasks = (await client.list_tasks(params)).tasks
        found = [task for task in tasks if "initiatedBy" in task.metadata]
        ended = [task for task in found if state(task) not in ("WORKING", "SUBMITTED")]
        return found if len(ended) >= count else []

    found: list[Task] = await until(enough, 90, every=0.1)
    return found


async def feed(stack: Stack, count: int) -> list[tuple[str, str]]:
    """The first events of the feed: its kind and the task's id."""
    events: list[tuple[str, str]] = []
    async with (
        asyncio.timeout(30),
        httpx.AsyncClient(timeout=30) as http,
        http.stream("GET", f"{stack.url}/deliveries?after=0") as response,
    ):
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                data = json.loads(line.removeprefix("data: "))
                events.append((data["kind"], data["task"]["id"]))
            if len(events) == count:
                break
    return events


def stored(environ: dict[str, str]) -> Counter[str]:
    path = Path(environ["MOLECULE_HERMES_STATE_DIR"]) / "tasks.db"
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        rows = db.execute("SELECT id FROM tasks WHERE opened IS NOT NULL AND closed IS NOT NULL")
        return Counter(name for (name,) in rows)


async def agree(
    environ: dict[str, str], stack: Stack, client: Client, hook: Hook, turns: list[Turn]
) -> None:
    """Each of the turns has one delivery, everywhere."""
    found = await deliveries(client, len(turns))
    ids = Counter(task.id for task in found)
    assert set(ids.values()) == {1}
    assert len(ids) == len(turns)
    origins = {str(each) for task in found for each in task.metadata["referenceTaskIds"]}
    assert origins == {turn.task_id for turn in turns}
    events = await feed(stack, 2 * len(turns))
    assert Counter(name for kind, name in events if kind == "ended") == ids
    assert Counter(name for kind, name in events if kind == "created") == ids
    assert stored(environ) == ids
    await until(lambda: ids.keys() <= set(hook.ended))
    told = Counter(hook.ended)
    assert {name: told[name] for name in ids} == dict(ids)


async def test_a_job_that_ends_is_delivered_once_while_the_chat_is_idle_and_while_it_is_busy(
    environ: dict[str, str],
) -> None:
    async with (
        killed_at_the_end() as left,
        webhook() as hook,
        up(environ) as stack,
        peer(stack.url) as client,
    ):
        left.append(psutil.Process(stack.hermes_pid()))
        idle = await start_job(client, "one", 1, hook, "idle")
        assert state_of(idle) == "COMPLETED"
        await deliveries(client, 1)
        busy = await start_job(client, "two", 1, hook, "busy")
        long = await ask(client, "demo:slow=0.1\ndemo:words=120", "busy")
        await agree(environ, stack, client, hook, [idle, busy])
        for task, mark in zip(await in_order(client), ("one", "two"), strict=True):
            assert f"said-{mark}" in artifact_text(task)
            assert task.metadata["cause"] == "background"
        assert long.text == " ".join(f"word{i}" for i in range(120))


def state_of(turn: Turn) -> str:
    return turn.states[-1]


async def in_order(client: Client) -> list[Task]:
    return list(reversed(await deliveries(client, 2)))


async def test_each_cause_of_a_delivery_reaches_the_peer_once_though_the_bridge_was_down(
    environ: dict[str, str],
) -> None:
    async with killed_at_the_end() as left, webhook() as hook:
        async with up(environ) as stack, peer(stack.url) as client:
            left.append(psutil.Process(stack.hermes_pid()))
            turns = await start_each(client, hook)
            await stack.stop(signal.SIGKILL)
        await asyncio.sleep(_DOWN_FOR)
        async with up(environ) as stack, peer(stack.url) as client:
            await ask(client, "hello")  # Hermes looks for patterns when some turn ends
            await agree(environ, stack, client, hook, list(turns.values()))
            found = {task.context_id: task for task in await deliveries(client, len(turns))}
        for name, turn in turns.items():
            assert list(found[name].metadata["referenceTaskIds"]) == [turn.task_id]
            assert f"said-{name}" in artifact_text(found[name])
            cause = "cron" if name == "cron" else "background"
            assert found[name].metadata["cause"] == cause


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_jobs_that_end_while_the_bridge_is_down_are_delivered_by_the_next_one(
    environ: dict[str, str], number: int
) -> None:
    async with killed_at_the_end() as left, webhook() as hook:
        async with up(environ) as stack, peer(stack.url) as client:
            hermes = psutil.Process(stack.hermes_pid())
            left.append(hermes)
            jobs = [
                await start_job(client, f"job-{n}", 3, hook, f"context-{n % 2}") for n in range(4)
            ]
            await stack.stop(number)
        # Hermes looks every five seconds whether a job has ended.
        await until(lambda: not processes("3"), 30)
        async with up(environ) as stack, peer(stack.url) as client:
            assert f"runs already (process {hermes.pid})" in stack.output
            await agree(environ, stack, client, hook, jobs)


async def test_deliveries_survive_a_bridge_that_is_killed_again_and_again(
    environ: dict[str, str],
) -> None:
    async with killed_at_the_end() as left, webhook() as hook:
        jobs: list[Turn] = []
        for number in range(3):
            async with up(environ) as stack, peer(stack.url) as client:
                left.append(psutil.Process(stack.hermes_pid()) if number == 0 else left[0])
                jobs.append(await start_job(client, f"job-{number}", 4 * number + 1, hook, "ctx"))
                with contextlib.suppress(TimeoutError):
                    await until(lambda: len(hook.ended) > 2 * len(jobs), 4)
                await stack.stop(signal.SIGKILL)
        async with up(environ) as stack, peer(stack.url) as client:
            await agree(environ, stack, client, hook, jobs)


async def test_a_peer_with_a_hermes_of_its_own_gets_its_own_deliveries_only(
    environ: dict[str, str],
) -> None:
    tokens = {name: f"{name}-token-0123456789" for name in ("ann", "bob")}
    given = ",".join(f"{name}:{token}" for name, token in tokens.items())
    environ |= {"MOLECULE_HERMES_PEER_TOKENS": given, "MOLECULE_HERMES_KEEP_WORKER": "false"}
    async with (
        webhook() as hook,
        up(environ) as stack,
        peer(stack.url, token=tokens["ann"]) as ann,
        peer(stack.url, token=tokens["bob"]) as bob,
    ):
        turns = await asyncio.gather(
            *(start_job(client, name, 1, hook, "ctx") for name, client in (("a", ann), ("b", bob)))
        )
        for name, client, turn in (("a", ann, turns[0]), ("b", bob, turns[1])):
            (task,) = await deliveries(client, 1)
            assert f"said-{name}" in artifact_text(task)
            assert list(task.metadata["referenceTaskIds"]) == [turn.task_id]


async def test_with_deliveries_off_the_agent_is_told_so(environ: dict[str, str]) -> None:
    environ["MOLECULE_HERMES_DELIVERIES"] = "off"
    async with (
        killed_at_the_end() as left,
        webhook() as hook,
        up(environ) as stack,
        peer(stack.url) as client,
    ):
        left.append(psutil.Process(stack.hermes_pid()))
        turn = await start_job(client, "one", 1, hook, "ctx")
        assert "notify_unsupported" in said(turn)
        async with httpx.AsyncClient() as http:
            assert (await http.get(f"{stack.url}/deliveries")).status_code == 404


def said(turn: Turn) -> str:
    """Everything that the turn showed."""
    shown: list[Any] = [turn.text, *turn.events]
    return "\n".join(map(str, shown))
