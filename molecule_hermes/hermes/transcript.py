"""The transcript of Hermes's newest session, as the orchestration platform reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from molecule_hermes.hermes.api import newest_session
from molecule_hermes.text import redact

__all__ = ["read_transcript"]

_MAX_LINES = 1000
_FIELDS = ("id", "role", "tool_name", "timestamp")


async def read_transcript(
    api_base: str, api_key: str, source: str, since: int, limit: int
) -> dict[str, Any]:
    """At most `limit` messages after the one with the id `since`; `cursor` is the next `since`.

    Hermes counts messages across all sessions, so a cursor stays valid when another session
    becomes the newest.
    """
    session, messages = await newest_session(api_base, api_key, source)
    newer = [message for message in messages if _id(message) > since]
    shown = newer[: max(1, min(limit, _MAX_LINES))]
    return {
        "lines": [_line(message) for message in shown],
        "cursor": _id(shown[-1]) if shown else since,
        "more": len(newer) > len(shown),
        "source": f"{api_base.removesuffix('/v1')}/api/sessions/{session}" if session else None,
    }


def _id(message: Mapping[str, Any]) -> int:
    number = message.get("id")
    return number if isinstance(number, int) else 0


def _line(message: Mapping[str, Any]) -> dict[str, Any]:
    line = {name: message[name] for name in _FIELDS if message.get(name) is not None}
    content = message.get("content")
    line["content"] = redact(content if isinstance(content, str) else str(content or ""))
    if calls := message.get("tool_calls"):
        line["tool_calls"] = redact(str(calls))
    return line
