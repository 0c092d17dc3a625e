"""`molecule-hermes handoff CONTEXT --to PLATFORM`: a peer's conversation goes on elsewhere."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from molecule_hermes.hermes.demo_model import demo_model
from tests.support.deliveries import until_there_is
from tests.support.gateway import SECRET, Hermes, running_hermes
from tests.support.operator_hermes import rows, run
from tests.support.peers import ask, peer
from tests.support.second_platform import PAGER, plant, said
from tests.support.serving import free_port
from tests.support.stack import Stack, environment, up
from tests.support.waiting import until

TOKENS = {"alice": "alice-token-of-the-tests", "bob": "bob-token-of-the-tests"}

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Operator:
    """The operator of a Hermes with a second platform, and of a bridge beside it."""

    def __init__(self, hermes: Hermes, environ: dict[str, str]) -> None:
        self.hermes = hermes
        self.environ = environ
        self.url = f"http://127.0.0.1:{environ['MOLECULE_HERMES_PORT']}"

    @asynccontextmanager
    async def bridge(self) -> AsyncIterator[Stack]:
        async with up(self.environ, "--transport", "plugin", command="serve") as stack:
            yield stack

    async def command(self, *arguments: str, **more: str) -> tuple[int, str, str]:
        command = (sys.executable, "-m", "molecule_hermes", "handoff", *arguments)
        return await run(*command, env={**self.environ, **more})

    async def says(self, text: str, context: str, name: str = "alice") -> str:
        async with peer(self.url, token=TOKENS[name]) as client:
            return (await ask(client, text, context)).text


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def operator(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Operator]:
    home = tmp_path_factory.mktemp("hermes")
    async with running_hermes(home, over=plant(home)) as hermes:
        environ = environment(
            tmp_path_factory.mktemp("bridge"),
            MOLECULE_A2A_PLATFORM_SHARED_SECRET=SECRET,
            MOLECULE_HERMES_PEER_TOKENS=",".join(map(":".join, TOKENS.items())),
            MOLECULE_HERMES_HANDOFF_TIMEOUT="15",
        )
        yield Operator(hermes, {**environ, "MOLECULE_A2A_PLATFORM_PORT": str(hermes.port)})


async def test_the_platform_goes_on_and_the_peer_begins_anew(operator: Operator) -> None:
    async with operator.bridge():
        await operator.says("I like plums", "given")
        code, out, err = await operator.command("given", "--to", PAGER)
        assert (code, out.strip()) == (0, "given"), err
        assert "Earlier in this conversation you said: I like plums" in said(operator.hermes.home)
        async with peer(operator.url, token=TOKENS["alice"]) as client:
            turn = await ask(client, "What do I like?", "given")
        assert "plums" not in turn.text
        assert any("handed over to pager" in text for text in turn.progress)
    code, out, _ = await operator.command("--list")
    assert code == 0
    assert "completed" in out
    assert f"→ {PAGER}" in out


async def test_what_cannot_be_handed_on_fails_with_the_reason(operator: Operator) -> None:
    async with operator.bridge():
        await operator.says("I like pears", "kept")
        await operator.says("I like figs", "kept", "bob")
        for arguments, reason in (
            (("kept", "--to", PAGER), "more than one conversation"),
            (("nowhere", "--to", PAGER), "there is no conversation in context 'nowhere'"),
            (("kept", "--to", "homeless", "--peer", "alice"), "has no home channel"),
            (("kept", "--to", "bob", "--peer", "alice"), "not to a peer"),
        ):
            code, _, err = await operator.command(*arguments)
            assert (code, reason in err) == (1, True), err
        code, _, err = await operator.command("kept", "--to", "fax", "--peer", "alice")
        assert code == 1
        assert "unknown peer 'fax'; known are alice, bob" in err
        assert "connected with a home channel: pager" in err
        assert "I like pears" in await operator.says("What do I like?", "kept")
        code, _, err = await operator.command("kept", "--to", PAGER, "--peer", "bob")
        assert code == 0, err
        assert "I like pears" in await operator.says("And now?", "kept"), "it is another's"


async def test_it_is_refused_while_the_agent_is_mid_turn(
    operator: Operator, tmp_path: Path
) -> None:
    begun, go_on = tmp_path / "begun", tmp_path / "go-on"
    async with operator.bridge():
        turn = f"demo:run touch {begun}; {until_there_is(go_on).removeprefix('demo:run ')}"
        working = asyncio.create_task(operator.says(turn, "at-work"))
        await until(begun.exists, 30)
        code, _, err = await operator.command("at-work", "--to", PAGER)
        assert (code, "mid-turn" in err) == (1, True), err
        go_on.touch()
        await working


async def test_a_platform_that_takes_too_long_leaves_it_with_the_peer(operator: Operator) -> None:
    hangs = operator.hermes.home / "pager-hangs"
    async with operator.bridge():
        await operator.says("I like quinces", "slow")
        hangs.touch()
        try:
            code, _, err = await operator.command("slow", "--to", PAGER)
        finally:
            hangs.unlink()
        assert (code, "did not take it within" in err) == (1, True), err
        assert "I like quinces" in await operator.says("What do I like?", "slow")


async def test_the_next_bridge_ends_what_a_killed_one_has_left(operator: Operator) -> None:
    hangs = operator.hermes.home / "pager-hangs"
    async with operator.bridge() as stack:
        await operator.says("I like dates", "left")
        hangs.touch()
        try:
            handing = asyncio.create_task(operator.command("left", "--to", PAGER))
            await until(lambda: "I like dates" in said(operator.hermes.home), 30)
            await stack.stop(signal.SIGKILL)
        finally:
            hangs.unlink()
    async with operator.bridge():
        code, _, err = await handing
        assert (code, "it is not known whether pager has" in err) == (1, True), err


async def test_a_conversation_of_up_goes_on_at_a_platform_of_its_hermes(tmp_path: Path) -> None:
    home = tmp_path / "stack" / "hermes"
    home.mkdir(parents=True)
    channel = {"platform": "webhook", "chat_id": "room-1", "name": "Room"}
    extra = {"host": "127.0.0.1", "port": free_port()}
    webhook = {"enabled": True, "home_channel": channel, "extra": extra}
    (home / "config.yaml").write_text(json.dumps({"platforms": {"webhook": webhook}}))
    async with demo_model() as url:
        environ = environment(
            tmp_path / "stack",
            HERMES_CUSTOM_BASE_URL=url,
            HERMES_INFERENCE_MODEL="molecule-demo",
            HERMES_CUSTOM_API_KEY="a-key-of-the-tests",
        )
        async with up(environ) as stack, peer(stack.url) as client:
            await ask(client, "I like plums", "given")
            command = (sys.executable, "-m", "molecule_hermes", "handoff", "given")
            code, _, err = await run(*command, "--to", "webhook", env=environ)
            assert code == 0, err
            assert "plums" not in (await ask(client, "What do I like?", "given")).text
    query = (
        "SELECT content FROM messages JOIN sessions ON sessions.id = session_id "
        "WHERE source = 'webhook' AND role = 'assistant' ORDER BY messages.id"
    )
    assert "I like plums" in rows(home, query)[-1][0]
