"""`up` with MOLECULE_HERMES_KEEP_WORKER: Hermes outlives its bridge, and the next one adopts it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from a2a.client import A2AClientError, Client
from a2a.types import GetTaskRequest, Task

from molecule_hermes.client.connection import message
from molecule_hermes.hermes.demo_model import demo_model
from tests.support.peers import Turn, peer, reply_text, state
from tests.support.stack import environment, up
from tests.support.waiting import until

WORDS = " ".join(f"word{i}" for i in range(100))
SECRETS = {
    "MOLECULE_A2A_PLATFORM_SHARED_SECRET": "a-shared-secret-of-the-tests",
    "API_SERVER_KEY": "an-api-key-of-the-tests",
}


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
            **SECRETS,
        )


@asynccontextmanager
async def killed_at_the_end() -> AsyncIterator[list[psutil.Process]]:
    """Kills the processes that the test adds to the list."""
    found: list[psutil.Process] = []
    try:
        yield found
    finally:
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()


async def begun(client: Client) -> Turn:
    """A turn that writes for some seconds, cut off by its peer after the first words."""
    turn = Turn()
    with contextlib.suppress(A2AClientError):
        async for event in client.send_message(message("demo:slow=0.05\ndemo:words=100")):
            turn.add(event)
            if turn.text:
                break
    return turn


async def completed(client: Client, turn: Turn) -> Task:
    async def ended() -> Task | None:
        task = await client.get_task(GetTaskRequest(id=turn.task_id))
        return None if state(task) == "WORKING" else task

    return Task.FromString((await until(ended, 30)).SerializeToString())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_the_next_up_adopts_hermes_and_its_turns(
    environ: dict[str, str], number: int
) -> None:
    async with killed_at_the_end() as left:
        async with up(environ) as stack, peer(stack.url) as client:
            hermes = psutil.Process(stack.hermes_pid())
            left.append(hermes)
            turn = await begun(client)
            await stack.stop(number)
        assert hermes.is_running()
        if number == signal.SIGTERM:
            assert f"Hermes   goes on (process {hermes.pid})" in stack.output
        async with up(environ) as stack, peer(stack.url) as client:
            assert f"runs already (process {hermes.pid})" in stack.output
            task = await completed(client, turn)
            assert (state(task), reply_text(task)) == ("COMPLETED", WORDS)
            # A Hermes that dies is still restarted.
            hermes.kill()
            await until(lambda: "restarting it" in stack.output, 30)
            await until(lambda: stack.output.count("Hermes ended") == 1)
            await stack.until_ready()
            found = psutil.Process(stack.process.pid).children(recursive=True)
            left.extend(found)
            turn = await begun(client)
            assert (await completed(client, turn)).status.state == task.status.state


@pytest.mark.parametrize("missing", sorted(SECRETS))
async def test_without_lasting_secrets_it_says_what_to_set(
    environ: dict[str, str], missing: str
) -> None:
    del environ[missing]
    async with up(environ, ready=False) as stack:
        assert await stack.ended() == 2
    assert "MOLECULE_HERMES_KEEP_WORKER=true needs secrets" in stack.output
    assert missing in stack.output
