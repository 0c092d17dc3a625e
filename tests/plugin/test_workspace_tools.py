"""The platform's tools as tools of Hermes."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from molecule_hermes.plugin.tools import workspace
from tests.support.gateway import callback_server, running_hermes
from tests.support.recorded_model import recorded_model
from tests.support.waiting import until

DOUBLE = Path(__file__).parents[1] / "support" / "workspace_runtime"
NAMES = (
    "list_peers",
    "delegate_task",
    "delegate_task_async",
    "check_task_status",
    "send_message_to_user",
    "get_workspace_info",
    "commit_memory",
    "recall_memory",
)


@dataclass
class Context:
    """In the place of Hermes's plugin context."""

    tools: dict[str, Callable[..., str]] = field(default_factory=dict)
    schemas: dict[str, dict[str, Any]] = field(default_factory=dict)

    def register_tool(
        self, name: str, toolset: str, schema: dict[str, Any], handler: Any, *, is_async: bool
    ) -> None:
        assert (toolset, schema["name"], is_async) == ("workspace", name, False)
        self.tools[name], self.schemas[name] = handler, schema

    def call(self, name: str, **arguments: Any) -> str:
        return self.tools[f"workspace_{name}"](arguments, task_id="t")


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(DOUBLE))
    yield
    for name in ("molecule_runtime.a2a_tools", "molecule_runtime"):
        sys.modules.pop(name, None)


@pytest.fixture
def context(platform: None) -> Context:
    context = Context()
    workspace.register(context)
    return context


def test_every_tool_of_the_platform_is_registered(context: Context) -> None:
    assert list(context.tools) == [f"workspace_{name}" for name in NAMES]
    parameters = context.schemas["workspace_delegate_task"]["parameters"]
    assert set(parameters["properties"]) == {"workspace_id", "task"}
    assert parameters["required"] == ["workspace_id", "task"]
    assert context.schemas["workspace_recall_memory"]["parameters"]["required"] == []


def test_no_tool_has_the_name_or_the_toolset_of_one_of_hermess_own(context: Context) -> None:
    import model_tools  # noqa: F401 - registers Hermes's tools
    from tools.registry import registry
    from toolsets import TOOLSETS

    own = set(registry.get_all_tool_names())
    assert "delegate_task" in own
    assert not own & set(context.tools)
    assert "workspace" not in TOOLSETS


def test_without_the_platform_there_are_no_tools() -> None:
    context = Context()
    workspace.register(context)
    assert context.tools == {}


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import a_module_that_is_missing", "a_module_that_is_missing"),
        ("raise RuntimeError('no token=tok-0123456789')", "RuntimeError: no token=***"),
        ("raise SystemExit('WORKSPACE_ID is not set')", "SystemExit: WORKSPACE_ID is not set"),
    ],
)
def test_a_platform_that_cannot_be_imported_does_not_stop_the_plugin(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    code: str,
    reason: str,
) -> None:
    package = tmp_path / "molecule_runtime"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "a2a_tools.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    context = Context()
    try:
        with caplog.at_level(logging.WARNING):
            workspace.register(context)
    finally:
        sys.modules.pop("molecule_runtime", None)
    assert context.tools == {}
    assert reason in caplog.text


def test_a_tool_returns_what_the_platform_returns(context: Context) -> None:
    assert context.call("list_peers") == "- Researcher (w-2), online"
    assert context.call("delegate_task", workspace_id="w-2", task="add") == "w-2 did: add"
    submitted = context.call("delegate_task_async", workspace_id="w-2", task="add")
    assert json.loads(submitted) == {"task_id": "w-2-task-1", "status": "submitted"}
    assert context.call("send_message_to_user", message="hi") == "shown: hi"
    assert context.call("commit_memory", content="a fact") == "stored in LOCAL: a fact"
    assert context.call("recall_memory", query="a", scope="TEAM") == "found 'a' in 'TEAM'"
    assert context.call("recall_memory", more="dropped") == "found '' in ''"


def test_a_long_result_is_cut(context: Context) -> None:
    result = context.call("get_workspace_info")
    assert result == "x" * 50_000 + "\n[10000 more characters are left out]"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"workspace_id": "w"}, "`task` must be text"),
        ({"workspace_id": "w", "task": ""}, "`task` must be text"),
        ({"workspace_id": 7, "task": "t"}, "`workspace_id` must be text"),
        ({"workspace_id": "w", "task": "x" * 100_001}, "`task` is longer than 100000 characters"),
    ],
)
def test_a_wrong_argument_is_an_error_text(
    context: Context, arguments: dict[str, Any], reason: str
) -> None:
    error = json.loads(context.call("delegate_task", **arguments))["error"]
    assert error == f"workspace_delegate_task: {reason}"


