"""Messages of an orchestration platform, whose workspaces talk without a contextId.

The workspace is the conversation there, one for each sender. What the platform knows of earlier
turns comes with each message, in its metadata.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from a2a.types import Message
from google.protobuf import json_format

from molecule_hermes.turns.model import Turn, Utterance

__all__ = ["WorkspaceMessages", "history_of", "sender_of"]

MAX_HISTORY = 20
MAX_HISTORY_TEXT = 32_768
"""Characters of all earlier turns together; the oldest are left out."""
_USER = "user"
_SENDERS = ("source_workspace_id", "peer_id", "peer_name")


class WorkspaceMessages:
    """Gives the turns of one workspace their conversation and their history."""

    def __init__(self, workspace_id: str) -> None:
        self._workspace_id = workspace_id

    def complete(self, turn: Turn, message: Message) -> Turn:
        turn = replace(turn, history=history_of(message))
        if not _is_generated(turn.context_id):
            return turn
        workspace = self._workspace_id
        key = f"workspace:{len(workspace)}:{workspace}{sender_of(message)}"
        return replace(turn, conversation_key=key)


def sender_of(message: Message) -> str:
    """The sender that the metadata names, otherwise "user"."""
    metadata = _metadata(message)
    names = (metadata.get(key) for key in _SENDERS)
    return next((name.strip() for name in names if isinstance(name, str) and name.strip()), _USER)


def history_of(message: Message) -> tuple[Utterance, ...]:
    """The earlier turns that the platform sends along, the newest of them."""
    given = _metadata(message).get("history")
    said = [_utterance(entry) for entry in given[-MAX_HISTORY:]] if isinstance(given, list) else []
    kept: list[Utterance] = []
    room = MAX_HISTORY_TEXT
    for utterance in reversed([each for each in said if each is not None]):
        room -= len(utterance.text)
        if room < 0:
            break
        kept.append(utterance)
    return tuple(reversed(kept))


def _utterance(entry: Any) -> Utterance | None:
    if not isinstance(entry, dict) or entry.get("role") not in ("user", "agent"):
        return None
    parts = entry.get("parts")
    text = "\n".join(_texts(parts if isinstance(parts, list) else ())).strip()
    return Utterance("user" if entry["role"] == "user" else "agent", text) if text else None


def _texts(parts: Iterable[Any]) -> Iterable[str]:
    for part in parts:
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            yield part["text"]


def _metadata(message: Message) -> dict[str, Any]:
    try:
        return json_format.MessageToDict(message.metadata)
    except ValueError:  # an infinite number, which protobuf carries and JSON does not
        return {}


def _is_generated(context_id: str) -> bool:
    """Whether the contextId may be one that the SDK made up for a message without any.

    An executor cannot see the difference: the SDK writes a random UUID into the message before it
    calls it. A peer that sends a contextId of another form has a conversation of its own.
    """
    try:
        return uuid.UUID(context_id).version == 4
    except ValueError:
        return not context_id
