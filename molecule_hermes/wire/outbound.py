"""What the agent asks of other agents: the plugin sends it to the bridge, the only way out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Self, TypeAlias, cast, get_args

from molecule_hermes.wire.fields import Fields
from molecule_hermes.wire.limits import MAX_ATTACHMENTS, MAX_CALL_TEXT, MAX_CARRIED
from molecule_hermes.wire.messages import Attachment

__all__ = ["ACTIONS", "Action", "Called", "PeerCall"]

Action: TypeAlias = Literal["list", "delegate", "start", "check", "answer", "cancel", "stop"]
"""`delegate` waits for the other agent, `start` does not; `stop` ends a call that still waits."""
ACTIONS: tuple[Action, ...] = get_args(Action)


@dataclass(frozen=True, slots=True)
class PeerCall:
    """A call of one of the agent's tools, in the turn of the message `message_id`.

    `call_id` names the call, so that a `stop` with the same id can end it. `peer` is the agent that
    is called. `task_id` is one that an earlier call returned: the task that is meant, or, for a
    new task, the one that it follows.
    """

    message_id: str
    call_id: str
    action: Action
    peer: str = ""
    text: str = ""
    task_id: str = ""
    files: tuple[Attachment, ...] = field(default=(), repr=False)

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = Fields(data)
        files = fields.items("files", MAX_ATTACHMENTS)
        return cls(
            message_id=fields.id("message_id"),
            call_id=fields.id("call_id"),
            action=cast(Action, fields.one_of("action", ACTIONS)),
            peer=fields.label("peer", default=""),
            text=fields.text("text", default="", most=MAX_CALL_TEXT),
            task_id=fields.text("task_id", default="", most=MAX_CARRIED),
            files=tuple(Attachment.parse(item) for item in files),
        )

    def to_json(self) -> dict[str, object]:
        data: dict[str, object] = {
            "message_id": self.message_id,
            "call_id": self.call_id,
            "action": self.action,
        }
        texts = {"peer": self.peer, "text": self.text, "task_id": self.task_id}
        data |= {name: text for name, text in texts.items() if text}
        if self.files:
            data["files"] = [item.to_json() for item in self.files]
        return data


@dataclass(frozen=True, slots=True)
class Called:
    """What came of a call: a JSON object for the model, and the files that came with it."""

    result: Mapping[str, object] = field(hash=False)
    files: tuple[Attachment, ...] = field(default=(), repr=False)

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = Fields(data)
        files = fields.items("files", MAX_ATTACHMENTS)
        return cls(
            result=fields.mapping("result", 4 * MAX_CALL_TEXT) or {},
            files=tuple(Attachment.parse(item) for item in files),
        )

    def to_json(self) -> dict[str, object]:
        data: dict[str, object] = {"ok": True, "result": dict(self.result)}
        if self.files:
            data["files"] = [item.to_json() for item in self.files]
        return data
