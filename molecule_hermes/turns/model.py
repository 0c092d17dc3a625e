"""The vocabulary between the executor and the transports.

A `Turn` goes to Hermes; `TurnEvent`s come back, the last of them exactly one of `Completed`,
`Failed` and `Canceled`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Literal, TypeGuard

from molecule_hermes.errors import TurnFailure
from molecule_hermes.wire import Usage

__all__ = [
    "Attachment",
    "Canceled",
    "Completed",
    "End",
    "Failed",
    "FileProduced",
    "Notice",
    "Question",
    "TextDelta",
    "ToolProgress",
    "Turn",
    "TurnEvent",
    "Usage",
    "Utterance",
    "conversation_id",
    "is_last",
]


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that comes with a peer's message."""

    name: str
    media_type: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Utterance:
    """What was said earlier in a conversation."""

    speaker: Literal["user", "agent"]
    text: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a peer to Hermes."""

    message_id: str
    peer: str
    context_id: str
    task_id: str
    text: str
    attachments: tuple[Attachment, ...] = ()
    a2a_message_id: str = ""
    """The peer's own name for the message, for logs; `message_id` is the bridge's."""
    system_prompt: str = field(default="", repr=False)
    conversation_key: str = ""
    """Names the conversation if the context does not."""
    history: tuple[Utterance, ...] = ()
    """Earlier turns, for a Hermes that does not know the conversation."""

    @property
    def conversation(self) -> str:
        return conversation_id(self.peer, self.conversation_key or self.context_id)

    @property
    def size(self) -> int:
        """Approximate number of bytes that the turn holds in memory."""
        return len(self.text) + sum(len(file.data) for file in self.attachments)


def conversation_id(peer: str, context_id: str) -> str:
    """Names the conversation `(peer, context_id)` in an alphabet that Hermes accepts everywhere.

    A hash, because both halves come from outside: no choice of context_id may reach another
    peer's conversation, a path, or Hermes's limit of 256 characters. The length in front of
    the peer keeps ("ab", "c") and ("a", "bc") apart.
    """
    material = f"{len(peer)}:{peer}{context_id}".encode("utf-8", "surrogatepass")
    return "a2a-" + hashlib.sha256(material).hexdigest()[:40]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More text of the reply. With `replace`, it replaces all text so far."""

    text: str
    replace: bool = False


@dataclass(frozen=True, slots=True)
class ToolProgress:
    tool: str
    phase: Literal["start", "end"]
    preview: str = ""
    duration: float | None = None
    ok: bool | None = None
    output: str = ""
    """The beginning of what the tool returned; empty if the transport does not report it."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A remark about the turn (retrying, waiting). It is never part of the answer."""

    text: str
    withdraws: str = ""
    """The id of a question that Hermes no longer wants answered."""
    kind: Literal["retrying", "interim", "unheard", "other"] = "other"
    """`interim`: the text is an answer after which the agent went on, because it was steered.
    `unheard`: the text says why a message that was to steer the agent did not."""


@dataclass(frozen=True, slots=True)
class FileProduced:
    """A file that the agent delivers: its content, or its URL."""

    name: str
    media_type: str
    data: bytes | None = None
    url: str = ""
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """Hermes waits for an answer of the peer. An approval accepts only one of the choices."""

    question_id: str
    kind: Literal["approval", "clarify"]
    text: str
    choices: tuple[str, ...] = ()
    command: str = ""
    """What an approval is about, where it is known; the text contains it."""
    description: str = ""


@dataclass(frozen=True, slots=True)
class Completed:
    text: str
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class Failed:
    failure: TurnFailure


@dataclass(frozen=True, slots=True)
class Canceled:
    pass


End = Completed | Failed | Canceled
TurnEvent = TextDelta | ToolProgress | Notice | FileProduced | Question | End


def is_last(event: TurnEvent) -> TypeGuard[End]:
    return isinstance(event, Completed | Failed | Canceled)
