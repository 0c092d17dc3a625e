"""The vocabulary between the executor and the transports.

A `Turn` goes to Hermes; `TurnEvent`s come back, the last of them exactly one of `Completed`,
`Failed` and `Canceled`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeGuard

from molecule_hermes.errors import TurnFailure
from molecule_hermes.turns.outbound import Outbound
from molecule_hermes.wire import (
    MAIN_AGENT,
    Args,
    Context,
    NoticeKind,
    Phase,
    Transcript,
    Usage,
)

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
    "Place",
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
    model: str = ""
    """The model that the peer chose for this turn; empty for Hermes's own."""
    response_format: Mapping[str, Any] | None = field(default=None, repr=False, hash=False)
    """What the model's provider is asked for in place of text, as chat completions express it."""
    extensions: frozenset[str] = frozenset()
    """What the peer asked for beyond the usual events: `REASONING`, `TOOL_DETAIL`."""
    agent: str = MAIN_AGENT
    """The agent that the message is for."""
    profile: str = ""
    """The profile of Hermes that the agent is, where one Hermes has several."""
    toolsets: tuple[str, ...] | None = None
    """The toolsets that the agent may use for this peer; None for all that it has."""
    outbound: Outbound | None = field(default=None, repr=False, compare=False)
    """How the agent asks other agents in this turn; None if it may ask none."""
    handoff: Transcript | None = field(default=None, repr=False, hash=False)
    """The conversation with which this turn begins, in place of the context's own."""

    @property
    def conversation(self) -> str:
        context = self.conversation_key or self.context_id
        return conversation_id(self.peer, context, self.agent, self.profile)

    @property
    def size(self) -> int:
        """Approximate number of bytes that the turn holds in memory."""
        handed = self.handoff.size if self.handoff is not None else 0
        return len(self.text) + sum(len(file.data) for file in self.attachments) + handed


def conversation_id(peer: str, context_id: str, agent: str = MAIN_AGENT, profile: str = "") -> str:
    """Names the conversation `(agent, peer, context_id)` in an alphabet that Hermes accepts
    everywhere.

    A hash, because peer and context_id come from outside: no choice of context_id may reach
    another peer's conversation, a path, or Hermes's limit of 256 characters. The length in front
    of each name keeps ("ab", "c") and ("a", "bc") apart. Conversations of the main agent are named
    as they were when it was the only one.
    """
    is_main = (agent, profile) == (MAIN_AGENT, "")
    names = [peer] if is_main else [agent, profile, peer]
    kind = "" if is_main else "@"  # the others begin with a digit
    material = kind + "".join(f"{len(name)}:{name}" for name in names) + context_id
    digest = hashlib.sha256(material.encode("utf-8", "surrogatepass"))
    return f"a2a-{digest.hexdigest()[:40]}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a turn runs, and how far it was followed, so that another bridge can go on with it."""

    address: str = ""
    """Of the Hermes that runs it."""
    instance: str = ""
    """The run of that Hermes."""
    bridge: str = ""
    """The name under which the message was sent."""
    seq: int = -1
    """The number of the last event that the peer has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    seq: int = field(default=-1, compare=False, repr=False)
    """Its number among the turn's events; -1 for an event of the bridge's own."""


@dataclass(frozen=True, slots=True)
class TextDelta(_Event):
    """More text of the reply. With `replace`, it replaces all text so far."""

    text: str
    replace: bool = False


@dataclass(frozen=True, slots=True)
class Reasoning(_Event):
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolProgress(_Event):
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
class SubagentProgress(_Event):
    """An agent to which the turn's agent delegated a part of the work."""

    subagent_id: str
    goal: str
    phase: Phase
    duration: float | None = None
    ok: bool | None = None


@dataclass(frozen=True, slots=True)
class Notice(_Event):
    """A remark about the turn (retrying, waiting). It is never part of the answer."""

    text: str
    withdraws: str = ""
    """The id of a question that Hermes no longer wants answered."""
    kind: NoticeKind | Literal["interim", "unheard"] = "other"
    """`interim`: the text is an answer after which the agent went on, because it was steered.
    `unheard`: the text says why a message that was to steer the agent did not."""
    attempt: int | None = None
    """Which repetition of a failed model call this is, and of how many."""
    of: int | None = None
    from_model: str = ""
    """The models of a fallback."""
    to_model: str = ""
    answer: str = ""
    """The answer to the withdrawn question, if it was answered."""


@dataclass(frozen=True, slots=True)
class Spent(_Event):
    """What the turn has used so far. Each replaces the one before it; the peer sees the last."""

    usage: Usage
    context: Context | None = None


@dataclass(frozen=True, slots=True)
class FileProduced(_Event):
    """A file that the agent delivers: its content, or its URL."""

    name: str
    media_type: str
    data: bytes | None = None
    url: str = ""
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Question(_Event):
    """Hermes waits for an answer of the peer. An approval accepts only one of the choices."""

    question_id: str
    kind: Literal["approval", "clarify"]
    text: str
    choices: tuple[str, ...] = ()
    command: str = ""
    """What an approval is about, where it is known; the text contains it."""
    description: str = ""


@dataclass(frozen=True, slots=True)
class Completed(_Event):
    text: str
    usage: Usage | None = None
    context: Context | None = None
    incomplete: bool = False
    """Whether Hermes's limit of model calls cut the turn, so that the text is a summary."""


@dataclass(frozen=True, slots=True)
class Failed(_Event):
    failure: TurnFailure
    usage: Usage | None = None
    context: Context | None = None


@dataclass(frozen=True, slots=True)
class Canceled(_Event):
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
