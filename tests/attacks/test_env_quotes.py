"""Hermes and the bridge read a key with a quote in Hermes's `.env` alike."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.peers import ask, peer
from tests.support.stack import environment, up

pytestmark = pytest.mark.hermes

KEY = "it's a key's \"key\" # 0123456789"


async def test_a_key_with_quotes_is_accepted_by_hermes(tmp_path: Path) -> None:
    home = tmp_path / "own-hermes"
    home.mkdir()
    quoted = KEY.replace('"', '\\"')
    (home / ".env").write_text(f'# mine\nAPI_SERVER_KEY="{quoted}"\n')
    environ = environment(tmp_path / "state", HERMES_HOME=str(home))
    async with (
        up(environ, "--transport", "chat") as stack,
        peer(stack.url) as client,
        asyncio.timeout(60),
    ):
        assert (await ask(client, "demo:say opened")).text == "opened"
    assert KEY not in stack.output
