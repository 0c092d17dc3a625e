"""Earlier turns in front of a message, for a Hermes that does not know the conversation.

They are part of the text: with `X-Hermes-Session-Id`, Hermes ignores earlier messages in the body
of the request and reads its own database instead.
"""

from __future__ import annotations

from dataclasses import replace

from molecule_hermes.turns.model import Turn

__all__ = ["with_history"]

_BEFORE = "[Earlier in this conversation]"
_NOW = "[The new message]"


def with_history(turn: Turn, limit: int) -> Turn:
    """The turn with as many of the newest earlier turns as a text of `limit` characters holds."""
    lines: list[str] = []
    room = limit - len(turn.text) - len(_BEFORE) - len(_NOW) - 3
    for earlier in reversed(turn.history):
        line = f"{earlier.speaker}: {earlier.text}"
        room -= len(line) + 1
        if room < 0:
            break
        lines.insert(0, line)
    if not lines:
        return turn
    return replace(turn, text="\n".join([_BEFORE, *lines, "", _NOW, turn.text]))
