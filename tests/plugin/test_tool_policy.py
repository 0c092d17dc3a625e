"""The toolsets of a message, held by Hermes's hook before each call of a tool."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from gateway.session_context import clear_session_vars, set_session_vars

from molecule_hermes.plugin import hermes_api
from molecule_hermes.plugin.settings import PLATFORM
from molecule_hermes.plugin.subagents import SubagentRecord, Subagents
from molecule_hermes.plugin.tool_policy import ToolPolicy
from molecule_hermes.wire import Tool
from tests.support.gateway import CallbackServer, Hermes, callback_server, running_hermes

NOTES = Path(__file__).parents[1] / "support" / "mcp_notes.py"

real = [pytest.mark.hermes, pytest.mark.asyncio(loop_scope="module")]


def marked(test: Any) -> Any:
    for mark in real:
        test = mark(test)
    return test


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hermes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Hermes]:
    server = {"command": sys.executable, "args": [str(NOTES)]}
    # Otherwise each script of execute_code waits for an approval.
    over = {"mcp_servers": {"notes": server}, "approvals": {"mode": "off"}}
    async with running_hermes(tmp_path_factory.mktemp("policy"), over=over) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def callbacks() -> AsyncIterator[CallbackServer]:
    async with callback_server() as server:
        yield server


def ends(callbacks: CallbackServer, message: str) -> list[tuple[str, bool | None]]:
    bodies = [c.body for c in callbacks.of(message)]
    return [(b.tool, b.ok) for b in bodies if isinstance(b, Tool) and b.phase == "end"]


async def run(
    hermes: Hermes, callbacks: CallbackServer, text: str, toolsets: tuple[str, ...] | None
) -> tuple[str, list[tuple[str, bool | None]]]:
    message = await hermes.say(callbacks, text, toolsets=toolsets)
    callback, final = await callbacks.final(message, 90)
    assert final.status == "completed", callback
    return callback.content, ends(callbacks, message)


def call(tool: str, **arguments: Any) -> str:
    return f"demo:call={tool} {json.dumps(arguments)}"


@marked
async def test_a_tool_outside_of_the_toolsets_is_refused_and_the_agent_is_told(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    mark = hermes.work / "made"
    text, tools = await run(hermes, callbacks, f"demo:run touch {mark}", ("web", "todo"))
    assert "'terminal' was refused" in text
    assert "allowed: web, todo" in text
    assert tools == [("terminal", False)]
    assert not mark.exists()


@marked
async def test_a_tool_of_the_toolsets_runs_and_without_toolsets_all_do(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    for toolsets in (("web", "terminal"), None, ("hermes-telegram",), ("debugging",)):
        text, tools = await run(hermes, callbacks, "demo:run echo it-ran", toolsets)
        assert "it-ran" in text, toolsets
        assert tools == [("terminal", True)]


@marked
async def test_an_empty_list_and_unknown_names_allow_nothing(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    for toolsets in ((), ("no-such-toolset",)):
        text, tools = await run(hermes, callbacks, "demo:run echo it-ran", toolsets)
        assert "was refused" in text
        assert tools == [("terminal", False)]


@marked
async def test_the_tools_that_hermes_itself_runs_are_refused_too(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    """memory, todo and delegate_task are run by the agent's loop and not by the registry."""
    for tool, arguments in (
        ("memory", {"action": "add", "target": "memory", "content": "POISON"}),
        ("todo", {"todos": [{"id": "1", "content": "x", "status": "pending"}]}),
        ("delegate_task", {"goal": "demo:words=3"}),
        ("session_search", {"query": "x"}),
    ):
        text, tools = await run(hermes, callbacks, call(tool, **arguments), ("terminal",))
        assert f"'{tool}' was refused" in text, tool
        assert tools == [(tool, False)]
    kept = hermes.home / "memories" / "MEMORY.md"
    assert "POISON" not in (kept.read_text() if kept.exists() else "")


