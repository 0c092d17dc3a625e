"""`MOLECULE_SMOKE_MODE=1 molecule-hermes up`: the bridge without Hermes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.peers import ask, peer
from tests.support.stack import Stack, environment, up


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with up(environment(tmp_path, MOLECULE_SMOKE_MODE="1"), ready=False) as stack:
        await stack.until_ready(False)
        yield stack


async def test_it_is_alive_but_never_ready_and_says_why(stack: Stack) -> None:
    async with httpx.AsyncClient(base_url=stack.url) as http:
        assert (await http.get("/livez")).status_code == 200
        assert (await http.get("/.well-known/agent-card.json")).status_code == 200
        ready = await http.get("/readyz")
        assert (await http.get("/startupz")).status_code == 503
    assert ready.status_code == 503
    assert "smoke mode" in ready.json()["parts"]["hermes"]["reason"]


async def test_a_turn_fails_with_a_hint_and_sigterm_ends_it_cleanly(stack: Stack) -> None:
    async with peer(stack.url) as client:
        turn = await ask(client, "hello?")
    assert turn.states[-1] == "FAILED"
    assert turn.failure["kind"] == "unreachable"
    assert turn.failure["retryable"] is False
    assert "MOLECULE_SMOKE_MODE" in turn.failure["hint"]
    assert psutil.Process(stack.process.pid).children(recursive=True) == []
    assert await stack.stop() == 0
    assert "smoke mode" in stack.output
    assert "Traceback" not in stack.output
