"""`molecule-hermes up` with the real Hermes, used through the SDK's client."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import psutil
import pytest
import pytest_asyncio
from a2a.client import A2AClientError
from a2a.types import GetTaskRequest, ListTasksRequest
from a2a.utils.errors import TaskNotFoundError

from molecule_hermes.client.connection import message
from molecule_hermes.config import Settings
from molecule_hermes.hermes.home import HermesHome
from molecule_hermes.hermes.model_choice import demo_choice
from tests.support.peers import Turn, ask, peer, reply_text
from tests.support.stack import Stack, environment, secrets_in, up
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

ALICE, BOB = "alice-token-0123456789", "bob-token-0123456789"


@pytest.fixture(scope="module", params=["plugin", "chat"])
def environ(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[str, str]:
    return environment(
        tmp_path_factory.mktemp("stack"),
        MOLECULE_HERMES_PEER_TOKENS=f"alice:{ALICE},bob:{BOB}",
        MOLECULE_A2A_PLATFORM_ENABLED="true" if request.param == "plugin" else "false",
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(environ: dict[str, str]) -> AsyncIterator[Stack]:
    async with up(environ) as running:
        yield running


@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_a_plain_turn_is_answered(stack: Stack, binding: str, version: str) -> None:
    async with peer(
        stack.url, token=ALICE, binding=binding, version=version, streaming=False
    ) as client:
        turn = await ask(client, f"hello over {binding} {version}")
    assert turn.states[-1] == "COMPLETED"
    assert f"You said: hello over {binding} {version}" in turn.text


@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_the_updates_of_a_streamed_turn_arrive_one_by_one(
    stack: Stack, binding: str, version: str
) -> None:
    arrivals = []
    async with peer(stack.url, token=ALICE, binding=binding, version=version) as client:
        turn = Turn()
        async for event in client.send_message(message("demo:slow=0.1 one two three four")):
            turn.add(event)
            if event.HasField("artifact_update"):
                arrivals.append(time.monotonic())
        task = await client.get_task(GetTaskRequest(id=turn.task_id))
    assert len(arrivals) >= 5
    assert arrivals[-1] - arrivals[0] > 0.5
    assert turn.text == reply_text(task)
    assert "one two three four" in turn.text


async def test_two_tasks_of_a_context_are_one_conversation(stack: Stack) -> None:
    async with peer(stack.url, token=ALICE) as client:
        first = await ask(client, "my colour is teal", "memory")
        second = await ask(client, "what did I say?", "memory")
        elsewhere = await ask(client, "what did I say?", "another")
    assert first.task_id != second.task_id
    assert "my colour is teal" in second.text
    assert "teal" not in elsewhere.text


async def test_two_peers_with_one_context_id_do_not_see_each_other(stack: Stack) -> None:
    async with peer(stack.url, token=ALICE) as alice, peer(stack.url, token=BOB) as bob:
        secret = await ask(alice, "my secret is xylophone", "shared-context")
        asked = await ask(bob, "what did I say?", "shared-context")
        with pytest.raises(TaskNotFoundError):
            await bob.get_task(GetTaskRequest(id=secret.task_id))
        mine = await bob.list_tasks(ListTasksRequest(context_id="shared-context"))
    assert asked.states[-1] == "COMPLETED"
    assert "xylophone" not in asked.text
    assert [t.id for t in mine.tasks] == [asked.task_id]


async def test_a_wrong_token_is_refused(stack: Stack) -> None:
    for token in ("", "wrong"):
        async with peer(stack.url, token=token) as client:
            with pytest.raises(A2AClientError, match="401"):
                await ask(client, "hi")


async def test_twenty_concurrent_turns_are_all_answered_correctly(stack: Stack) -> None:
    async with peer(stack.url, token=ALICE) as client, asyncio.timeout(90):
        turns = await asyncio.gather(*(ask(client, f"number {i}.") for i in range(20)))
    assert [t.states[-1] for t in turns] == ["COMPLETED"] * 20
    assert all(f"You said: number {i}." in t.text for i, t in enumerate(turns))


async def test_five_concurrent_messages_in_one_context_are_answered_in_order(stack: Stack) -> None:
    async with peer(stack.url, token=ALICE) as client, asyncio.timeout(90):
        turns = []
        for i in range(5):
            stream = client.send_message(message(f"question {i}.", "five"))
            turns.append((await anext(stream), stream))
        ended = []
        for i, (first, stream) in enumerate(turns):
            turn = Turn()
            turn.add(first)
            async for event in stream:
                turn.add(event)
            assert turn.states[-1] == "COMPLETED"
            assert f"You said: question {i}." in turn.text
            ended.append(turn)
    assert "question 0.; question 1.; question 2.; question 3." in ended[4].text


async def test_a_turn_ends_within_seconds_when_hermes_is_killed(stack: Stack) -> None:
    async with peer(stack.url, token=ALICE) as client:
        turn = Turn()
        killed = 0.0
        async for event in client.send_message(message("demo:slow=1 a b c d e f g h i j")):
            turn.add(event)
            if turn.updates and not killed:
                os.kill(stack.hermes_pid("alice"), signal.SIGKILL)
                killed = time.monotonic()
        took = time.monotonic() - killed
    assert turn.states[-1] == "FAILED"
    assert turn.failure["kind"] == "interrupted"
    assert turn.failure["retryable"] is False
    assert "may have run" in turn.failure["hint"]
    assert turn.text.startswith("Demo")
    assert took < 8
    await stack.until_ready()


async def test_a_slash_command_is_only_text(stack: Stack) -> None:
    async with peer(stack.url, token=ALICE) as client:
        for text in ("/help", "/new", "restart gateway"):
            turn = await ask(client, text)
            assert turn.states[-1] == "COMPLETED"
            assert f"You said: {text}" in turn.text


async def test_card_probe_metric_and_terminal_name_the_demo_model(stack: Stack) -> None:
    headers = {"Authorization": f"Bearer {ALICE}"}
    async with httpx.AsyncClient(base_url=stack.url, headers=headers) as http:
        card = (await http.get("/.well-known/agent-card.json")).json()
        ready = (await http.get("/readyz")).json()
        metrics = (await http.get("/metrics")).text
    assert "demo model" in card["description"]
    assert ready["demo"] is True
    assert "demo model" in ready["warnings"][0]
    assert "molecule_hermes_demo_model 1.0" in metrics
    await until(lambda: stack.url in stack.output)
    assert "demo model" in stack.output


async def test_the_doctor_finds_no_problems(stack: Stack, environ: dict[str, str]) -> None:
    ended = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "molecule_hermes", "doctor", "--token", ALICE],
        env=environ,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    assert "no problems found" in ended.stdout
    apart = f"`up` (pid {stack.process.pid}) runs a Hermes for each peer or agent"
    assert f"ok    hermes     {apart}" in ended.stdout


async def test_a_second_bridge_on_the_same_home_does_not_start(
    stack: Stack, environ: dict[str, str]
) -> None:
    ended = await _run_up(environment(Path(environ["MOLECULE_HERMES_STATE_DIR"])))
    assert ended.returncode == 1
    assert f"pid {stack.process.pid}" in ended.stderr
    assert f"kill {stack.process.pid}" in ended.stderr


@pytest.mark.parametrize("variable", ["MOLECULE_HERMES_PORT", "HERMES_API_BASE"])
async def test_a_taken_port_is_reported(
    stack: Stack, environ: dict[str, str], tmp_path: Path, variable: str
) -> None:
    taken = environ["MOLECULE_HERMES_PORT"]
    if variable == "HERMES_API_BASE":
        taken = f"http://127.0.0.1:{_api_port_of_a_worker(environ)}/v1"
    ended = await _run_up(environment(tmp_path, **{variable: taken}))
    assert ended.returncode == 1
    assert "is taken by" in ended.stderr
    assert variable in ended.stderr


def _api_port_of_a_worker(environ: dict[str, str]) -> str:
    folders = Path(environ["MOLECULE_HERMES_STATE_DIR"]) / "workers"
    # The first peer's, which is started with the bridge.
    (home,) = folders.glob("main@alice-*/home")
    return HermesHome(home).read_env()["API_SERVER_PORT"]


async def _run_up(environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "molecule_hermes", "up"]
    return await asyncio.to_thread(
        subprocess.run,
        command,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def test_a_killed_hermes_of_one_peer_is_back_for_its_next_turn(stack: Stack) -> None:
    """The bridge stays ready: the other peers have Hermes processes of their own."""
    async with peer(stack.url, token=ALICE) as alice, peer(stack.url, token=BOB) as bob:
        await ask(alice, "my animal is an otter", "killed")
        before = stack.output.count("Hermes ended with code")
        os.kill(stack.hermes_pid("alice"), signal.SIGKILL)
        await until(lambda: stack.output.count("Hermes ended with code") > before)
        await stack.until_ready(timeout=1)
        other = await ask(bob, "hello")
        again = await ask(alice, "which animal?", "killed")
    assert "You said: hello" in other.text
    assert "otter" in again.text


@pytest.mark.parametrize("plugin", ["true", "false"])
async def test_readiness_follows_hermes_and_the_conversation_survives(
    tmp_path: Path, plugin: str
) -> None:
    """Hermes is killed and comes back, then the bridge is restarted. The peers share one Hermes:
    readiness would not tell that the Hermes of one of several peers is gone."""
    environ = environment(
        tmp_path,
        MOLECULE_HERMES_PEER_TOKENS=f"alice:{ALICE},bob:{BOB}",
        MOLECULE_HERMES_ISOLATION="shared",
        MOLECULE_A2A_PLATFORM_ENABLED=plugin,
    )
    async with up(environ) as stack:
        async with peer(stack.url, token=ALICE) as client:
            await ask(client, "my animal is an otter", "restart")
            os.kill(stack.hermes_pid(), signal.SIGKILL)
            report = await stack.until_ready(False)
            assert not report["parts"]["hermes"]["ok"]  # type: ignore[index]
            waited = await ask(client, "anybody?", "restart")
            assert any("Hermes" in line and "trying again" in line for line in waited.progress)
            assert "You said: anybody?" in waited.text
            await stack.until_ready()
            again = await ask(client, "which animal?", "restart")
            assert "otter" in again.text
        await _ends_cleanly(stack, environ)
    await _still_knows_the_otter(environ, "restart")


async def test_conversations_of_peers_kept_apart_survive_a_restart(
    stack: Stack, environ: dict[str, str]
) -> None:
    async with peer(stack.url, token=ALICE) as alice, peer(stack.url, token=BOB) as bob:
        await ask(alice, "my animal is an otter", "restart")
        await ask(bob, "my animal is a newt", "restart")
    await _ends_cleanly(stack, environ)
    await _still_knows_the_otter(environ, "restart")


async def _ends_cleanly(stack: Stack, environ: dict[str, str]) -> None:
    family = psutil.Process(stack.process.pid).children(recursive=True)
    assert await stack.stop() == 0
    assert not [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert "Traceback" not in stack.output
    for secret in secrets_in(environ):
        assert secret not in stack.output


async def _still_knows_the_otter(environ: dict[str, str], context: str) -> None:
    async with up(environ) as second, peer(second.url, token=ALICE) as client:
        once_more = await ask(client, "which animal was it?", context)
    assert "otter" in once_more.text
    assert "newt" not in once_more.text


async def test_a_signal_while_starting_ends_it_cleanly(tmp_path: Path) -> None:
    async with up(environment(tmp_path), ready=False) as stack:
        await until(lambda: "model" in stack.output)
        assert await stack.stop(signal.SIGINT) == 0
        assert "Traceback" not in stack.output


def _started_often(environ: dict[str, str]) -> HermesHome:
    """A folder on which Hermes was started ten times just now, as Hermes records it."""
    home = HermesHome(Settings.from_env(environ).home)
    home.create()
    starts = "".join(f"{time.time() - age!r}\n" for age in range(10))
    (home.path / "gateway-starts.log").write_text(starts)
    return home


async def test_many_starts_in_a_short_time_do_not_delay_the_next_one(tmp_path: Path) -> None:
    environ = environment(tmp_path)
    home = _started_often(environ)
    async with up(environ) as stack:
        assert "before it boots" not in stack.output
    assert "respawn storm" not in (home.path / "logs" / "errors.log").read_text()


async def test_a_hermes_that_sleeps_after_many_starts_is_explained(tmp_path: Path) -> None:
    """With `--keep-config` the folder's own settings count, and Hermes sleeps without a word."""
    environ = environment(tmp_path)
    home = _started_often(environ)
    home.set_model(demo_choice("http://127.0.0.1:9/v1").block)
    async with up(environ, "--keep-config", ready=False) as stack:
        await until(lambda: "gateway.respawn_storm.max_starts to 0" in stack.output, 60)
    assert "Hermes was started 11 times in 120 s and now sleeps for" in stack.output