@marked
async def test_a_subagent_is_bound_by_the_toolsets_of_its_turn(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    mark = hermes.work / "made-by-subagent"
    tasks = [{"goal": f"demo:run touch {mark}-{n}"} for n in range(2)]
    one = call("delegate_task", goal=f"demo:run touch {mark}-one")
    for asked in (one, call("delegate_task", tasks=tasks)):
        text, tools = await run(hermes, callbacks, asked, ("delegation",))
        assert "'terminal' was refused" in text
        assert ("delegate_task", True) in tools
    assert not list(hermes.work.glob("made-by-subagent*"))
    text, _ = await run(hermes, callbacks, one, ("delegation", "terminal"))
    assert Path(f"{mark}-one").exists(), text


@marked
async def test_a_script_that_calls_tools_is_bound(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    mark = hermes.work / "made-by-script"
    code = f"from hermes_tools import terminal\nprint(terminal('touch {mark}'))"
    script = call("execute_code", code=code)
    text, _ = await run(hermes, callbacks, script, ("code_execution",))
    assert "'terminal' was refused" in text, text
    assert not mark.exists()
    text, _ = await run(hermes, callbacks, script, ("code_execution", "terminal"))
    assert mark.exists(), text


@marked
async def test_a_tool_of_an_mcp_server_belongs_to_the_servers_toolset(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    asked = call("mcp__notes__shout", text="hello")
    for toolsets, runs in ((("notes",), True), (("mcp-notes",), True), (("terminal",), False)):
        text, _ = await run(hermes, callbacks, asked, toolsets)
        assert ("HELLO" in text) is runs, text
        assert ("was refused" in text) is not runs


@marked
async def test_turns_at_once_are_each_bound_by_their_own_toolsets(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    policies = [("terminal",), ("web",), None, ("file",)] * 3
    results = await asyncio.gather(
        *(run(hermes, callbacks, "demo:run echo it-ran", each) for each in policies)
    )
    for toolsets, (text, _) in zip(policies, results, strict=True):
        allowed = toolsets is None or "terminal" in toolsets
        assert ("it-ran" in text, "was refused" in text) == (allowed, not allowed), text


def decide(
    policy: ToolPolicy,
    tool: str = "terminal",
    *,
    message: str = "",
    platform: str = PLATFORM,
    **given: Any,
) -> dict[str, str] | None:
    tokens = set_session_vars(platform=platform, message_id=message) if message else []
    try:
        return policy.decide(tool_name=tool, **given)
    finally:
        clear_session_vars(tokens)


def test_what_cannot_be_decided_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = ToolPolicy(Subagents())
    policy.begin("m", ("terminal",))
    assert decide(policy, message="m") is None

    def fail(names: object) -> frozenset[str]:
        raise RuntimeError

    monkeypatch.setattr(hermes_api, "tools_of", fail)
    refused = decide(policy, message="m")
    assert refused is not None
    assert refused["action"] == "block"


def test_a_message_that_is_no_longer_known_is_refused_and_one_in_use_stays_known() -> None:
    policy = ToolPolicy(Subagents(), remember=2)
    policy.begin("used", None)
    for number in range(5):
        policy.begin(f"m-{number}", None)
        assert decide(policy, message="used") is None
    assert decide(policy, message="m-0") is not None
    assert decide(policy, message="m-4") is None


def test_messages_of_other_platforms_and_their_subagents_are_left_alone() -> None:
    subagents = Subagents()
    policy = ToolPolicy(subagents)
    policy.begin("m", ("web",))
    assert decide(policy, message="m", platform="telegram") is None
    assert decide(policy) is None
    subagents.add("sa-0-known", SubagentRecord("", "sa-0-known", "goal"))
    assert decide(policy, task_id="sa-0-known") is None
    assert decide(policy, task_id="sa-0-lost") is not None
    subagents.add("session", SubagentRecord("m", "sa-1", "goal"))
    assert decide(policy, session_id="session") is not None


def test_looking_up_tools_is_allowed_and_calling_one_unseen_is_not() -> None:
    policy = ToolPolicy(Subagents())
    policy.begin("m", ("web",))
    assert decide(policy, "tool_search", message="m") is None
    assert decide(policy, "tool_describe", message="m") is None
    assert decide(policy, "tool_call", message="m") is not None


def test_the_hook_comes_before_those_of_other_plugins() -> None:
    class Manager:
        def __init__(self) -> None:
            self._hooks: dict[str, list[Any]] = {"pre_tool_call": [print]}

    class Context:
        _manager = Manager()

        def register_hook(self, name: str, callback: Any) -> None:
            self._manager._hooks[name].append(callback)

    policy = ToolPolicy(Subagents())
    policy.register(Context())
    assert Context._manager._hooks["pre_tool_call"] == [policy.decide, print]
