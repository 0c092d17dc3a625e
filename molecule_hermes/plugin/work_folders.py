"""A working directory for each chat, so that conversations do not mix up their files.

This is not a security boundary: the agent's shell can read whatever its user can.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from molecule_hermes.plugin import hermes_api
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
        """Removes the folder if it is empty: most conversations create no files."""
        with contextlib.suppress(OSError):
            self.of(chat_id).rmdir()

    def attach(self, runner: Any) -> None:
        """Has Hermes call `enter` at the beginning of each turn (gateway/run.py:12907).

        Plugin hooks come too late: by then the prompt names the working directory.
        """
        hermes_api.add_event_handler(runner, "agent:start", self.enter)

    def detach(self, runner: Any) -> None:
        hermes_api.remove_event_handler(runner, "agent:start", self.enter)

    def enter(self, event: str, given: Mapping[str, Any]) -> None:
        """Makes the chat's folder the working directory of the turn that begins."""
        if given.get("platform") != PLATFORM:
            return
        folder = self.of(str(given["chat_id"]))
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        hermes_api.enter_folder(folder, str(given["session_id"]))
