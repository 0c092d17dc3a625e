"""The shared secret alone gives nobody the replies or the control of a turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from molecule_hermes.plugin.settings import SECRET
from molecule_hermes.wire import (
    ANSWER_PATH,
    CANCEL_PATH,
    INBOUND_PATH,
    SECRET_HEADER,
    Approval,
    Callback,
)
from tests.support.gateway import CallbackServer, callback_server, running_hermes
from tests.support.peers import ask, peer
from tests.support.serving import free_port
from tests.support.stack import Stack, environment, up

pytestmark = [pytest.mark.hermes, pytest.mark.asyncio(loop_scope="module")]

LEAKED = "a-shared-secret-that-leaked"
DANGEROUS = "demo:run rm -rf {}"


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    writable = {"MOLECULE_HERMES_WRITABLE": str(tmp_path_factory.mktemp("outside"))}
    return environment(tmp_path_factory.mktemp("callbacks"), **{SECRET: LEAKED}, **writable)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(environ: dict[str, str]) -> AsyncIterator[Stack]:
    async with up(environ) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def attacker() -> AsyncIterator[CallbackServer]:
    async with callback_server() as server:
        yield server


async def post(environ: dict[str, str], path: str, body: dict[str, Any]) -> tuple[int, Any]:
    url = f"http://127.0.0.1:{environ['MOLECULE_A2A_PLATFORM_PORT']}{path}"
    headers = {SECRET_HEADER: LEAKED}
    timeout = aiohttp.ClientTimeout(total=10)
    async with (
        aiohttp.ClientSession(timeout=timeout) as http,
        http.post(url, json=body, headers=headers) as answer,
    ):
        return answer.status, await answer.json()


def inbound(callback_url: str, content: str = "hello") -> dict[str, Any]:
    names = {"chat_id": "victims", "peer_id": "victim", "message_id": "forged"}
    return names | {"content": content, "callback_url": callback_url}


async def test_the_replies_of_a_chat_go_to_no_other_address(
    stack: Stack, environ: dict[str, str], attacker: CallbackServer
) -> None:
    port = environ["MOLECULE_A2A_CALLBACK_PORT"]
    others = (
        attacker.url,
        f"http://localhost:{port}/a2a/reply",
        f"http://127.0.0.1:{port}@attacker.example/a2a/reply",
        "http://10.0.0.7/a2a/reply",
    )
    for url in others:
        status, body = await post(environ, INBOUND_PATH, inbound(url))
        assert (status, body["kind"]) == (403, "callback_refused"), url
    async with peer(stack.url) as client:
        assert (await ask(client, "still there?")).states[-1] == "COMPLETED"
    assert attacker.taken == []


async def test_the_answer_of_the_bridge_itself_is_accepted(
    stack: Stack, environ: dict[str, str]
) -> None:
    for answer, left in (("deny", True), ("once", False)):
        victim = Path(environ["MOLECULE_HERMES_WRITABLE"], answer)
        victim.mkdir()
        async with peer(stack.url) as client, asyncio.timeout(60):
            asked = await ask(client, DANGEROUS.format(victim))
            assert asked.states[-1] == "INPUT_REQUIRED"
            answered = await ask(client, answer, asked.context_id, asked.task_id)
        assert answered.states[-1] == "COMPLETED"
        assert victim.exists() is left


async def test_an_answer_or_a_cancel_without_the_name_of_the_bridge_is_refused(
    tmp_path: Path,
) -> None:
    """On the wire, where the names of message and question are known."""
    victim = tmp_path / "victim"
    victim.mkdir()
    async with running_hermes(tmp_path / "home") as hermes, callback_server() as bridge:
        body = inbound(bridge.url, DANGEROUS.format(victim)) | {"bridge": "the-first"}
        assert (await hermes.post(INBOUND_PATH, body))[0] == 202
        (asked,) = await bridge.until(lambda: _approvals(bridge))
        names = {"message_id": "forged", "question_id": asked.body.question_id, "answer": "once"}
        for forged in ({}, {"bridge": ""}, {"bridge": "the-second"}):
            for path in (ANSWER_PATH, CANCEL_PATH):
                status, told = await hermes.post(path, names | forged)
                assert (status, told["kind"]) == (403, "other_bridge")
        assert victim.exists()
        assert (await hermes.post(ANSWER_PATH, names | {"bridge": "the-first"}))[0] == 200
        _, final = await bridge.final("forged")
        assert final.status == "completed"
        assert not victim.exists()
        # An older bridge names itself nowhere.
        old = await hermes.say(bridge, "demo:hang")
        assert (await hermes.cancel(old))[0] == 200
        assert (await bridge.final(old))[1].status == "canceled"
        # Nobody handed an address over, and none is allowed by name: loopback only.
        status, told = await hermes.post(INBOUND_PATH, inbound("http://10.0.0.7/a2a/reply"))
        assert (status, told["kind"]) == (403, "callback_refused")


def _approvals(server: CallbackServer) -> list[Callback]:
    return [c for c in server.taken if isinstance(c.body, Approval)]


async def test_a_second_bridge_is_served_only_where_it_is_allowed(
    stack: Stack, environ: dict[str, str], tmp_path: Path
) -> None:
    second = environment(tmp_path / "second", **{SECRET: LEAKED})
    second["MOLECULE_A2A_PLATFORM_PORT"] = environ["MOLECULE_A2A_PLATFORM_PORT"]
    options = ("--transport", "plugin")
    async with up(second, *options, command="serve", ready=False) as refused:
        report = await refused.until_ready(False)
        assert "does not call this bridge back" in str(report)
    port = free_port()
    allowing = environment(
        tmp_path / "first",
        **{SECRET: LEAKED, "MOLECULE_A2A_PLATFORM_CALLBACKS": f"[::1]:1,127.0.0.1:{port}"},
    )
    second["MOLECULE_A2A_CALLBACK_PORT"] = str(port)
    second["MOLECULE_A2A_PLATFORM_PORT"] = allowing["MOLECULE_A2A_PLATFORM_PORT"]
    async with up(allowing) as first, up(second, *options, command="serve") as beside:
        for bridge in (first, beside):
            async with peer(bridge.url) as client:
                assert (await ask(client, "hello")).states[-1] == "COMPLETED"
