"""Hermes's own memory shows one peer nothing about another."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.peers import ask, peer
from tests.support.recorded_model import RecordedModel, recorded_model
from tests.support.stack import Stack, environment, up

pytestmark = pytest.mark.hermes

SHARED = {"session_search", "memory", "cronjob"}
ALICE, BOB = "alice-token-0123456789", "bob-token-0123456789"
ONE, TWO = f"alice:{ALICE}", f"alice:{ALICE},bob:{BOB}"


@asynccontextmanager
async def running(
    folder: Path, way: str, tokens: str, **more: str
) -> AsyncIterator[tuple[Stack, RecordedModel]]:
    memories = folder / "hermes" / "memories"
    memories.mkdir(parents=True, exist_ok=True)
    (memories / "MEMORY.md").write_text("alice's colour is teal")
    async with recorded_model() as model:
        environ = environment(
            folder,
            MOLECULE_A2A_PLATFORM_ENABLED="true" if way == "plugin" else "false",
            MOLECULE_HERMES_PEER_TOKENS=tokens,
            HERMES_CUSTOM_BASE_URL=model.url,
            HERMES_INFERENCE_MODEL="molecule-demo",
            **more,
        )
        async with up(environ) as stack:
            yield stack, model


@pytest.mark.parametrize("way", ["plugin", "chat"])
async def test_several_peers_share_no_memory_unless_the_operator_says_so(
    tmp_path: Path, way: str
) -> None:
    one_hermes = {"MOLECULE_HERMES_ISOLATION": "shared"}
    async with running(tmp_path, way, TWO, **one_hermes) as (stack, model):
        async with peer(stack.url, token=ALICE) as client:
            assert (await ask(client, "hello")).states[-1] == "COMPLETED"
        assert "terminal" in model.tools()
        assert not model.tools() & SHARED
        assert "teal" not in model.prompts()
        assert "session_search, memory, cronjob are disabled" in stack.output
        # Nor when the agent calls one that it was not offered, or delegates.
        async with peer(stack.url, token=BOB) as client:
            await ask(client, 'demo:call=session_search {"query": "hello"}')
            await ask(client, 'demo:call=delegate_task {"goal": "hello"}')
        assert model.results("session_search")
        assert not any("hello" in result for result in model.results("session_search"))
        assert model.results("delegate_task")
        assert not model.tools() & SHARED
    config = (tmp_path / "hermes" / "config.yaml").read_text()
    assert "disabled_toolsets" not in config
    # What the operator changes counts from the next start, also back.
    shared = {"MOLECULE_HERMES_SHARED_MEMORY": "true"}
    async with running(tmp_path, way, TWO, **shared) as (stack, model):
        async with peer(stack.url, token=ALICE) as client:
            await ask(client, "hello again")
        assert model.tools() >= SHARED
        assert "teal" in model.prompts()
        assert "and session_search, memory, cronjob: one may learn" in stack.output


async def test_peers_kept_apart_have_memories_of_their_own(tmp_path: Path) -> None:
    """Over the plugin; `tests/e2e/test_isolation.py` tries to get at them over both transports."""
    search = 'demo:call=session_search {"query": "quince"}'
    remember = {"action": "add", "target": "memory", "content": "bob's colour is olive"}
    async with running(tmp_path, "plugin", TWO) as (stack, model):
        async with peer(stack.url, token=ALICE) as client:
            await ask(client, "my fruit is a quince")
            assert model.tools() >= SHARED
            await ask(client, search, "another")
        assert any("fruit" in result for result in model.results("session_search"))
        model.requests.clear()
        async with peer(stack.url, token=BOB) as client:
            await ask(client, search)
            await ask(client, f"demo:call=memory {json.dumps(remember)}")
        assert model.results("session_search")
        assert not any("fruit" in result for result in model.results("session_search"))
        assert "teal" not in model.prompts()
        for token, knows in ((ALICE, False), (BOB, True)):
            model.requests.clear()
            async with peer(stack.url, token=token) as client:
                await ask(client, "hello", "later")
            assert ("olive" in model.prompts()) is knows


async def test_a_single_peer_keeps_its_memory(tmp_path: Path) -> None:
    async with running(tmp_path, "plugin", ONE) as (stack, model):
        async with peer(stack.url, token=ALICE) as client:
            await ask(client, "hello")
        assert model.tools() >= SHARED
        assert "teal" in model.prompts()
