"""A peer's words, made into text that Hermes only passes on.

Hermes gives some text a meaning of its own, and a peer must not reach any of it:

- `/command` at the very start runs a command (base.py:1825); a space in front takes that away.
- `@file:`, `@folder:`, `@git:`, `@url:`, `@diff`, `@staged` paste local files, diffs and pages
  into the prompt (agent/context_references.py:18); a space after the `@` takes that away.
- "restart gateway" and the like become /restart, but only in an event of type TEXT
  (base.py:1880). The adapter sends every message as a DOCUMENT.
- "yes", "approve", "2" answer an approval or a question that waits, but only when they arrive
  during a turn (run.py:5784, run.py:10184). The adapter never has two messages of a chat in
  Hermes at once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["harmless", "reminded"]

_REFERENCE = re.compile(r"(?<![\w/])@(?=(?:diff|staged)\b|(?:file|folder|git|url):)")


def harmless(text: str) -> str:
    """The text without the beginnings that Hermes acts on; a model reads it the same."""
    text = _REFERENCE.sub("@ ", text.replace("\x00", ""))
    return f" {text}" if text.startswith("/") else text


def reminded(text: str, refused: Sequence[str]) -> str:
    """The text after what became of the files that the agent meant to hand over before.

    Hermes hands files over when the agent has finished, so it cannot be told in time.
    """
    return "\n\n".join([*(f"[Your last answer: {why}]" for why in refused), text])
