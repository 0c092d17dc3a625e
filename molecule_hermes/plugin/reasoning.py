"""A model's reasoning as it streams, made safe. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

from molecule_hermes.text import redact

__all__ = ["ReasoningText", "reasoning_in"]

_PIECE = 160
_TAIL = 64
_LONGEST_WORD = 4096
_MOST = 2**18
_CUT = "\n[…]"


class ReasoningText:
    """Passes reasoning on in pieces, without secrets.

    A secret may be split between two deltas, so the last words are held back until it is clear
    what they belong to.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._left = most
        self._held = ""
        self._call: list[str] = []
        self._last_call = ""
        self.seen = False
        """Whether there was any."""

    def begin_call(self) -> None:
        """The model is called."""
        self._call.clear()
        self._last_call = ""

    def end_call(self) -> str:
        """The model has answered. Returns what was held back.

        If nobody streams the answer, Hermes now repeats all that the model thought
        (agent/chat_completion_helpers.py:1267).
        """
        self._last_call = "".join(self._call).strip()
        self._call.clear()
        return self.rest()

    def add(self, text: str) -> str:
        """Takes more text; returns what can be shown now."""
        if not text or (self._last_call and text.strip() == self._last_call):
            return ""
        if self.seen and not self._call:
            self._held += "\n\n"
        self.seen = True
        self._call.append(text)
        self._held += text
        if len(self._held) < _PIECE:
            return ""
        return self._take(_cut(self._held))

    def rest(self) -> str:
        """What was held back: the model has gone on to something else."""
        return self._take(len(self._held))

    def _take(self, length: int) -> str:
        piece, self._held = redact(self._held[:length]), self._held[length:]
        if not piece or self._left <= 0:
            return ""
        self._left -= len(piece)
        return piece if self._left > 0 else piece[: self._left + len(piece)] + _CUT


def reasoning_in(history: object) -> str:
    """The reasoning of the last turn in a conversation, for a model that does not stream it."""
    found: list[str] = []
    for message in reversed(history if isinstance(history, list) else []):
        if not isinstance(message, Mapping) or message.get("role") == "user":
            break
        text = message.get("reasoning")
        if isinstance(text, str) and text.strip():
            found.append(text.strip())
    return "\n\n".join(reversed(found))


def _cut(text: str) -> int:
    """How much of the text can be shown whatever follows: up to a space at which it can be
    redacted in two parts."""
    whole = redact(text)
    end = len(text) - _TAIL
    for _ in range(8):
        end = max(text.rfind(mark, 0, end) for mark in (" ", "\n"))
        if end <= 0:
            break
        if redact(text[:end]) + redact(text[end:]) == whole:
            return end
    return len(text) if len(text) > _LONGEST_WORD else 0
