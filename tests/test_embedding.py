"""The executor in somebody else's A2A server."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import socket
import sys
from pathlib import Path

import httpx
import pytest

from molecule_hermes.client.connection import message
from molecule_hermes.embedding import EmbeddedExecutor, create_executor
from molecule_hermes.errors import ConfigError, StartError, Unreachable
from tests.support.fakes import KEY, FakeHermes, answer, streaming
from tests.support.peers import Turn, ask, peer
from tests.support.serving import free_port
from tests.support.waiting import until
from tests.support.workspace_platform import AdapterConfig, served

EXAMPLE = Path(__file__).parent.parent / "docs" / "embedding.md"


@pytest.fixture
def environ(hermes: FakeHermes, tmp_path: Path) -> dict[str, str]:
    return {
        "HERMES_API_BASE": hermes.base_url,
        "API_SERVER_KEY": KEY,
        "MOLECULE_HERMES_STATE_DIR": str(tmp_path),
        "MOLECULE_HERMES_DRAIN_TIMEOUT": "5",
    }


async def test_it_runs_under_a_plain_request_handler(
    hermes: FakeHermes, environ: dict[str, str]
) -> None:
    config = AdapterConfig(model="my-model", system_prompt="Be brief.")
    async with (
        create_executor(config, environ) as executor,
        served(executor) as url,
        peer(url) as client,
    ):
        turn = await ask(client, "ping")
    assert turn.states[-1] == "COMPLETED"
    assert turn.text == "pong"
    asked = hermes.requests[0]
    assert asked["model"] == "my-model"
    assert asked["messages"][0] == {"role": "system", "content": "Be brief."}


async def test_what_the_config_leaves_open_comes_from_the_environment(
    hermes: FakeHermes, environ: dict[str, str]
) -> None:
    environ |= {"MOLECULE_HERMES_MODEL": "theirs", "MOLECULE_HERMES_SYSTEM_PROMPT": "Theirs."}
    async with create_executor(AdapterConfig(model=""), environ) as executor:
        assert executor.settings.model == "theirs"
        assert executor.settings.system_prompt == "Theirs."
        await executor.check()


async def test_start_and_stop_may_be_called_again(environ: dict[str, str]) -> None:
    executor = create_executor(AdapterConfig(), environ)
    await asyncio.gather(executor.start(), executor.start())
    await executor.start()
    await executor.check()
    await asyncio.gather(executor.stop(), executor.stop())
    await executor.stop()
    with pytest.raises(StartError, match="was stopped"):
        await executor.start()


async def test_what_was_never_started_can_be_stopped(environ: dict[str, str]) -> None:
    await create_executor(AdapterConfig(), environ).stop()


async def test_stopping_lets_a_running_turn_end_and_takes_no_other(
    hermes: FakeHermes, environ: dict[str, str]
) -> None:
    hermes.gate.clear()
    executor = create_executor(AdapterConfig(), environ)
    await executor.start()
    async with served(executor) as url, peer(url) as client:
        running = Turn()
        stream = client.send_message(message("ping"))
        while "WORKING" not in running.states:
            running.add(await anext(stream))
        async with asyncio.TaskGroup() as group:
            stopping = group.create_task(executor.stop())
            await asyncio.sleep(0)
            refused = await ask(client, "too late")
            assert refused.failure["kind"] == "draining"
            assert not stopping.done()
            hermes.gate.set()
            async for event in stream:
                running.add(event)
    assert running.states[-1] == "COMPLETED"


async def test_the_way_is_chosen_as_serve_does(environ: dict[str, str]) -> None:
    port = free_port()
    environ |= {
        "MOLECULE_A2A_PLATFORM_ENABLED": "true",
        "MOLECULE_A2A_PLATFORM_PORT": str(port),
        "MOLECULE_A2A_CALLBACK_PORT": "0",
    }
    async with create_executor(AdapterConfig(), environ) as executor:
        assert executor.address == f"http://127.0.0.1:{port}"
        with pytest.raises(Unreachable, match=str(port)):
            await executor.check()


async def test_a_callback_port_that_is_taken_is_told_and_can_be_tried_again(
    environ: dict[str, str],
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        environ |= {
            "MOLECULE_A2A_PLATFORM_ENABLED": "true",
            "MOLECULE_A2A_CALLBACK_PORT": str(port),
        }
        executor = create_executor(AdapterConfig(), environ)
        with pytest.raises(StartError, match="MOLECULE_A2A_CALLBACK_PORT"):
            await executor.start()
    await executor.start()
    await executor.stop()


def test_a_wrong_setting_is_told_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="MOLECULE_HERMES_TURN_TIMEOUT"):
        create_executor(AdapterConfig(), {"MOLECULE_HERMES_TURN_TIMEOUT": "soon"})


def test_it_is_an_executor_with_a_lifetime() -> None:
    from molecule_hermes.executor import HermesAgentProxyExecutor

    assert issubclass(EmbeddedExecutor, HermesAgentProxyExecutor)


async def test_the_example_in_the_docs_runs(
    hermes: FakeHermes, environ: dict[str, str], tmp_path: Path
) -> None:
    hermes.replies = [streaming(*answer("from ", "the example"))]
    code = re.findall(r"^```python\n(.*?)^```", EXAMPLE.read_text(), re.M | re.S)
    assert len(code) == 1
    script = tmp_path / "example.py"
    script.write_text(code[0])
    url = f"http://127.0.0.1:{free_port()}"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        script,
        env=environ | {"HOME": str(tmp_path), "PORT": url.rsplit(":", 1)[1]},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        await _until_it_answers(url, process)
        async with peer(url) as client:
            turn = await ask(client, "hello")
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            _, told = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert turn.text == "from the example"
    assert hermes.requests[0]["messages"][0]["content"] == "Answer in one sentence."
    assert process.returncode == 0, told
    assert b"Traceback" not in told


async def _until_it_answers(url: str, process: asyncio.subprocess.Process) -> None:
    async def answers_or_ended() -> bool:
        with contextlib.suppress(httpx.TransportError):
            await http.get(f"{url}/.well-known/agent-card.json")
            return True
        return process.returncode is not None

    async with httpx.AsyncClient() as http:
        await until(answers_or_ended, 60)
