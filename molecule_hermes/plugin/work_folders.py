"""A working directory for each chat, so that conversations do not meet each other's files.

This keeps an agent from taking another conversation's file for its own. It is no wall: the
agent's shell can read whatever its user can.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from molecule_hermes.plugin.settings import PLATFORM
from molecule_hermes.text import safe_name

__all__ = ["WorkFolders"]

_FOLDER = "conversations"


class WorkFolders:
    """The chats' folders below the agent's working directory."""

    def __init__(self, root: Path) -> None:
        self._root = root / _FOLDER

    def of(self, chat_id: str) -> Path:
        digest = hashlib.sha256(chat_id.encode()).hexdigest()[:16]
        return self._root / f"{safe_name(chat_id, 'chat')[:40]}-{digest}"

    def leave(self, chat_id: str) -> None:
        """Removes the folder if nothing is in it: most conversations make no files."""
        with contextlib.suppress(OSError):
            self.of(chat_id).rmdir()

    def attach(self, runner: Any) -> None:
        """Has Hermes call `enter` at the beginning of each turn (gateway/run.py:12907).

        `HookRegistry` has no method to add a handler (gateway/hooks.py:64). Plugin hooks come too
        late: by then the prompt names the working directory.
        """
        handlers = runner.hooks._handlers.setdefault("agent:start", [])
        if self.enter not in handlers:
            handlers.append(self.enter)

    def detach(self, runner: Any) -> None:
        with contextlib.suppress(ValueError):
            runner.hooks._handlers["agent:start"].remove(self.enter)

    def enter(self, event: str, given: Mapping[str, Any]) -> None:
        """Makes the chat's folder the working directory of the turn that begins."""
        if given.get("platform") != PLATFORM:
            return
        from agent.runtime_cwd import set_session_cwd
        from gateway.session_context import get_session_env
        from tools.terminal_tool import get_session_cwd, record_session_cwd

        folder = self.of(str(given["chat_id"]))
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # For the prompt and the files that are read into it; Hermes runs the agent in a copy of
        # this context.
        set_session_cwd(str(folder))
        # The terminal looks under the session's key (tools/terminal_tool.py:2454), the file tools
        # and execute_code under its id. Where a `cd` of an earlier turn led, the turn goes on.
        for key in (get_session_env("HERMES_SESSION_KEY"), str(given["session_id"])):
            if not Path(get_session_cwd(key) or "").is_relative_to(folder):
                record_session_cwd(key, str(folder))
