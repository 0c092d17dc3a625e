"""`molecule-hermes resume`: a peer's conversation in Hermes's own CLI."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from molecule_hermes.hermes.demo_model import demo_model
from tests.support.operator_hermes import run
from tests.support.peers import ask, peer
from tests.support.stack import Stack, environment, up
from tests.support.terminal import AtTerminal
from tests.support.waiting import until

TOKENS = {"alice": "alice-token-of-the-tests", "bob": "bob-token-of-the-tests"}
COMMAND = (sys.executable, "-m", "molecule_hermes", "resume")

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Operator:
    def __init__(self, stack: Stack, environ: dict[str, str]) -> None:
        self.stack = stack
        self.environ = environ

    async def resume(self, *arguments: str) -> tuple[int, str, str]:
        return await run(*COMMAND, *arguments, env=self.environ)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def operator(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Operator]:
    async with demo_model() as url:
        environ = environment(
            tmp_path_factory.mktemp("resume") / "stack",
            HERMES_CUSTOM_BASE_URL=url,
            HERMES_INFERENCE_MODEL="molecule-demo",
            HERMES_CUSTOM_API_KEY="a-key-of-the-tests",
            MOLECULE_HERMES_PEER_TOKENS=",".join(map(":".join, TOKENS.items())),
        )
        async with up(environ) as stack:
            yield Operator(stack, environ)


async def test_what_is_said_in_the_cli_is_known_to_the_peers_next_turn(operator: Operator) -> None:
    async with peer(operator.stack.url, token=TOKENS["alice"]) as client:
        await ask(client, "I like plums", "both")
        code, out, err = await operator.resume("both", "-q", "The operator likes pears")
        assert code == 0, err
        assert "Earlier in this conversation you said: I like plums" in out
        said = (await ask(client, "What do we like?", "both")).text
    assert "I like plums" in said
    assert "The operator likes pears" in said


async def test_the_cli_is_as_confined_as_the_agent(operator: Operator) -> None:
    secret = Path(operator.environ["MOLECULE_HERMES_STATE_DIR"]) / "operator.json"
    assert secret.is_file()
    async with peer(operator.stack.url, token=TOKENS["alice"]) as client:
        await ask(client, "Hello", "confined")
    text = f"demo:run cat {secret} || echo refused"
    code, out, err = await operator.resume("confined", "-q", text)
    assert code == 0, err
    assert "refused" in out
    assert "token" not in out.replace(text, "")


@asynccontextmanager
async def opened(operator: Operator, context: str, text: str) -> AsyncIterator[Process]:
    """The command, once it has started Hermes's CLI."""
    process = await asyncio.create_subprocess_exec(
        *(*COMMAND, context, "-q", text),
        env=operator.environ,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await until(lambda: psutil.Process(process.pid).children(), 60)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_the_peers_messages_wait_while_the_cli_runs(operator: Operator) -> None:
    async with peer(operator.stack.url, token=TOKENS["alice"]) as client:
        await ask(client, "Hello", "waits")
        async with opened(operator, "waits", "demo:slow=0.5\ndemo:words=30") as process:
            code, _, err = await operator.resume("waits", "-q", "Me, too")
            assert (code, "mid-turn" in err) == (1, True)
            turn = await ask(client, "Is it my turn?", "waits")
            out, _ = await process.communicate()
            assert process.returncode == 0
    assert b"word29" in out
    assert "waiting for its turn" in turn.progress
    assert "demo:words=30" in turn.text


async def test_a_cli_that_is_killed_lets_the_peer_go_on(operator: Operator) -> None:
    async with peer(operator.stack.url, token=TOKENS["alice"]) as client:
        await ask(client, "Hello", "killed")
        async with opened(operator, "killed", "demo:hang") as process:
            waiting = asyncio.create_task(ask(client, "Still there?", "killed"))
            process.send_signal(signal.SIGKILL)
            await process.wait()
            async with asyncio.timeout(60):
                assert (await waiting).states[-1] == "COMPLETED"


async def test_no_conversation_is_opened_while_its_agent_works(operator: Operator) -> None:
    async with peer(operator.stack.url, token=TOKENS["alice"]) as client:
        await ask(client, "Hello", "works")
        working = asyncio.create_task(ask(client, "demo:slow=0.5\ndemo:words=20", "works"))
        code, _, err = await operator.resume("works", "-q", "Hello")
        assert (code, "mid-turn" in err) == (1, True)
        assert (await working).states[-1] == "COMPLETED"


async def test_a_context_without_a_conversation_is_told(operator: Operator) -> None:
    code, _, err = await operator.resume("never-used", "-q", "Hello")
    assert code == 1
    assert "there is no conversation in context" in err


async def test_a_context_of_two_peers_needs_the_peers_name(operator: Operator) -> None:
    for name, token in TOKENS.items():
        async with peer(operator.stack.url, token=token) as client:
            await ask(client, f"I am {name}", "same")
    code, _, err = await operator.resume("same", "-q", "Who?")
    assert code == 1
    assert "--peer" in err
    code, out, err = await operator.resume("same", "--peer", "bob", "-q", "Who?")
    assert code == 0, err
    assert "I am bob" in out


async def test_the_operator_talks_at_a_terminal(operator: Operator) -> None:
    async with peer(operator.stack.url, token=TOKENS["alice"]) as client:
        await ask(client, "I like plums", "typed")
        env = {**operator.environ, "TERM": "xterm"}
        async with AtTerminal("resume", "typed", env=env) as terminal:
            await terminal.shows("plums")
            terminal.type("Pears\r")
            await terminal.shows("You said: Pears")
            await terminal.shows("Earlier in this conversation you said: I like plums")
            terminal.type("/exit\r")
            assert await terminal.ends() == 0
        code, again, err = await operator.resume("typed", "-q", "And now?")
        assert code == 0, err
        assert "Pears" in again
        said = (await ask(client, "What do we like?", "typed")).text
        assert "Pears" in said
