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
import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any, TypeAlias

from molecule_hermes.plugin.tools.handlers import Tool, ToolError, reason_of, result_text, wait
from molecule_hermes.text import redact

__all__ = ["MODULE", "PREFIX", "TOOLSET", "register"]

logger = logging.getLogger(__name__)

MODULE = "molecule_runtime.a2a_tools"
PREFIX = "workspace_"
TOOLSET = "workspace"

_Function: TypeAlias = Callable[..., object]

_WORKSPACE = {"workspace_id": "the id of the workspace, from workspace_list_peers"}
_TASK = _WORKSPACE | {"task": "what the other agent shall do, with all that it needs to know"}
_SCOPE = {"scope": "LOCAL (this workspace), TEAM or GLOBAL"}

_TOOLS = (
    Tool(PREFIX + "list_peers", "Lists the other workspaces whose agents can take a task."),
    Tool(
        PREFIX + "delegate_task",
        "Gives a task to the agent of another workspace and waits for its answer.",
        _TASK,
        # Longer than the platform itself waits, so that its own explanation reaches the model.
        timeout=330.0,
    ),
    Tool(
        PREFIX + "delegate_task_async",
        "Gives a task to the agent of another workspace and returns the task's id at once.",
        _TASK,
    ),
    Tool(
        PREFIX + "check_task_status",
        "Shows the state of a task that workspace_delegate_task_async started, or its result.",
        _WORKSPACE | {"task_id": "the id that workspace_delegate_task_async returned"},
    ),
    Tool(
        PREFIX + "send_message_to_user",
        "Shows the user of this workspace a message at once, before the final answer.",
        {"message": "the text to show"},
    ),
    Tool(PREFIX + "get_workspace_info", "Shows this workspace's id, name, role and state."),
    Tool(
        PREFIX + "commit_memory",
        "Stores a fact in the platform's memory, which outlives this conversation.",
        {"content": "the fact"},
        _SCOPE,
    ),
    Tool(
        PREFIX + "recall_memory",
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
        function = getattr(module, f"tool_{tool.name.removeprefix(PREFIX)}", None)
        if callable(function):
            handler = tool.handler(partial(_answer, tool, function))
            ctx.register_tool(tool.name, TOOLSET, tool.schema, handler, is_async=False)


def _platform() -> ModuleType | None:
    try:
        return importlib.import_module(MODULE)
    except ModuleNotFoundError as error:
        if error.name not in (MODULE, MODULE.partition(".")[0]):
            logger.warning("the workspace's tools are not available: %s", redact(str(error)))
    except (Exception, SystemExit) as error:
        logger.warning("the workspace's tools are not available: %s", reason_of(error))
    return None


def _answer(
    tool: Tool, function: _Function, given: Mapping[str, Any], about: Mapping[str, Any]
) -> str:
    return result_text(_call(function, tool.arguments(given), tool.timeout))


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
        wait(outcome, timeout)
    except ToolError:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the function has just ended
            loop.call_soon_threadsafe(_cancel_all, loop)
        raise
    if error := outcome.exception():
        raise ToolError(f"it failed: {reason_of(error)}") from error
    return outcome.result()


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel()
