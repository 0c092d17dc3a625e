"""The JSON between the bridge and the plugin inside Hermes.

    Inbound    bridge → plugin   POST /a2a/inbound   a peer's message
    Cancel     bridge → plugin   POST /a2a/cancel    stop that message's turn
    Answer     bridge → plugin   POST /a2a/answer    the peer's answer to a question
    Check      bridge → plugin   POST /a2a/check     would a message of this bridge be taken?
    Callback   plugin → bridge   POST callback_url   what a turn does; its `body` says which

Every `parse` takes the raw body or the decoded object; it returns the value, or raises
`WireError`, and nothing else. Unknown keys are ignored, so that either side can be newer.

Standard library only: the plugin imports this module inside Hermes.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self, TypeAlias, cast
from urllib.parse import urlsplit

from molecule_hermes.errors import TurnFailure, failure_from_dict

__all__ = [
    "ANSWER_PATH",
    "CANCEL_PATH",
    "CHECK_PATH",
    "DEFAULT_CALLBACK_PORT",
    "DEFAULT_PLATFORM_PORT",
    "HEALTH_PATH",
    "INBOUND_PATH",
    "MAX_ATTACHMENTS",
    "MAX_BODY_BYTES",
    "MAX_FILE_BYTES",
    "REPLY_PATH",
    "SECRET_HEADER",
    "Answer",
    "Approval",
    "Attachment",
    "Body",
    "Callback",
    "Cancel",
    "Check",
    "Clarify",
    "Delta",
    "File",
    "Final",
    "Inbound",
    "Notice",
    "Origin",
    "Problem",
    "Push",
    "Spent",
    "Tool",
    "WireError",
    "decode",
]

SECRET_HEADER = "X-Molecule-A2A-Secret"  # noqa: S105 - the name of a header
DEFAULT_PLATFORM_PORT = 8645
DEFAULT_CALLBACK_PORT = 8646
HEALTH_PATH = "/a2a/health"
INBOUND_PATH = "/a2a/inbound"
CANCEL_PATH = "/a2a/cancel"
ANSWER_PATH = "/a2a/answer"
CHECK_PATH = "/a2a/check"
REPLY_PATH = "/a2a/reply"

MAX_BODY_BYTES = 32 * 2**20
MAX_FILE_BYTES = 10 * 2**20
MAX_ATTACHMENTS = 16
_MAX_ID = 256
_MAX_TEXT = 8 * 2**20
_MAX_URL = 2048
_MAX_CHOICES = 64

_MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]*/[a-z0-9][a-z0-9!#$&^_.+-]*", re.I)


class WireError(ValueError):
    """The bytes are not what the wire carries. The message names the field."""


def decode(body: bytes | str) -> Mapping[str, object]:
    """The JSON object in a body."""
    try:
        data = json.loads(body, parse_constant=_no_constant)
    # RecursionError: `[[[[…` nests deeper than the decoder goes.
    except (ValueError, RecursionError) as error:
        raise WireError("the body is not JSON") from error
    return _object(data, "the body")


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that comes with a peer's message; base64 on the wire."""

    name: str
    media_type: str
    data: bytes

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = _Fields(data, "attachment")
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
    """The A2A names of a message, for logs and for the model's context."""

    a2a_message_id: str = ""
    a2a_task_id: str = ""
    a2a_context_id: str = ""

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = _Fields(data, "metadata")
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
    """A peer's message on its way into Hermes.

    `bridge` names one life of the bridge; a message that has it takes answers and cancels only
    with the same name.
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

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = _Fields(data)
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
        return data | _named(self.bridge)


@dataclass(frozen=True, slots=True)
class Cancel:
    message_id: str
    bridge: str = ""

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = _Fields(data)
        return cls(message_id=fields.id("message_id"), bridge=fields.label("bridge", default=""))

    def to_json(self) -> dict[str, object]:
        return {"message_id": self.message_id} | _named(self.bridge)


@dataclass(frozen=True, slots=True)
class Check:
    """Asks whether a message with this callback address would be taken."""

    callback_url: str

    @classmethod
    def parse(cls, data: object) -> Self:
        return cls(callback_url=_Fields(data).url("callback_url"))

    def to_json(self) -> dict[str, object]:
        return {"callback_url": self.callback_url}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a peer answers to an `Approval` or a `Clarify`."""

    message_id: str
    question_id: str
    answer: str
    bridge: str = ""

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = _Fields(data)
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
class Delta:
    """More of the reply. With `replace`, the content stands for all text so far."""

    type: ClassVar[str] = "delta"
    replace: bool = False

    @classmethod
    def parse(cls, data: object) -> Self:
        return cls(replace=_Fields(data, "metadata").flag("replace", default=False))

    def to_json(self) -> dict[str, object]:
        return {"replace": True} if self.replace else {}