def test_a_failure_is_an_error_text_without_secrets(context: Context) -> None:
    error = json.loads(context.call("check_task_status", workspace_id="w-2", task_id="t"))["error"]
    assert error == (
        "workspace_check_task_status: it failed: ConnectionError: no route to w-2, token=***"
    )


def _circular() -> object:
    ring: list[object] = []
    ring.append(ring)
    return ring


class _Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text for you, token=tok-0123456789")


class _UnprintableError(Exception):
    __str__ = _Unprintable.__str__


def _fails(error: BaseException) -> Callable[[], object]:
    def function() -> object:
        raise error

    return function


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (_circular, "its result is neither text nor JSON"),
        (_Unprintable, "its result is neither text nor JSON"),
        (lambda: {("a", "b"): 1}, "its result is neither text nor JSON"),
        (_fails(_UnprintableError()), "it failed: _UnprintableError: it has no text"),
        (_fails(SystemExit(3)), "it failed: SystemExit: 3"),
        (_fails(KeyboardInterrupt()), "it failed: KeyboardInterrupt: "),
        (_fails(asyncio.CancelledError()), "it failed: CancelledError: "),
        (_fails(ValueError("a." * 10_000_000)), "it failed: ValueError: " + "a." * 244),
    ],
)
def test_whatever_a_tool_does_the_agent_gets_an_error_text(
    platform: None, monkeypatch: pytest.MonkeyPatch, function: Callable[[], object], expected: str
) -> None:
    import molecule_runtime.a2a_tools as platform_tools

    monkeypatch.setattr(platform_tools, "tool_list_peers", function)
    context = Context()
    workspace.register(context)
    error = json.loads(context.call("list_peers"))["error"]
    assert error == f"workspace_list_peers: {expected}"


def test_a_tool_that_blocks_has_a_timeout(platform: None, monkeypatch: pytest.MonkeyPatch) -> None:
    import molecule_runtime.a2a_tools as platform_tools  # type: ignore[import-not-found]

    released = threading.Event()
    monkeypatch.setattr(platform_tools, "tool_list_peers", lambda: released.wait(30))
    impatient = replace(workspace._TOOLS[0], timeout=0.2)
    monkeypatch.setattr(workspace, "_TOOLS", (impatient,))
    context = Context()
    workspace.register(context)
    before = time.monotonic()
    error = json.loads(context.call("list_peers"))["error"]
    released.set()
    assert error == "workspace_list_peers: no result within 0.2 s"
    assert time.monotonic() - before < 5


async def test_an_interrupted_tool_is_canceled(context: Context, tmp_path: Path) -> None:
    from tools.interrupt import set_interrupt

    mark = tmp_path / "mark"
    results: list[str] = []
    arguments = {"workspace_id": "w", "task": f"wait {mark}"}
    tool = threading.Thread(
        target=lambda: results.append(context.call("delegate_task", **arguments))
    )
    tool.start()
    await until(mark.exists)
    set_interrupt(True, tool.ident)
    await until(lambda: not tool.is_alive())
    set_interrupt(False, tool.ident)
    assert json.loads(results[0])["error"] == "workspace_delegate_task: the turn was canceled"
    await until(lambda: all(t.name != "workspace-tool" for t in threading.enumerate()))


@pytest.mark.hermes
async def test_the_agent_calls_the_platforms_tools(tmp_path: Path) -> None:
    async with recorded_model() as model, callback_server() as callbacks:
        over = {"model": {"base_url": model.url}}
        env = {"PYTHONPATH": str(DOUBLE)}
        async with running_hermes(tmp_path, over=over, env=env) as hermes:
            call = (
                'demo:call=workspace_delegate_task {"workspace_id": "w-2", "task": "add 2 and 2"}'
            )
            message = await hermes.say(callbacks, call)
            callback, final = await callbacks.final(message)
            assert final.status == "completed"
            assert "w-2 did: add 2 and 2" in callback.content
            offered = model.tools()
            assert {f"workspace_{name}" for name in NAMES} <= offered
            assert "delegate_task" in offered
            assert model.results("workspace_delegate_task") == ["w-2 did: add 2 and 2"]

            mark = tmp_path / "mark"
            task = json.dumps({"workspace_id": "w-2", "task": f"wait {mark}"})
            message = await hermes.say(callbacks, f"demo:call=workspace_delegate_task {task}")
            await until(mark.exists, 30)
            await hermes.cancel(message)
            _, final = await callbacks.final(message, 15)
            assert final.status == "canceled"

            def gone() -> bool:
                mark.unlink(missing_ok=True)
                time.sleep(0.3)  # the tool would write the file every 0.05 s
                return not mark.exists()

            await until(lambda: asyncio.to_thread(gone), 10)
