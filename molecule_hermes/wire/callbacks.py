"""The plugin's callbacks: one `Callback` per event, whose `body` is one of the types below."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self, TypeAlias, cast, get_args

from molecule_hermes.errors import TurnFailure, failure_from_dict
from molecule_hermes.wire.fields import Fields, WireError, checked_text
from molecule_hermes.wire.limits import MAX_BATCH, MAX_CHOICES
from molecule_hermes.wire.messages import Origin
from molecule_hermes.wire.progress import Notice, Reasoning, Spent, Subagent, Tool
from molecule_hermes.wire.usage import Context, Usage

__all__ = [
    "CAUSES",
    "Approval",
    "Body",
    "Callback",
    "Cause",
    "Clarify",
    "Delta",
    "File",
    "Final",
    "Problem",
    "Push",
]


@dataclass(frozen=True, slots=True)
class Delta:
    """More text of the reply. With `replace`, the content replaces all text so far."""

    type: ClassVar[str] = "delta"
    replace: bool = False

    @classmethod
    def parse(cls, data: object) -> Self:
        return cls(replace=Fields(data, "metadata").flag("replace", default=False))

    def to_json(self) -> dict[str, object]:
        return {"replace": True} if self.replace else {}


Cause: TypeAlias = Literal["background", "cron", "handoff"]
"""Why an agent speaks without a message of its peer: a job of its own that has ended or has
something to say, a cron job, or a conversation that was handed over."""
CAUSES: tuple[Cause, ...] = get_args(Cause)


@dataclass(frozen=True, slots=True)
class Push:
    """Opens a delivery: what the agent says outside of any message of its peer.

    `push_id` is the delivery's own id, and the `reply_to` of this callback and of all that follow,
    up to one `final`. `origin` is the message that the delivery comes from, where that is known,
    and `job` names what has ended, for people. A push without an id is one of an older plugin: its
    content is all that there is.
    """

    type: ClassVar[str] = "push"
    push_id: str = ""
    cause: Cause = "background"
    origin: Origin = Origin()  # noqa: RUF009 - it cannot be changed
    job: str = ""

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = Fields(data, "metadata")
        if not fields.has("push_id"):
            return cls()
        return cls(
            push_id=fields.id("push_id"),
            cause=cast(Cause, fields.one_of("cause", CAUSES)),
            origin=Origin.parse(fields.get("origin") or {}),
            job=fields.label("job", default=""),
        )

    def to_json(self) -> dict[str, object]:
        if not self.push_id:
            return {}
        data: dict[str, object] = {"push_id": self.push_id, "cause": self.cause}
        if origin := self.origin.to_json():
            data["origin"] = origin
        return data | ({"job": self.job} if self.job else {})


@dataclass(frozen=True, slots=True)
class File:
    """A file that the agent delivers, as bytes or as a URL. The content is a caption."""

    type: ClassVar[str] = "file"
    name: str
    media_type: str
    data: bytes | None = None
    url: str = ""

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = Fields(data, "metadata")
        has_data, has_url = fields.has("data"), fields.has("url")
        if has_data == has_url:
            raise WireError("metadata of a file needs either `data` or `url`")
        return cls(
            name=fields.label("name"),
            media_type=fields.media_type("media_type"),
            data=fields.base64("data") if has_data else None,
            url=fields.url("url") if has_url else "",
        )

    def to_json(self) -> dict[str, object]:
        data: dict[str, object] = {"name": self.name, "media_type": self.media_type}
        if self.data is None:
            return {**data, "url": self.url}
        return {**data, "data": base64.b64encode(self.data).decode()}


@dataclass(frozen=True, slots=True)
class _Question:
    question_id: str
    choices: tuple[str, ...] = ()

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = Fields(data, "metadata")
        choices = fields.items("choices", MAX_CHOICES)
        return cls(
            question_id=fields.id("question_id"),
            choices=tuple(checked_text(choice, "metadata.choices") for choice in choices),
        )

    def to_json(self) -> dict[str, object]:
        return {"question_id": self.question_id, "choices": list(self.choices)}


@dataclass(frozen=True, slots=True)
class Approval(_Question):
    """Asks whether a command may run. The answer is one of the choices.

    The content contains the command and why it is dangerous; the fields have them separately.
    """

    type: ClassVar[str] = "approval"
    command: str = ""
    description: str = ""

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = Fields(data, "metadata")
        asked = _Question.parse(data)
        return cls(
            asked.question_id,
            asked.choices,
            command=fields.text("command", default=""),
            description=fields.text("description", default=""),
        )

    def to_json(self) -> dict[str, object]:
        about = {"command": self.command, "description": self.description}
        known = {name: text for name, text in about.items() if text}
        return {"question_id": self.question_id, "choices": list(self.choices), **known}


@dataclass(frozen=True, slots=True)
class Clarify(_Question):
    """A question of the agent. The answer is one of the choices, or any other text."""

    type: ClassVar[str] = "clarify"


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a turn failed, as `errors.TurnFailure.as_dict` writes it."""

    kind: str
    message: str
    hint: str = ""
    retryable: bool = False

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = Fields(data, "error")
        return cls(
            kind=fields.label("kind"),
            message=fields.text("message"),
            hint=fields.text("hint", default=""),
            retryable=fields.flag("retryable", default=False),
        )

    @classmethod
    def of(cls, failure: TurnFailure) -> Self:
        return cls(failure.kind, failure.message, failure.hint, failure.retryable)

    def failure(self) -> TurnFailure:
        return failure_from_dict(self.to_json())

    def to_json(self) -> dict[str, object]:
        return {
            "kind": self.kind,
            "message": self.message,
            "hint": self.hint,
            "retryable": self.retryable,
        }