@dataclass(frozen=True, slots=True)
class Tool:
    type: ClassVar[str] = "tool"
    tool: str
    phase: Literal["start", "end"]
    preview: str = ""
    duration: float | None = None
    ok: bool | None = None

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = _Fields(data, "metadata")
        return cls(
            tool=fields.label("tool"),
            phase=cast(Literal["start", "end"], fields.one_of("phase", ("start", "end"))),
            preview=fields.text("preview", default=""),
            duration=fields.seconds("duration"),
            ok=fields.flag("ok", default=None),
        )

    def to_json(self) -> dict[str, object]:
        data: dict[str, object] = {"tool": self.tool, "phase": self.phase, "preview": self.preview}
        if self.duration is not None:
            data["duration"] = self.duration
        if self.ok is not None:
            data["ok"] = self.ok
        return data


@dataclass(frozen=True, slots=True)
class Notice:
    """Something Hermes says about the turn; never part of the answer.

    `withdraws` names a question that no longer waits for an answer.
    """

    type: ClassVar[str] = "notice"
    withdraws: str = ""

    @classmethod
    def parse(cls, data: object) -> Self:
        return cls(withdraws=_Fields(data, "metadata").label("withdraws", default=""))

    def to_json(self) -> dict[str, object]:
        return {"withdraws": self.withdraws} if self.withdraws else {}


@dataclass(frozen=True, slots=True)
class Push:
    """Something Hermes says after the turn, such as a background job's end."""

    type: ClassVar[str] = "push"

    @classmethod
    def parse(cls, data: object) -> Self:
        return cls()

    def to_json(self) -> dict[str, object]:
        return {}


@dataclass(frozen=True, slots=True)
class File:
    """A file the agent made: its bytes, or where it is. The content is a caption."""

    type: ClassVar[str] = "file"
    name: str
    media_type: str
    data: bytes | None = None
    url: str = ""

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = _Fields(data, "metadata")
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
        fields = _Fields(data, "metadata")
        choices = fields.items("choices", _MAX_CHOICES)
        return cls(
            question_id=fields.id("question_id"),
            choices=tuple(_text(choice, "metadata.choices") for choice in choices),
        )

    def to_json(self) -> dict[str, object]:
        return {"question_id": self.question_id, "choices": list(self.choices)}


@dataclass(frozen=True, slots=True)
class Approval(_Question):
    """May this run? The answer is one of the choices."""

    type: ClassVar[str] = "approval"


@dataclass(frozen=True, slots=True)
class Clarify(_Question):
    """A question of the agent. The answer is one of the choices, or any text."""

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
        fields = _Fields(data, "error")
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


