"""The sessions in the database of a Hermes home, whether or not a gateway runs on it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from molecule_hermes.plugin.settings import PLATFORM
from molecule_hermes.wire import Transcript

__all__ = ["SessionError", "Sessions", "open_sessions", "said_in"]

_KEPT = (
    *("role", "content", "tool_calls", "tool_call_id", "tool_name", "timestamp", "token_count"),
    *("finish_reason", "reasoning", "reasoning_content", "reasoning_details"),
    *("effect_disposition", "api_content"),
)
"""What a message is to a model. The rest is the row's, or that of another platform."""
_STALE = 3600.0
"""Seconds after which an agent that has not answered counts as dead."""


class SessionError(Exception):
    """The session cannot be handed over; the text says why."""


class Sessions:
    """`SessionDB` (hermes_state.py:984)."""

    def __init__(self, database: Any) -> None:
        self._database = database

    def claim(self, name: str, target: str) -> Transcript:
        """The session with this id, unique beginning of one, or title, once for each handoff.

        From pending to running in one step: between two, the watcher of a gateway on this home
        would take it (`GatewayRunner._handoff_watcher`, gateway/run.py:8138), for which a target of
        ours is no platform. Raises `SessionError`.
        """
        session_id = self._find(name)
        messages = self._database.get_messages(session_id)
        if not messages:
            raise SessionError(f"session {session_id} has no messages; choose one that has some")
        if _is_at_work(messages[-1]):
            raise SessionError(
                f"the agent of session {session_id} is mid-turn; try again when it has answered"
            )

        def claim(connection: Any) -> bool:
            # As `SessionDB.request_handoff` and `claim_handoff` (hermes_state.py:7719, 7776), or
            # after Hermes's own command (`take_requests`).
            done = connection.execute(
                "UPDATE sessions SET handoff_state = 'running', handoff_platform = ?, "
                "handoff_error = NULL WHERE id = ? AND (handoff_state IS NULL "
                "OR handoff_state IN ('completed', 'failed') "
                "OR handoff_state = 'running' AND handoff_platform = ?)",
                (target, session_id, PLATFORM),
            )
            return bool(done.rowcount > 0)

        if not self._database._execute_write(claim):
            raise SessionError(f"session {session_id} is being handed over already")
        title = str((self._database.get_session(session_id) or {}).get("title") or "")
        return Transcript(session_id, said_in(messages), " ".join(title.split())[:100])

    def settle(self, target: str, error: str, session: str = "") -> None:
        """Ends the handoff to the target, of this session if one is named: it failed if there is an
        error."""

        def find(connection: Any) -> Any:
            query = (
                "SELECT id FROM sessions WHERE handoff_platform = ? AND handoff_state = 'running' "
                "AND ? IN ('', id)"
            )
            return connection.execute(query, (target, session)).fetchone()

        found = self._database._execute_write(find)
        if found is None:
            return
        session_id = found["id"]
        if error:
            self._database.fail_handoff(session_id, error)
            return
        self._database.complete_handoff(session_id)
        self._database.end_session(session_id, "handoff")

    def _find(self, name: str) -> str:
        """Follows compressions to the session in which the conversation goes on."""
        session_id = self._database.resolve_session_id(name)
        session_id = session_id or self._database.resolve_session_by_title(name)
        if not session_id:
            raise SessionError(
                f"there is no session {name!r}, or more than one begins like that; "
                "`hermes sessions list` shows them, and --hermes-home names another folder"
            )
        return str(self._database.get_compression_tip(session_id) or session_id)


@contextlib.contextmanager
def open_sessions(home: Path) -> Iterator[Sessions]:
    """Raises `SessionError` if there is no such home."""
    from hermes_state import SessionDB

    path = home / "state.db"
    if not path.is_file():
        raise SessionError(f"{home} has no sessions; name Hermes's folder with --hermes-home")
    database = SessionDB(path)
    try:
        yield Sessions(database)
    finally:
        database.close()


def said_in(messages: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    return tuple({k: m[k] for k in _KEPT if m.get(k) is not None} for m in messages)


def _is_at_work(last: dict[str, Any]) -> bool:
    """Hermes stores the user's message when the turn begins (agent/turn_context.py)."""
    answered = last.get("role") == "assistant" and not last.get("tool_calls")
    return not answered and time.time() - float(last.get("timestamp") or 0.0) < _STALE
