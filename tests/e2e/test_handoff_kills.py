"""A handoff whose bridge is killed ends as completed or failed, and arrives once or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from a2a.types import ListTasksRequest, Task

from molecule_hermes.hermes.demo_model import demo_model
from molecule_hermes.server.handoff_records import Handoff, HandoffRecords
from tests.e2e.test_handoff import SAID, Operator, write_operators_home
from tests.support.operator_hermes import messages
from tests.support.peers import ask, peer, reply_text, state
from tests.support.stack import Stack, environment, up
from tests.support.waiting import until

SLOW = "demo:slow=0.2 my house"
TOKEN = "alice-token-of-the-tests"


@pytest.fixture
async def environ(tmp_path: Path) -> AsyncIterator[dict[str, str]]:
    async with demo_model() as url:
        write_operators_home(tmp_path / "operator", url)
        yield environment(
            tmp_path / "stack",
            HERMES_CUSTOM_BASE_URL=url,
            HERMES_INFERENCE_MODEL="molecule-demo",
            HERMES_CUSTOM_API_KEY="a-key-of-the-tests",
            MOLECULE_HERMES_KEEP_WORKER="true",
            MOLECULE_HERMES_PEER_TOKENS=f"alice:{TOKEN}",
            MOLECULE_A2A_PLATFORM_SHARED_SECRET="a-shared-secret-of-the-tests",
            API_SERVER_KEY="an-api-key-of-the-tests",
        )


def entitle(home: Path, session: str, title: str) -> None:
    """The title is in what the agent reads, so the demo model follows it."""
    with sqlite3.connect(home / "state.db", timeout=10) as connection:
        connection.execute("UPDATE sessions SET title = ? WHERE id = ?", (title, session))


async def tasks(stack: Stack) -> list[Task]:
    async with peer(stack.url, token=TOKEN) as client:
        page = await client.list_tasks(ListTasksRequest(context_id="ctx", include_artifacts=True))
        return list(page.tasks)


async def kill(stack: Stack) -> None:
    stack.process.send_signal(signal.SIGKILL)
    await stack.ended()


@contextlib.contextmanager
def hermes_killed(stack: Stack) -> object:
    process = psutil.Process(stack.hermes_pid())
    try:
        yield process
    finally:
        with contextlib.suppress(psutil.Error):
            process.kill()


def records(environ: dict[str, str]) -> HandoffRecords:
    return HandoffRecords(Path(environ["MOLECULE_HERMES_STATE_DIR"]) / "handoffs")


async def reached(stack: Stack, known: HandoffRecords, stage: str) -> bool:
    handoff = next(iter(known), None)
    if handoff is None or stage == "recorded":
        return handoff is not None
    if stage == "running":
        return handoff.state == "running"
    found = await tasks(stack)
    if stage == "writing":
        return any(reply_text(task) for task in found)
    return any(state(task) == "COMPLETED" for task in found)


@pytest.mark.parametrize("stage", ["recorded", "running", "writing", "stored"])
async def test_a_bridge_that_is_killed_leaves_no_handoff_open_lost_or_doubled(
    environ: dict[str, str], tmp_path: Path, stage: str
) -> None:
    home = tmp_path / "operator"
    known = records(environ)
    async with up(environ) as stack:
        operator = Operator(stack, environ, home)
        session = await operator.begin()
        entitle(home, session, SLOW)
        before = messages(home, session)
        with hermes_killed(stack):
            command = asyncio.create_task(
                operator.command(session, "--to", "alice", "--context", "ctx")
            )
            await until(lambda: reached(stack, known, stage), 60, every=0.01)
            await kill(stack)
            async with up(environ) as second:
                code, _, err = await command
                (handoff,) = known
                arrived = [task for task in await tasks(second) if state(task) == "COMPLETED"]
                assert handoff.is_over
                assert code == (0 if handoff.state == "completed" else 1), err
                assert len(arrived) == (handoff.state == "completed")
                assert operator.state(session)[0] in (handoff.state, None)
                assert messages(home, session) == before
                async with peer(second.url, token=TOKEN) as client:
                    said = (await ask(client, "And now?", "ctx")).text
                    assert (SAID in said) == (handoff.state == "completed")
    if stage in ("writing", "stored"):
        assert handoff.state == "completed"
    if stage == "recorded":
        assert "restarted" in handoff.reason


async def test_a_handoff_that_takes_too_long_fails_and_leaves_no_trace(
    environ: dict[str, str], tmp_path: Path
) -> None:
    home = tmp_path / "operator"
    limited = environ | {
        "MOLECULE_HERMES_HANDOFF_TIMEOUT": "8",
        "MOLECULE_HERMES_KEEP_WORKER": "false",
    }
    async with up(limited) as stack:
        operator = Operator(stack, limited, home)
        session = await operator.begin()
        before = messages(home, session)
        entitle(home, session, "demo:hang now")
        async with peer(stack.url, token=TOKEN) as client:
            await ask(client, "I like plums", "ctx")
            code, _, err = await operator.command(session, "--to", "alice", "--context", "ctx")
            assert code == 1
            assert "it took longer than 8 s" in err
            entitle(home, session, "demo:fail=401 now")
            code, _, err = await operator.command(session, "--to", "alice", "--context", "ctx")
            assert code == 1
            assert operator.state(session)[0] == "failed"
            said = (await ask(client, "What do I like?", "ctx")).text
        assert "I like plums" in said
        assert SAID not in said
        assert messages(home, session) == before


async def test_over_chat_completions_a_handoff_is_refused(
    environ: dict[str, str], tmp_path: Path
) -> None:
    environ = environ | {"MOLECULE_HERMES_KEEP_WORKER": "false"}
    async with up(environ, "--transport", "chat") as stack:
        operator = Operator(stack, environ, tmp_path / "operator")
        session = await operator.begin()
        code, _, err = await operator.command(session, "--to", "alice")
        assert code == 1
        assert "over chat completions" in err
        assert operator.state(session) == (None, None)


def test_a_record_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    records = HandoffRecords(tmp_path)
    handoff = Handoff("s", "alice", "main", "ctx", "/home")
    records.save(handoff)
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "other.json").write_text(json.dumps({"session": "s"}))
    assert [each.id for each in records] == [handoff.id]
    assert records.find("../../etc/passwd") is None
