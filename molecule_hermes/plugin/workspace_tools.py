"""The tools of a workspace's platform, as tools of Hermes.

Where the platform's package is installed in Hermes's environment, the functions of
`molecule_runtime.a2a_tools` become tools of the agent. Hermes has a `delegate_task` of its own, so
each name begins with `workspace_`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import importlib
import inspect
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, TypeAlias

from molecule_hermes.plugin.hermes_api import is_interrupted
from molecule_hermes.text import redact

__all__ = ["MODULE", "PREFIX", "TOOLSET", "register"]

logger = logging.getLogger(__name__)

MODULE = "molecule_runtime.a2a_tools"
PREFIX = "workspace_"
TOOLSET = "workspace"

_MAX_ARGUMENT = 100_000
_MAX_RESULT = 50_000
_MAX_ERROR = 500
_POLL = 0.1

_Function: TypeAlias = Callable[..., object]


class _ToolError(Exception):
    """The reason why a call has no result, for the model."""


@dataclass(frozen=True, slots=True)
class _Tool:
    name: str
    description: str
    required: Mapping[str, str] = field(default_factory=dict)
    optional: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 30.0

    @property
    def schema(self) -> dict[str, Any]:
        arguments = {**self.required, **self.optional}
        return {
            "name": PREFIX + self.name,
            "description": self.description,
            "parameters": {
                "type": "object",
                "properties": {
                    name: {"type": "string", "description": text}
                    for name, text in arguments.items()
                },
                "required": list(self.required),
            },
        }

    def arguments(self, given: Mapping[str, Any]) -> dict[str, str]:
        """The arguments that the function takes; what the model adds to them is dropped."""
        arguments = {}
        for name in (*self.required, *self.optional):
            value = given.get(name)
            if value is None and name in self.optional:
                continue
            if not isinstance(value, str) or (not value and name in self.required):
                raise _ToolError(f"`{name}` must be text")
            if len(value) > _MAX_ARGUMENT:
                raise _ToolError(f"`{name}` is longer than {_MAX_ARGUMENT} characters")
            arguments[name] = value
        return arguments


_WORKSPACE = {"workspace_id": "the id of the workspace, from workspace_list_peers"}
_TASK = _WORKSPACE | {"task": "what the other agent shall do, with all that it needs to know"}
_SCOPE = {"scope": "LOCAL (this workspace), TEAM or GLOBAL"}

_TOOLS = (
    _Tool("list_peers", "Lists the other workspaces whose agents can take a task."),
    _Tool(
        "delegate_task",
        "Gives a task to the agent of another workspace and waits for its answer.",
        _TASK,
        # Longer than the platform itself waits, so that its own explanation reaches the model.
        timeout=330.0,
    ),
    _Tool(
        "delegate_task_async",
        "Gives a task to the agent of another workspace and returns the task's id at once.",
        _TASK,
    ),
    _Tool(
        "check_task_status",
        "Shows the state of a task that workspace_delegate_task_async started, or its result.",
        _WORKSPACE | {"task_id": "the id that workspace_delegate_task_async returned"},
    ),
    _Tool(
        "send_message_to_user",
        "Shows the user of this workspace a message at once, before the final answer.",
        {"message": "the text to show"},
    ),
    _Tool("get_workspace_info", "Shows this workspace's id, name, role and state."),
    _Tool(
        "commit_memory",
        "Stores a fact in the platform's memory, which outlives this conversation.",
        {"content": "the fact"},
        _SCOPE,
    ),
    _Tool(
        "recall_memory",
        "Searches the platform's memory.",
        optional={"query": "words to search for; all facts if empty"} | _SCOPE,
    ),
)


def register(ctx: Any) -> None:
    """Registers a tool for each function of the platform, if its package is installed."""
    module = _platform()
    if module is None:
        return
    for tool in _TOOLS:
        function = getattr(module, f"tool_{tool.name}", None)
        if callable(function):
            handler = _handler(tool, function)
            ctx.register_tool(PREFIX + tool.name, TOOLSET, tool.schema, handler, is_async=False)


def _platform() -> ModuleType | None:
    try:
        return importlib.import_module(MODULE)
    except ModuleNotFoundError as error:
        if error.name not in (MODULE, MODULE.partition(".")[0]):
            logger.warning("the workspace's tools are not available: %s", redact(str(error)))
    except (Exception, SystemExit) as error:
        logger.warning("the workspace's tools are not available: %s", _reason(error))
    return None


def _handler(tool: _Tool, function: _Function) -> Callable[..., str]:
    """A synchronous handler: Hermes cannot interrupt an asynchronous one."""

    def handle(given: Mapping[str, Any], **_: Any) -> str:
        try:
            return _text(_call(function, tool.arguments(given or {}), tool.timeout))
        except _ToolError as error:
            return json.dumps({"error": f"{PREFIX}{tool.name}: {error}"})

    return handle


def _call(function: _Function, arguments: Mapping[str, str], timeout: float) -> object:
    """Calls the function in a thread of its own, which is abandoned if the function blocks."""
    outcome: concurrent.futures.Future[object] = concurrent.futures.Future()
    loop = asyncio.new_event_loop()

    async def invoke() -> object:
        value = function(**arguments)
        return await value if inspect.isawaitable(value) else value

    def work() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            try:
                outcome.set_result(runner.run(invoke()))
            except BaseException as error:
                outcome.set_exception(error)

    threading.Thread(target=work, name="workspace-tool", daemon=True).start()
    try:
        _wait(outcome, timeout)
    except _ToolError:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the function has just ended
            loop.call_soon_threadsafe(_cancel_all, loop)
        raise
    if error := outcome.exception():
        raise _ToolError(f"it failed: {_reason(error)}") from error
    return outcome.result()


def _wait(outcome: concurrent.futures.Future[object], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while not concurrent.futures.wait([outcome], _POLL).done:
        if is_interrupted():
            raise _ToolError("the turn was canceled")
        if time.monotonic() > deadline:
            raise _ToolError(f"no result within {timeout:g} s")


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel()


def _reason(error: BaseException) -> str:
    """The beginning of an error's text. A secret at the end of what is read is not shown."""
    try:
        text = str(error)[: 10 * _MAX_ERROR]
    except Exception:
        text = "it has no text"
    return redact(f"{type(error).__name__}: {text}")[:_MAX_ERROR]


def _text(result: object) -> str:
    try:
        text = result if isinstance(result, str) else json.dumps(result, default=str)
    except Exception as error:  # of any kind: `default` calls methods of the result
        raise _ToolError("its result is neither text nor JSON") from error
    if len(text) > _MAX_RESULT:
        left_out = len(text) - _MAX_RESULT
        return f"{text[:_MAX_RESULT]}\n[{left_out} more characters are left out]"
    return text
