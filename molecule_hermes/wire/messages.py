"""What the bridge sends to the plugin."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from molecule_hermes.wire.fields import Fields, checked_text
from molecule_hermes.wire.handoffs import Transcript
from molecule_hermes.wire.limits import (
    MAIN_AGENT,
    MAX_ATTACHMENTS,
    MAX_RESPONSE_FORMAT,
    MAX_STEER,
    MAX_SYSTEM_PROMPT,
    MAX_TOOLSETS,
    MAX_WANTS,
)

__all__ = [
    "Answer",
    "Attach",
    "Attachment",
    "Cancel",
    "Check",
    "Inbound",
    "Origin",
    "Steer",
    "Steered",
]


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file of a peer's message, in base64 on the wire."""

    name: str
    media_type: str
    data: bytes

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = Fields(data, "attachment")
        return cls(
            name=fields.label("name"),
            media_type=fields.media_type("media_type"),
            data=fields.base64("data"),
        )

    def to_json(self) -> dict[str, object]:
        encoded = base64.b64encode(self.data).decode()
        return {"name": self.name, "media_type": self.media_type, "data": encoded}


@dataclass(frozen=True, slots=True)
class Origin:
    """The A2A ids of a message, for logs and for the model's context."""

    a2a_message_id: str = ""
    a2a_task_id: str = ""
    a2a_context_id: str = ""

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = Fields(data, "metadata")
        return cls(
            a2a_message_id=fields.label("a2a_message_id", default=""),
            a2a_task_id=fields.label("a2a_task_id", default=""),
            a2a_context_id=fields.label("a2a_context_id", default=""),
        )

    def to_json(self) -> dict[str, object]:
        names = ("a2a_message_id", "a2a_task_id", "a2a_context_id")
        return {name: value for name in names if (value := getattr(self, name))}


