"""Several approvals at once in the real gateway, without a bridge that answers in time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from molecule_hermes.wire import Approval, Notice
from tests.support.gateway import callback_server, running_hermes

pytestmark = pytest.mark.hermes

ROOT = Path(__file__).parents[2]


async def test_every_approval_that_hermes_gives_up_is_withdrawn(tmp_path: Path) -> None:
    servers = {
        name: {
            "command": sys.executable,
            "args": ["-m", "tests.support.mcp_publisher", name],
            "env": {"PYTHONPATH": str(ROOT)},
            "supports_parallel_tool_calls": True,
        }
        for name in ("alpha", "beta")
    }
    over = {"mcp_servers": servers, "approvals": {"timeout": 2}}
    calls = [f'demo:call=mcp__{name}__publish {{"text": "{name}"}}' for name in servers]
    async with callback_server() as callbacks, running_hermes(tmp_path, over=over) as hermes:
        message = await hermes.say(callbacks, "\n".join(calls))
        callback, final = await callbacks.final(message)
        assert final.status == "completed"
        bodies = [c.body for c in callbacks.of(message)]
        asked = [body.question_id for body in bodies if isinstance(body, Approval)]
        assert len(asked) == 2
        withdrawn = [b.withdraws for b in bodies if isinstance(b, Notice) and b.withdraws]
        assert sorted(withdrawn) == sorted(asked)
        assert "accept" not in callback.content
        for question_id in asked:
            assert (await hermes.answer(message, question_id, "once"))[0] == 404
