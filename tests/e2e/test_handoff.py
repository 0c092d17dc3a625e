"""`molecule-hermes handoff`: a conversation of the operator's Hermes goes on with a peer."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from a2a.client import Client
from a2a.types import ListTasksRequest, Task

from molecule_hermes.hermes.demo_model import demo_model
from molecule_hermes.hermes.model_choice import demo_choice
from tests.support.operator_hermes import chat, messages, rows, run, session_in
from tests.support.peers import ask, peer, reply_text, state
from tests.support.stack import Stack, environment, up

SAID = "the colour of the house is teal"
TOKENS = {"alice": "alice-token-of-the-tests", "bob": "bob-token-of-the-tests"}


class Operator:
    """The operator of a stack, with a Hermes of its own."""

    def __init__(self, stack: Stack, environ: dict[str, str], home: Path) -> None:
        self.stack = stack
        self.environ = environ
        self.home = home

    async def begin(self, said: str = SAID) -> str:
        return session_in(await chat(self.home, said))

    async def command(self, *arguments: str) -> tuple[int, str, str]:
        command = (sys.executable, "-m", "molecule_hermes", "handoff", *arguments)
        return await run(*command, env={**self.environ, "HERMES_HOME": str(self.home)})

    def state(self, session: str) -> tuple[Any, ...]:
        query = "SELECT handoff_state, handoff_error FROM sessions WHERE id = ?"
        return rows(self.home, query, session)[0]


def write_operators_home(home: Path, model_url: str) -> Path:
    home.mkdir(parents=True)
    (home / "config.yaml").write_text(json.dumps({"model": dict(demo_choice(model_url).block)}))
    return home


async def deliveries(client: Client, context: str) -> list[Task]:
    page = await client.list_tasks(ListTasksRequest(context_id=context, include_artifacts=True))
    return list(page.tasks)


@pytest.fixture(scope="module")
def tmp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("handoff")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def operator(tmp: Path) -> AsyncIterator[Operator]:
    async with demo_model() as url:
        environ = environment(
            tmp / "stack",
            HERMES_CUSTOM_BASE_URL=url,
            HERMES_INFERENCE_MODEL="molecule-demo",
            HERMES_CUSTOM_API_KEY="a-key-of-the-tests",
            MOLECULE_HERMES_PEER_TOKENS=",".join(map(":".join, TOKENS.items())),
        )
        home = write_operators_home(tmp / "operator", url)
        async with up(environ) as stack:
            yield Operator(stack, environ, home)


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_peer_goes_on_with_a_conversation_that_is_handed_over(operator: Operator) -> None:
    session = await operator.begin()
    before = messages(operator.home, session)
    code, out, err = await operator.command(session, "--to", "alice")
    assert code == 0, err
    context = out.strip()
    for shown in ("pending", "running", "completed"):
        assert shown in err
    async with peer(operator.stack.url, token=TOKENS["alice"]) as client:
        (task,) = await deliveries(client, context)
        assert state(task) == "COMPLETED"
        assert task.metadata["initiatedBy"] == "agent"
        assert task.metadata["cause"] == "handoff"
        assert SAID in reply_text(task)
        turn = await ask(client, "And now?", context)
        assert SAID in turn.text
    async with peer(operator.stack.url, token=TOKENS["bob"]) as client:
        assert await deliveries(client, context) == []
        assert SAID not in (await ask(client, "And now?", context)).text
        access = Path(operator.environ["MOLECULE_HERMES_STATE_DIR"]) / "operator.json"
        said = (await ask(client, f"demo:run cat {access} || echo refused")).text
        assert access.is_file()
        assert "refused" in said
        assert "token" not in said
    assert messages(operator.home, session) == before
    assert operator.state(session) == ("completed", None)


async def test_the_operator_sees_all_handoffs(operator: Operator) -> None:
    session = await operator.begin()
    code, context, _ = await operator.command(session, "--to", "alice")
    assert code == 0
    assert (await operator.command(session, "--to", "nobody"))[0] == 1
    code, out, _ = await operator.command("--list")
    assert code == 0
    lines = [line for line in out.splitlines() if session in line]
    assert ["completed" in line or "failed" in line for line in lines] == [True, True]
    assert context.strip() in lines[0]
    assert "unknown peer 'nobody'" in lines[1]


async def test_an_unknown_peer_is_a_failure_that_leaves_the_session_as_it_was(
    operator: Operator,
) -> None:
    session = await operator.begin()
    before = messages(operator.home, session)
    code, _, err = await operator.command(session, "--to", "nobody")
    assert code == 1
    assert "unknown peer 'nobody'; known are alice, bob" in err
    assert messages(operator.home, session) == before
    assert operator.state(session) == (None, None)


async def test_a_session_that_is_not_there_is_a_failure(operator: Operator) -> None:
    await operator.begin()
    code, _, err = await operator.command("20200101_no_such", "--to", "alice")
    assert code == 1
    assert "there is no session" in err


async def test_two_handoffs_of_a_session_at_once_are_one(operator: Operator) -> None:
    session = await operator.begin()
    both = await asyncio.gather(
        *(operator.command(session, "--to", each, "--context", "race") for each in TOKENS)
    )
    assert sorted(code for code, _, _ in both) == [0, 1]
    lost = next(err for code, _, err in both if code)
    assert "already" in lost
    assert operator.state(session) == ("completed", None)


async def test_a_conversation_with_a_running_turn_is_not_replaced(operator: Operator) -> None:
    session = await operator.begin()
    async with peer(operator.stack.url, token=TOKENS["alice"]) as client:
        await ask(client, "Hello", "busy")
        running = asyncio.create_task(ask(client, "demo:slow=0.5\ndemo:words=60", "busy"))
        try:

            async def works() -> bool:
                return any(state(task) == "WORKING" for task in await deliveries(client, "busy"))

            async with asyncio.timeout(30):
                while not await works():
                    await asyncio.sleep(0.05)
            code, _, err = await operator.command(session, "--to", "alice", "--context", "busy")
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    assert code == 1
    assert "mid-turn" in err
    assert operator.state(session)[0] == "failed"


async def test_arguments_that_are_missing_are_told(operator: Operator) -> None:
    assert (await operator.command())[0] == 2
    assert (await operator.command("some-session"))[0] == 2


async def test_without_a_bridge_there_is_no_handoff(operator: Operator, tmp: Path) -> None:
    operator = Operator(
        operator.stack, {**operator.environ, "MOLECULE_HERMES_STATE_DIR": str(tmp)}, operator.home
    )
    code, _, err = await operator.command("some-session", "--to", "alice")
    assert code == 1
    assert "no bridge runs" in err
