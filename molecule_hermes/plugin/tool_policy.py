"""Which tools an agent may use for a message.

Hermes asks before each call of a tool, in the agent's thread: those of the turn itself, of scripts
that call tools, of subagents, and of Hermes's review after the turn. What cannot be decided is
refused.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, TypeAlias

from molecule_hermes.plugin import hermes_api
from molecule_hermes.plugin.settings import PLATFORM
from molecule_hermes.plugin.subagents import Subagents

__all__ = ["ToolPolicy"]

log = logging.getLogger(__name__)

_Toolsets: TypeAlias = tuple[str, ...] | None
_UNKNOWN = "the message that this is for is no longer known"


class ToolPolicy:
    """The toolsets of the last messages. Called from any thread.

    They stay known after the end of a message, because its agent may outlive it.
    """

    def __init__(self, subagents: Subagents, remember: int = 4096) -> None:
        self._subagents = subagents
        self._remember = remember
        self._toolsets: OrderedDict[str, _Toolsets] = OrderedDict()
        self._lock = threading.Lock()

    def register(self, ctx: Any) -> None:
        hermes_api.call_first(ctx, "pre_tool_call", self.decide)

    def begin(self, message_id: str, toolsets: _Toolsets) -> None:
        with self._lock:
            self._toolsets[message_id] = toolsets
            self._toolsets.move_to_end(message_id)
            while len(self._toolsets) > self._remember:
                self._toolsets.popitem(last=False)

    def decide(self, **given: Any) -> dict[str, str] | None:
        """Hermes's hook `pre_tool_call`. It must not raise: Hermes would then run the tool."""
        try:
            reason = self._refusal(given)
        except Exception:
            log.exception("whether a tool is allowed could not be decided")
            reason = "whether it is allowed could not be decided"
        if reason is None:
            return None
        name = str(given.get("tool_name") or "?")
        return {"action": "block", "message": f"the tool {name!r} was refused: {reason}"}

    def _refusal(self, given: Mapping[str, Any]) -> str | None:
        message_id = hermes_api.current_message_id()
        if message_id and hermes_api.current_platform() != PLATFORM:
            return None
        if not message_id:
            # A subagent's thread is without the message's context.
            subagent = self._subagents.find(given.get("session_id"), given.get("task_id"))
            if subagent is None:
                lost = hermes_api.is_subagent(given.get("task_id")) and self._bounds_any()
                return _UNKNOWN if lost else None
            message_id = subagent.message_id
        return self._refusal_for(message_id, given) if message_id else None

    def _refusal_for(self, message_id: str, given: Mapping[str, Any]) -> str | None:
        with self._lock:
            if message_id not in self._toolsets:
                return _UNKNOWN
            self._toolsets.move_to_end(message_id)
            toolsets = self._toolsets[message_id]
        return None if toolsets is None else _outside(str(given.get("tool_name")), toolsets)

    def _bounds_any(self) -> bool:
        with self._lock:
            return any(toolsets is not None for toolsets in self._toolsets.values())


def _outside(tool: str, toolsets: tuple[str, ...]) -> str | None:
    """Why the tool is not in the toolsets; None if it is."""
    if tool in hermes_api.tools_of(toolsets) or hermes_api.is_only_about_tools(tool):
        return None
    toolset = hermes_api.toolset_of(tool)
    its = f"its toolset {toolset!r}" if toolset else "it belongs to no known toolset, which"
    allowed = ", ".join(toolsets) or "none"
    return f"{its} is not allowed for this peer (allowed: {allowed})"
