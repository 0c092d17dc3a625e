"""Turns a peer's message into text on which Hermes does not act.

Hermes acts on some texts by itself, and a peer must not reach any of that:

- `/command` at the very start runs a command (base.py:1825). A space in front prevents it.
- `@file:`, `@folder:`, `@git:`, `@url:`, `@diff`, `@staged` paste local files, diffs and pages
  into the prompt (agent/context_references.py:18). A space after the `@` prevents it.
- "restart gateway" and the like become /restart, but only in an event of type TEXT
  (base.py:1880). The adapter sends every message as a DOCUMENT.
- "yes", "approve", "2" answer an open approval or question, but only when they arrive during a
  turn (run.py:5784, run.py:10184). The adapter never has two messages of a chat in Hermes at
  once.
- A text that steers a turn is stripped, and as a further turn it is dropped if it begins with a
  command (run.py:21754). A word in front keeps it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = [
    "handed_on",
    "kept_files",
    "neutralized",
    "refusals",
    "steering",
    "undelivered",
    "with_notes",
]

_REFERENCE = re.compile(r"(?<![\w/])@(?=(?:diff|staged)\b|(?:file|folder|git|url):)")


def neutralized(text: str) -> str:
    """The text without commands and references; a model reads it the same way."""
    text = _REFERENCE.sub("@ ", text.replace("\x00", ""))
    return f" {text}" if text.startswith("/") else text


def steering(text: str) -> str:
    """The text of a message that steers a running turn."""
    text = neutralized(text).strip()
    return f"Message: {text}" if text.startswith("/") else text


def refusals(reasons: Sequence[str]) -> list[str]:
    """A note on each file of the last answer that was not delivered.

    Hermes delivers files after the agent has finished, so the agent cannot learn of it earlier.
    """
    return [f"[Your last answer: {reason}]" for reason in reasons]


def undelivered(reasons: Sequence[str]) -> list[str]:
    """A note on each delivery that did not reach the peer."""
    return [f"[Not delivered: {reason}]" for reason in reasons]


def handed_on(platform: str) -> str:
    """What the peer is told with its next message."""
    return f"the conversation so far was handed over to {platform}; the agent begins a new one"


def kept_files(folder: str, names: Sequence[str], more: int = 0) -> list[str]:
    """A note on the files that came with earlier messages; none without such files."""
    if not names:
        return []
    listed = ", ".join(f"'{name}'" for name in names) + (f" and {more} more" if more else "")
    return [f"[Files of earlier messages are still in {folder}: {listed}]"]


def with_notes(text: str, notes: Sequence[str]) -> str:
    return "\n\n".join([*notes, text])
