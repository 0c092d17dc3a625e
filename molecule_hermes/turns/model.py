"""The vocabulary between the executor and the transports.

A `Turn` goes to Hermes; `TurnEvent`s come back, the last of them exactly one of `Completed`,
`Failed` and `Canceled`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Literal, TypeGuard

from molecule_hermes.errors import TurnFailure
from molecule_hermes.wire import Args, Context, NoticeKind, Phase, Usage

__all__ = [
    "REASONING",
    "TOOL_DETAIL",
    "Attachment",
    "Canceled",
    "Completed",
    "Context",
    "End",
    "Failed",
    "FileProduced",
    "Notice",
    "Question",
    "Reasoning",
    "Spent",
    "SubagentProgress",
    "TextDelta",
    "ToolProgress",
    "Turn",
    "TurnEvent",
    "Usage",
    "Utterance",
    "conversation_id",
    "is_last",
]

REASONING = "reasoning"
TOOL_DETAIL = "tool_detail"


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
    extensions: frozenset[str] = frozenset()
    """What the peer asked for beyond the usual events: `REASONING`, `TOOL_DETAIL`."""

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
class Reasoning:
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolProgress:
    tool: str
    phase: Phase
    preview: str = ""
    duration: float | None = None
    ok: bool | None = None
    output: str = ""
    """The beginning of what the tool returned; empty if the transport does not report it."""
    call_id: str = ""
    """The same at the start and at the end of a call; empty if it is not known."""
    args: Args = field(default_factory=dict)
    error: str = ""
    result: str = ""
    """More of what the tool returned, for a peer that asked for `TOOL_DETAIL`."""


@dataclass(frozen=True, slots=True)
class SubagentProgress:
    """An agent to which the turn's agent delegated a part of the work."""

    subagent_id: str
    goal: str
    phase: Phase
    duration: float | None = None
    ok: bool | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """A remark about the turn (retrying, waiting). It is never part of the answer."""

    text: str
    withdraws: str = ""
    """The id of a question that Hermes no longer wants answered."""
    kind: NoticeKind = "other"
    attempt: int | None = None
    """Which repetition of a failed model call this is, and of how many."""
    of: int | None = None
    from_model: str = ""
    """The models of a fallback."""
    to_model: str = ""


@dataclass(frozen=True, slots=True)
class Spent:
    """What the turn has used so far. Each replaces the one before it; the peer sees the last."""

    usage: Usage
    context: Context | None = None


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
    usage: Usage | None = None
    context: Context | None = None
    incomplete: bool = False
    """Whether Hermes's limit of model calls cut the turn, so that the text is a summary."""


@dataclass(frozen=True, slots=True)
class Failed:
    failure: TurnFailure
    usage: Usage | None = None
    context: Context | None = None


@dataclass(frozen=True, slots=True)
class Canceled:
    usage: Usage | None = None
    context: Context | None = None


End = Completed | Failed | Canceled
TurnEvent = (
    TextDelta
    | Reasoning
    | ToolProgress
    | SubagentProgress
    | Notice
    | Spent
    | FileProduced
    | Question
    | End
)


def is_last(event: TurnEvent) -> TypeGuard[End]:
    return isinstance(event, Completed | Failed | Canceled)