@dataclass(frozen=True, slots=True)
class Spent:
    """The tokens a turn used, and the model that used them."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    model: str = ""

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = _Fields(data, "usage")
        return cls(
            input_tokens=fields.count("input_tokens") or 0,
            output_tokens=fields.count("output_tokens") or 0,
            total_tokens=fields.count("total_tokens") or 0,
            model=fields.label("model", default=""),
        )

    def to_json(self) -> dict[str, object]:
        return {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "total_tokens": self.total_tokens,
            "model": self.model,
        }


Status: TypeAlias = Literal["completed", "failed", "canceled"]


@dataclass(frozen=True, slots=True)
class Final:
    """The end of a turn, exactly one for each message. The content is the answer.

    `silent`: the agent chose to say nothing; the content is empty and that is no failure.
    """

    type: ClassVar[str] = "final"
    status: Status = "completed"
    error: Problem | None = None
    usage: Spent | None = None
    silent: bool = False

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = _Fields(data, "metadata")
        status = fields.one_of("status", ("completed", "failed", "canceled"), default="completed")
        return cls(
            status=cast(Status, status),
            error=Problem.parse(fields.get("error")) if fields.has("error") else None,
            usage=Spent.parse(fields.get("usage")) if fields.has("usage") else None,
            silent=fields.flag("silent", default=False),
        )

    def to_json(self) -> dict[str, object]:
        data: dict[str, object] = {"status": self.status}
        if self.error is not None:
            data["error"] = self.error.to_json()
        if self.usage is not None:
            data["usage"] = self.usage.to_json()
        if self.silent:
            data["silent"] = True
        return data


Body: TypeAlias = Delta | Tool | Notice | Push | File | Approval | Clarify | Final
_BODIES: Mapping[str, type[Body]] = {
    body.type: body for body in (Delta, Tool, Notice, Push, File, Approval, Clarify, Final)
}


@dataclass(frozen=True, slots=True)
class Callback:
    """One thing a turn does. `seq` counts from 0 for each `reply_to`; None if nobody counted."""

    chat_id: str
    reply_to: str
    content: str
    body: Body
    seq: int | None = None

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = _Fields(data)
        metadata = _Fields(fields.get("metadata") or {}, "metadata")
        return cls(
            chat_id=fields.label("chat_id", default=""),
            reply_to=fields.id("reply_to"),
            content=fields.text("content"),
            body=_body(metadata),
            seq=metadata.count("seq"),
        )

    def numbered(self, seq: int) -> Self:
        return replace(self, seq=seq)

    def to_json(self) -> dict[str, object]:
        metadata = {"type": self.body.type, **self.body.to_json()}
        if self.seq is not None:
            metadata["seq"] = self.seq
        return {
            "chat_id": self.chat_id,
            "content": self.content,
            "reply_to": self.reply_to,
            "metadata": metadata,
        }


def _named(bridge: str) -> dict[str, object]:
    return {"bridge": bridge} if bridge else {}


def _body(metadata: _Fields) -> Body:
    # Older plugins send no type: what they send is the answer.
    if not metadata.has("type"):
        return Final()
    kind = metadata.one_of("type", tuple(_BODIES))
    return _BODIES[kind].parse(metadata.data)


_REQUIRED = object()


class _Fields:
    """Reads one JSON object field by field; a null counts as absent."""

    def __init__(self, data: object, path: str = "") -> None:
        if isinstance(data, bytes | str) and not path:
            data = decode(data)
        self.data = _object(data, path or "the body")
        self._path = f"{path}." if path else ""

    def has(self, name: str) -> bool:
        return self.data.get(name) is not None

    def get(self, name: str) -> object:
        return self.data.get(name)

    def id(self, name: str) -> str:
        return _label(self._value(name), self._path + name, shortest=1)

    def label(self, name: str, default: object = _REQUIRED) -> str:
        return _label(self._value(name, default), self._path + name, shortest=0)

    def text(self, name: str, default: object = _REQUIRED) -> str:
        return _text(self._value(name, default), self._path + name)

    def one_of(self, name: str, values: tuple[str, ...], default: object = _REQUIRED) -> str:
        value = self._value(name, default)
        if not isinstance(value, str) or value not in values:
            raise WireError(f"`{self._path}{name}` must be one of {', '.join(values)}")
        return value

    def flag(self, name: str, default: bool | None) -> bool:
        value = self._value(name, default)
        if value is not default and not isinstance(value, bool):
            raise WireError(f"`{self._path}{name}` must be true or false")
        return cast(bool, value)

    def count(self, name: str) -> int | None:
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**53:
            raise WireError(f"`{self._path}{name}` must be a number from 0 up")
        return value

    def seconds(self, name: str) -> float | None:
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise WireError(f"`{self._path}{name}` must be a number")
        if not 0 <= value < 1e9 or not math.isfinite(value):
            raise WireError(f"`{self._path}{name}` must be a number of seconds")
        return float(value)

    def items(self, name: str, most: int) -> list[object]:
        value = self._value(name, [])
        if not isinstance(value, list):
            raise WireError(f"`{self._path}{name}` must be a list")
        if len(value) > most:
            raise WireError(f"`{self._path}{name}` may hold at most {most}")
        return value

    def url(self, name: str) -> str:
        return _url(self._value(name), self._path + name)

    def media_type(self, name: str) -> str:
        value = self.label(name).split(";", 1)[0].strip().lower()
        if not _MEDIA_TYPE.fullmatch(value):
            raise WireError(f"`{self._path}{name}` must be a media type such as text/plain")
        return value

    def base64(self, name: str) -> bytes:
        value = self._value(name)
        if not isinstance(value, str):
            raise WireError(f"`{self._path}{name}` must be base64 text")
        if len(value) > MAX_FILE_BYTES * 4 // 3 + 4:
            raise WireError(f"`{self._path}{name}` is larger than {MAX_FILE_BYTES} bytes")
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError) as error:
            raise WireError(f"`{self._path}{name}` is not base64") from error

    def _value(self, name: str, default: object = _REQUIRED) -> object:
        value = self.data.get(name)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise WireError(f"`{self._path}{name}` is missing")
        return default


def _object(data: object, what: str) -> Mapping[str, object]:
    if not isinstance(data, Mapping):
        raise WireError(f"{what} must be a JSON object")
    return data


def _label(value: object, path: str, shortest: int) -> str:
    text = _text(value, path)
    if not shortest <= len(text) <= _MAX_ID:
        raise WireError(f"`{path}` must have {shortest} to {_MAX_ID} characters")
    if any(unicodedata.category(char) in {"Cc", "Zl", "Zp"} for char in text):
        raise WireError(f"`{path}` must not hold control characters")
    return text


def _text(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise WireError(f"`{path}` must be text")
    if len(value) > _MAX_TEXT:
        raise WireError(f"`{path}` is longer than {_MAX_TEXT} characters")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise WireError(f"`{path}` is not valid Unicode") from error
    return value


def _url(value: object, path: str) -> str:
    text = _text(value, path)
    if len(text) > _MAX_URL or not text.isprintable() or " " in text:
        raise WireError(f"`{path}` is not a URL")
    try:
        parts = urlsplit(text)
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise WireError(f"`{path}` is not a URL") from error
    if not valid:
        raise WireError(f"`{path}` must be an http or https URL")
    return text


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