@dataclass(frozen=True, slots=True)
class Inbound:
    """A peer's message to Hermes.

    `bridge` identifies one run of the bridge. Answers and cancels for a message must carry the
    same value. A `system_prompt` replaces the one in Hermes's configuration for this message, and
    `model` Hermes's own model, at the same provider. `response_format` goes to that provider.
    `wants` names callbacks that the bridge understands and the peer may see, beyond those that
    every bridge gets: `usage`, `subagent`, `reasoning`, `tool_detail`. `agent` is the agent that
    the message is for, and `profile` the profile of Hermes that this agent is. With `toolsets`, the
    agent may use no tool outside of them for this message. With `handoff`, that conversation takes
    the place of the chat's own, unless the message fails.
    """

    chat_id: str
    peer_id: str
    message_id: str
    callback_url: str
    content: str = ""
    peer_name: str = ""
    attachments: tuple[Attachment, ...] = ()
    metadata: Origin = Origin()
    bridge: str = ""
    system_prompt: str = ""
    model: str = ""
    response_format: Mapping[str, object] | None = field(default=None, hash=False)
    wants: tuple[str, ...] = ()
    agent: str = MAIN_AGENT
    profile: str = ""
    toolsets: tuple[str, ...] | None = None
    handoff: Transcript | None = None

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = Fields(data)
        attachments = fields.items("attachments", MAX_ATTACHMENTS)
        return cls(
            chat_id=fields.id("chat_id"),
            peer_id=fields.id("peer_id"),
            message_id=fields.id("message_id"),
            callback_url=fields.url("callback_url"),
            content=fields.text("content"),
            peer_name=fields.label("peer_name", default=""),
            attachments=tuple(Attachment.parse(item) for item in attachments),
            metadata=Origin.parse(fields.get("metadata") or {}),
            bridge=fields.label("bridge", default=""),
            system_prompt=fields.text("system_prompt", default="", most=MAX_SYSTEM_PROMPT),
            model=fields.label("model", default=""),
            response_format=fields.mapping("response_format", MAX_RESPONSE_FORMAT),
            wants=tuple(checked_text(item, "wants") for item in fields.items("wants", MAX_WANTS)),
            agent=fields.label("agent", default="") or MAIN_AGENT,
            profile=fields.label("profile", default=""),
            toolsets=_toolsets(fields),
            handoff=Transcript.parse(fields.get("handoff")) if fields.has("handoff") else None,
        )

    def to_json(self) -> dict[str, object]:
        data: dict[str, object] = {
            "chat_id": self.chat_id,
            "peer_id": self.peer_id,
            "peer_name": self.peer_name,
            "content": self.content,
            "message_id": self.message_id,
            "callback_url": self.callback_url,
        }
        if self.attachments:
            data["attachments"] = [item.to_json() for item in self.attachments]
        if metadata := self.metadata.to_json():
            data["metadata"] = metadata
        if self.system_prompt:
            data["system_prompt"] = self.system_prompt
        if self.model:
            data["model"] = self.model
        if self.response_format is not None:
            data["response_format"] = self.response_format
        if self.wants:
            data["wants"] = list(self.wants)
        if self.agent != MAIN_AGENT:
            data["agent"] = self.agent
        if self.profile:
            data["profile"] = self.profile
        if self.toolsets is not None:
            data["toolsets"] = list(self.toolsets)
        if self.handoff is not None:
            data["handoff"] = self.handoff.to_json()
        return data | _named(self.bridge)


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stops the turn of a message."""

    message_id: str
    bridge: str = ""

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = Fields(data)
        return cls(message_id=fields.id("message_id"), bridge=fields.label("bridge", default=""))

    def to_json(self) -> dict[str, object]:
        return {"message_id": self.message_id} | _named(self.bridge)


@dataclass(frozen=True, slots=True)
class Attach:
    """Follows a message that was sent before: its callbacks after the number `after` go to the
    address, and all later ones. With -1, all callbacks of the message go there."""

    message_id: str
    callback_url: str
    after: int = -1
    bridge: str = ""

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = Fields(data)
        after = fields.count("after") if fields.get("after") != -1 else None
        return cls(
            message_id=fields.id("message_id"),
            callback_url=fields.url("callback_url"),
            after=-1 if after is None else after,
            bridge=fields.label("bridge", default=""),
        )

    def to_json(self) -> dict[str, object]:
        return {
            "message_id": self.message_id,
            "callback_url": self.callback_url,
            "after": self.after,
        } | _named(self.bridge)


@dataclass(frozen=True, slots=True)
class Check:
    """Asks whether a message with this callback address, for this profile, would be accepted.

    With `deliveries`, it also makes the bridge the one that gets new deliveries, under the name
    `bridge`, until another bridge asks.
    """

    callback_url: str
    profile: str = ""
    bridge: str = ""
    deliveries: bool = False

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = Fields(data)
        return cls(
            fields.url("callback_url"),
            fields.label("profile", default=""),
            fields.label("bridge", default=""),
            fields.flag("deliveries", default=False),
        )

    def to_json(self) -> dict[str, object]:
        data: dict[str, object] = {"callback_url": self.callback_url}
        data |= {"profile": self.profile} if self.profile else {}
        data |= {"deliveries": True} if self.deliveries else {}
        return data | _named(self.bridge)


@dataclass(frozen=True, slots=True)
class Answer:
    """A peer's answer to an `Approval` or a `Clarify`."""

    message_id: str
    question_id: str
    answer: str
    bridge: str = ""

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = Fields(data)
        return cls(
            message_id=fields.id("message_id"),
            question_id=fields.id("question_id"),
            answer=fields.text("answer"),
            bridge=fields.label("bridge", default=""),
        )

    def to_json(self) -> dict[str, object]:
        return {
            "message_id": self.message_id,
            "question_id": self.question_id,
            "answer": self.answer,
        } | _named(self.bridge)


@dataclass(frozen=True, slots=True)
class Steer:
    """A peer's message to a turn that is running."""

    message_id: str
    text: str
    bridge: str = ""

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = Fields(data)
        return cls(
            message_id=fields.id("message_id"),
            text=fields.text("text", most=MAX_STEER),
            bridge=fields.label("bridge", default=""),
        )

    def to_json(self) -> dict[str, object]:
        return {"message_id": self.message_id, "text": self.text} | _named(self.bridge)


@dataclass(frozen=True, slots=True)
class Steered:
    """The response to a `Steer`: whether the turn takes the text, and if not, why."""

    accepted: bool
    reason: str = ""

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = Fields(data)
        return cls(
            accepted=fields.flag("accepted", default=False),
            reason=fields.text("reason", default="", most=MAX_STEER),
        )

    def to_json(self) -> dict[str, object]:
        answer: dict[str, object] = {"ok": True, "accepted": self.accepted}
        return answer | ({"reason": self.reason} if self.reason else {})


def _toolsets(fields: Fields) -> tuple[str, ...] | None:
    """None, which allows all, only if there is no such field: an empty list allows nothing."""
    if not fields.has("toolsets"):
        return None
    items = fields.items("toolsets", MAX_TOOLSETS)
    return tuple(checked_text(item, "toolsets") for item in items)


def _named(bridge: str) -> dict[str, object]:
    return {"bridge": bridge} if bridge else {}
