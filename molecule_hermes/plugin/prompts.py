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

from molecule_hermes.wire import Attachment

__all__ = ["MAX_INLINE_BYTES", "harmless", "inlined", "is_text"]

MAX_INLINE_BYTES = 128 * 1024

_REFERENCE = re.compile(r"(?<![\w/])@(?=(?:diff|staged)\b|(?:file|folder|git|url):)")
_TEXT_TYPES = frozenset(
    {
        "application/json",
        "application/xml",
        "application/yaml",
        "application/x-yaml",
        "application/toml",
        "application/javascript",
        "application/sql",
    }
)


def harmless(text: str) -> str:
    """The text without the beginnings that Hermes acts on; a model reads it the same."""
    text = _REFERENCE.sub("@ ", text.replace("\x00", ""))
    return f" {text}" if text.startswith("/") else text


def is_text(attachment: Attachment) -> bool:
    """Whether the model can read the document in the prompt itself."""
    kind = attachment.media_type
    if not kind.startswith("text/") and kind not in _TEXT_TYPES and not kind.endswith("+json"):
        return False
    return len(attachment.data) <= MAX_INLINE_BYTES and _decoded(attachment) is not None


def inlined(text: str, documents: list[Attachment]) -> str:
    """The text, followed by each text document under its name."""
    blocks = [text] if text else []
    for document in documents:
        fence = "`" * max(3, _longest_fence(body := _decoded(document) or "") + 1)
        title = f"[Attached document: {document.name} ({document.media_type})]"
        blocks.append(f"{title}\n{fence}\n{body}\n{fence}")
    return "\n\n".join(blocks)


def _decoded(attachment: Attachment) -> str | None:
    try:
        return attachment.data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def _longest_fence(text: str) -> int:
    return max((len(run) for run in re.findall(r"`+", text)), default=0)