Status: TypeAlias = Literal["completed", "failed", "canceled"]


@dataclass(frozen=True, slots=True)
class Final:
    """The end of a turn, exactly once for each message. The content is the answer.

    `silent` means that the agent chose not to answer: the content is empty, and the turn did not
    fail. `incomplete` means that Hermes's limit of model calls cut the turn: the answer is a
    summary of what was done.
    """

    type: ClassVar[str] = "final"
    status: Status = "completed"
    error: Problem | None = None
    usage: Usage | None = None
    silent: bool = False
    context: Context | None = None
    incomplete: bool = False

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = Fields(data, "metadata")
        status = fields.one_of("status", ("completed", "failed", "canceled"), default="completed")
        return cls(
            status=cast(Status, status),
            error=Problem.parse(fields.get("error")) if fields.has("error") else None,
            usage=Usage.parse(fields.get("usage")) if fields.has("usage") else None,
            silent=fields.flag("silent", default=False),
            context=Context.parse(fields.get("context")) if fields.has("context") else None,
            incomplete=fields.flag("incomplete", default=False),
        )

    def to_json(self) -> dict[str, object]:
        data: dict[str, object] = {"status": self.status}
        if self.error is not None:
            data["error"] = self.error.to_json()
        if self.usage is not None:
            data["usage"] = self.usage.to_json()
        if self.silent:
            data["silent"] = True
        if self.context is not None:
            data["context"] = self.context.to_json()
        if self.incomplete:
            data["incomplete"] = True
        return data


Body: TypeAlias = (
    Delta | Reasoning | Tool | Subagent | Notice | Spent | Push | File | Approval | Clarify | Final
)
_BODIES: Mapping[str, type[Body]] = {body.type: body for body in get_args(Body)}


@dataclass(frozen=True, slots=True)
class Callback:
    """One event of a turn. `seq` counts up from 0 for each `reply_to`, and `agent` is the agent of
    the message; older plugins send neither."""

    chat_id: str
    reply_to: str
    content: str
    body: Body
    seq: int | None = None
    agent: str = ""

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = Fields(data)
        metadata = Fields(fields.get("metadata") or {}, "metadata")
        return cls(
            chat_id=fields.label("chat_id", default=""),
            reply_to=fields.id("reply_to"),
            content=fields.text("content"),
            body=_body(metadata),
            seq=metadata.count("seq"),
            agent=metadata.label("agent", default=""),
        )

    @classmethod
    def parse_batch(cls, data: object) -> tuple[Self, ...]:
        """The callbacks in a body in order: `{"batch": [...]}`, or a single callback."""
        fields = Fields(data)
        if not fields.has("batch"):
            return (cls.parse(fields.data),)
        batch = tuple(cls.parse(_entry(item)) for item in fields.items("batch", MAX_BATCH))
        if not batch:
            raise WireError("`batch` must not be empty")
        return batch

    def numbered(self, seq: int) -> Self:
        return replace(self, seq=seq)

    def to_json(self) -> dict[str, object]:
        metadata = {"type": self.body.type, **self.body.to_json()}
        if self.seq is not None:
            metadata["seq"] = self.seq
        if self.agent:
            metadata["agent"] = self.agent
        return {
            "chat_id": self.chat_id,
            "content": self.content,
            "reply_to": self.reply_to,
            "metadata": metadata,
        }


def _entry(item: object) -> Mapping[str, object]:
    if not isinstance(item, Mapping):
        raise WireError("`batch` must be a list of JSON objects")
    return item


def _body(metadata: Fields) -> Body:
    # Older plugins send only the answer, without a type.
    if not metadata.has("type"):
        return Final()
    kind = metadata.one_of("type", tuple(_BODIES))
    return _BODIES[kind].parse(metadata.data)
