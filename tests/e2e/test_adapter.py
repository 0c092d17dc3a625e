"""The platform's adapter in front of the real Hermes and the demo model, on both transports."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from unittest import mock

import pytest
import pytest_asyncio

from tests.support.serving import free_port
from tests.support.stack import environment, processes, up
from tests.support.waiting import until
from tests.support.workspace_platform import AdapterConfig, Workspace, platform, workspace_file

NOTES = Path(__file__).parents[1] / "support" / "mcp_notes.py"

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapter")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def environ(folder: Path) -> AsyncIterator[dict[str, str]]:
    """The environment of the platform's process, while a Hermes runs beside it."""
    (folder / "workspace").mkdir()
    (folder / "configs").mkdir()
    (folder / "outside").mkdir()
    servers = {"notes": {"command": sys.executable, "args": [str(NOTES)]}}
    (folder / "configs" / "config.yaml").write_text(json.dumps({"mcp_servers": servers}))
    environ = environment(
        folder / "state",
        MOLECULE_A2A_PLATFORM_SHARED_SECRET="a-shared-secret-of-the-tests",
        MOLECULE_A2A_PLATFORM_CALLBACKS="127.0.0.1",
        API_SERVER_KEY="an-api-key-of-the-tests",
        WORKSPACE_CONFIG_PATH=str(folder / "configs"),
        MOLECULE_HERMES_READABLE=str(NOTES),
        MOLECULE_HERMES_WRITABLE=str(folder / "outside"),
    )
    async with up(environ):
        yield environ | {
            "MOLECULE_A2A_CALLBACK_PORT": str(free_port()),
            "MOLECULE_HERMES_WORKSPACE": str(folder / "workspace"),
        }


@asynccontextmanager
async def workspace(
    environ: dict[str, str], name: str, *, plugin: bool = True
) -> AsyncIterator[Workspace]:
    enabled = {"MOLECULE_A2A_PLATFORM_ENABLED": "true" if plugin else "false"}
    with mock.patch.dict(os.environ, environ | enabled, clear=True):
        async with platform(AdapterConfig(workspace_id=name)) as running:
            yield running


@pytest.mark.parametrize("plugin", [True, False], ids=["plugin", "chat"])
async def test_two_turns_remember_each_other_without_a_context(
    environ: dict[str, str], plugin: bool
) -> None:
    async with workspace(environ, f"memory-{plugin}", plugin=plugin) as running:
        first = await running.send("my fruit is a quince")
        again = await running.send("which fruit?")
        other = await running.send("hello", metadata={"source_workspace_id": "other"})
        transcript = await running.adapter.transcript_lines(limit=2)
        everything = await running.adapter.transcript_lines()
        rest = await running.adapter.transcript_lines(since=transcript["cursor"])
        nothing = await running.adapter.transcript_lines(since=everything["cursor"])
    assert "You said: my fruit is a quince" in first.text
    assert "quince" in again.text
    assert "quince" not in other.text
    assert first.kinds == again.kinds == ["text"]
    assert first.metadata["usage"]["totalTokens"] > 0
    assert [line["role"] for line in transcript["lines"]] == ["user", "assistant"]
    assert transcript["supported"] is True
    assert transcript["lines"] + rest["lines"] == everything["lines"]
    assert nothing["lines"] == []


async def test_the_agent_has_the_tools_of_the_workspaces_mcp_servers(
    environ: dict[str, str],
) -> None:
    async with workspace(environ, "mcp") as running:
        reply = await running.send('demo:call=mcp_notes_shout {"text": "quince"}')
    assert "QUINCE" in reply.text


async def test_earlier_turns_reach_a_hermes_that_lost_them(environ: dict[str, str]) -> None:
    history = [
        {"role": "user", "parts": [{"kind": "text", "text": "my fruit is a quince"}]},
        {"role": "agent", "parts": [{"kind": "text", "text": "noted"}]},
    ]
    async with workspace(environ, "history", plugin=False) as running:
        first = await running.send("which fruit?", metadata={"history": history})
        again = await running.send("demo:say so", metadata={"history": history})
        transcript = await running.adapter.transcript_lines()
    assert "quince" in first.text
    assert again.text == "so"
    said = [line["content"] for line in transcript["lines"] if line["role"] == "user"]
    assert len(said) == 2
    assert "quince" in said[0]
    assert "quince" not in said[1]


@pytest.mark.parametrize("plugin", [True, False], ids=["plugin", "chat"])
async def test_a_failure_is_not_blank(environ: dict[str, str], plugin: bool) -> None:
    async with workspace(environ, f"failure-{plugin}", plugin=plugin) as running:
        reply = await running.send("demo:fail=401")
        empty = await running.send(" ")
    assert "auth" in reply.text
    assert reply.failure["hint"] in reply.text
    assert reply.failure["kind"] == "auth"
    assert empty.text == "(empty prompt — nothing to do)"


async def test_a_dangerous_command_is_denied_and_the_reply_says_so(
    environ: dict[str, str], folder: Path
) -> None:
    victim = folder / "outside" / "victim"
    victim.mkdir()
    async with workspace(environ, "denied") as running:
        reply = await running.send(f"demo:run rm -rf {victim}")
        question = await running.send("demo:ask Which colour?")
    assert victim.exists()
    assert "denied" in reply.text
    assert f"rm -rf {victim}" in reply.text
    assert reply.kinds == ["text"]
    assert "Nobody can be asked" in question.text


async def test_a_file_of_the_workspace_reaches_hermes_and_one_comes_back(
    environ: dict[str, str], folder: Path
) -> None:
    (folder / "workspace" / "data.bin").write_bytes(b"\x00\x01binary quince\xff")
    (folder / "workspace" / "notes.txt").write_text("a quince")
    async with workspace(environ, "files") as running:
        text = await running.send("what is in it?", workspace_file("/notes.txt"))
        binary = await running.send("demo:read", workspace_file("/data.bin", "data.bin"))
        outside = await running.send("demo:read", workspace_file("/../state/tasks.db"))
        delivered = await running.send("demo:file=plum.txt a plum")
    assert "a quince" in text.text
    assert "binary quince" in binary.text
    assert outside.failure["kind"] == "bad_request"
    assert delivered.kinds == ["text", "file"]
    assert delivered.result["parts"][1]["file"]["name"] == "plum.txt"


async def test_a_reply_has_a_tool_trace(environ: dict[str, str]) -> None:
    async with workspace(environ, "trace") as running:
        reply = await running.send("demo:run echo a-quince")
    (entry,) = reply.metadata["tool_trace"]
    assert entry["tool"] == "terminal"
    assert "echo a-quince" in entry["input"]
    assert entry["output_preview"] == "a-quince"
    assert reply.kinds == ["text"]


async def test_a_canceled_turn_stops_the_tool_and_is_answered(environ: dict[str, str]) -> None:
    mark = "7919.5"
    async with workspace(environ, "cancel") as running:
        sending = asyncio.create_task(running.send(f"demo:run sleep {mark}"))
        await until(lambda: processes(mark), 60)
        await running.cancel()
        reply = await sending
        await until(lambda: not processes(mark), 20)
        after = await running.send("demo:say still there")
    assert reply.text.endswith("(canceled)")
    assert after.text == "still there"


async def test_smoke_mode_needs_no_gateway(tmp_path: Path) -> None:
    async with workspace(environment(tmp_path, MOLECULE_SMOKE_MODE="1"), "smoke") as running:
        reply = await running.send("hello")
    assert "unreachable" in reply.text
    assert "MOLECULE_SMOKE_MODE" in reply.text
