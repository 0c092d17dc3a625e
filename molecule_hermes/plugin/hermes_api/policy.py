"""Which tool belongs to which toolset, and for whom a tool is called."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

__all__ = [
    "call_first",
    "current_platform",
    "is_only_about_tools",
    "is_subagent",
    "tools_of",
    "toolset_of",
]


def tools_of(toolsets: Iterable[str]) -> frozenset[str]:
    """The tools in these toolsets, those that contain others included; none in an unknown one.

    `resolve_toolset` (toolsets.py:689) also knows the tools of plugins and, by the server's name,
    those of MCP servers.
    """
    from toolsets import resolve_toolset

    return frozenset(tool for name in toolsets for tool in resolve_toolset(name))


def toolset_of(tool: str) -> str:
    """The toolset in which the tool was registered; empty if there is no such tool.

    `ToolRegistry.get_toolset_for_tool` (tools/registry.py:673).
    """
    from tools.registry import registry

    return str(registry.get_toolset_for_tool(tool) or "")


def is_only_about_tools(tool: str) -> bool:
    """Whether the tool only looks up other tools, which belong to no toolset.

    `tools/tool_search.py`: hooks see the tool that `tool_call` calls by its own name
    (agent/tool_executor.py:390, model_tools.py:1131).
    """
    from tools.tool_search import TOOL_DESCRIBE_NAME, TOOL_SEARCH_NAME

    return tool in {TOOL_SEARCH_NAME, TOOL_DESCRIBE_NAME}


def current_platform() -> str:
    """The platform that this thread works for; empty outside of a gateway's turn.

    `get_session_env` (gateway/session_context.py:304).
    """
    from gateway.session_context import get_session_env

    return str(get_session_env("HERMES_SESSION_PLATFORM") or "")


def is_subagent(task_id: object) -> bool:
    """Whether the id of a task is a subagent's: `sa-…`, else `subagent-…`
    (tools/delegate_tool.py:1161, 1952)."""
    return isinstance(task_id, str) and task_id.startswith(("sa-", "subagent-"))


def call_first(ctx: Any, hook: str, callback: Callable[..., Any]) -> None:
    """Registers a hook that Hermes calls before those of all other plugins so far.

    The first answer of `pre_tool_call` wins (hermes_cli/plugins.py:2154), and another plugin's
    `approve` would let the peer allow itself what is refused. `PluginManager._hooks`
    (plugins.py:1913) is what `PluginContext.register_hook` appends to.
    """
    ctx.register_hook(hook, callback)
    callbacks = ctx._manager._hooks[hook]
    callbacks.remove(callback)
    callbacks.insert(0, callback)
