"""Which message a subagent works for.

A subagent's model calls run in threads without the message's context (tools/delegate_tool.py:1979),
so they are recognised by their session.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

__all__ = ["SubagentRecord", "Subagents"]


@dataclass(frozen=True, slots=True)
class SubagentRecord:
    message_id: str
    """Empty if it does not work for a peer's message."""
    subagent_id: str
    goal: str


class Subagents:
    """The subagents of the last turns by session. Called from any thread."""

    def __init__(self, remember: int = 4096) -> None:
        self._remember = remember
        self._records: OrderedDict[str, SubagentRecord] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, session_id: str, record: SubagentRecord) -> None:
        with self._lock:
            self._records[session_id] = record
            while len(self._records) > self._remember:
                self._records.popitem(last=False)

    def get(self, session_id: object) -> SubagentRecord | None:
        with self._lock:
            if not isinstance(session_id, str) or session_id not in self._records:
                return None
            self._records.move_to_end(session_id)
            return self._records[session_id]

    def find(self, session_id: object, task_id: object) -> SubagentRecord | None:
        """Also if Hermes has compressed the subagent's conversation, which may give it another
        session (agent/conversation_compression.py:1247). Its task stays the same, and its new
        session is known from now on."""
        record = self.get(session_id)
        if record is None and (record := self.get(task_id)) and isinstance(session_id, str):
            self.add(session_id, record)
        return record

    def message_of(self, session_id: object) -> str:
        """The message that the session's subagent works for; empty for any other session."""
        record = self.get(session_id)
        return record.message_id if record is not None else ""
