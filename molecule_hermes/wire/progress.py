"""What the plugin reports while a turn runs, apart from its text: the bodies of callbacks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self, TypeAlias, cast

from molecule_hermes.wire.fields import Fields, WireError, checked_text
from molecule_hermes.wire.limits import MAX_ARGS
from molecule_hermes.wire.usage import Context, Usage

__all__ = ["Args", "Notice", "NoticeKind", "Phase", "Reasoning", "Spent", "Subagent", "Tool"]

Args: TypeAlias = Mapping[str, str | int | float | bool | None]
NoticeKind: TypeAlias = Literal["retrying", "compressed", "fallback", "waiting", "other"]
Phase: TypeAlias = Literal["start", "end"]

_KINDS = ("retrying", "compressed", "fallback", "waiting", "other")
_PHASES = ("start", "end")


@dataclass(frozen=True, slots=True)
class Tool:
    type: ClassVar[str] = "tool"
    tool: str
    phase: Phase
    preview: str = ""
    duration: float | None = None
    ok: bool | None = None
    output: str = ""
    """The beginning of what the tool returned."""
    id: str = ""
    """The same at the start and at the end of a call."""
    args: Args = field(default_factory=dict)
    error: str = ""
    result: str = ""
    """More of what the tool returned; only if the message wants `tool_detail`."""

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = Fields(data, "metadata")
        return cls(
            tool=fields.label("tool"),
            phase=cast(Phase, fields.one_of("phase", _PHASES)),
            preview=fields.text("preview", default=""),
            duration=fields.seconds("duration"),
            ok=fields.flag("ok", default=None),
            output=fields.text("output", default=""),
            id=fields.label("id", default=""),
            args=_args(fields.get("args")),
            error=fields.text("error", default=""),
            result=fields.text("result", default=""),
        )

    def to_json(self) -> dict[str, object]:
        data: dict[str, object] = {"tool": self.tool, "phase": self.phase, "preview": self.preview}
        figures = {"duration": self.duration, "ok": self.ok}
        texts = {"output": self.output, "id": self.id, "error": self.error, "result": self.result}
        data |= {name: value for name, value in figures.items() if value is not None}
        data |= {name: text for name, text in texts.items() if text}
        return data | ({"args": dict(self.args)} if self.args else {})


@dataclass(frozen=True, slots=True)
class Subagent:
    """A subagent of the turn's agent starts or ends."""

    type: ClassVar[str] = "subagent"
    id: str
    goal: str
    phase: Phase
    duration: float | None = None
    ok: bool | None = None

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = Fields(data, "metadata")
        return cls(
            id=fields.label("id"),
            goal=fields.text("goal", default=""),
            phase=cast(Phase, fields.one_of("phase", _PHASES)),
            duration=fields.seconds("duration"),
            ok=fields.flag("ok", default=None),
        )

    def to_json(self) -> dict[str, object]:
        data: dict[str, object] = {"id": self.id, "goal": self.goal, "phase": self.phase}
        figures = {"duration": self.duration, "ok": self.ok}
        return data | {name: value for name, value in figures.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Notice:
    """A message from Hermes about the turn; never part of the answer.

    `withdraws` is the id of a question that is no longer open, and `answer` its answer if it has
    one: a bridge that was restarted learns from it. `attempt` and `of` count the repetitions of a
    failed model call, `from_model` and `to_model` are those of a fallback. `interim` says that the
    content is an answer after which the agent went on, because it was steered; `unheard`, that the
    content is why the agent did not take a message that was to steer it.
    """

    type: ClassVar[str] = "notice"
    withdraws: str = ""
    kind: NoticeKind = "other"
    attempt: int | None = None
    of: int | None = None
    from_model: str = ""
    to_model: str = ""
    answer: str = ""
    interim: bool = False
    unheard: bool = False

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = Fields(data, "metadata")
        kind = fields.label("kind", default="other")
        return cls(
            withdraws=fields.label("withdraws", default=""),
            # A newer plugin may know more kinds.
            kind=cast(NoticeKind, kind if kind in _KINDS else "other"),
            attempt=fields.count("attempt"),
            of=fields.count("of"),
            from_model=fields.label("from", default=""),
            to_model=fields.label("to", default=""),
            answer=fields.text("answer", default=""),
            interim=fields.flag("interim", default=False),
            unheard=fields.flag("unheard", default=False),
        )

    def to_json(self) -> dict[str, object]:
        texts = {"withdraws": self.withdraws, "from": self.from_model, "to": self.to_model}
        flags = {"interim": self.interim, "unheard": self.unheard}
        known = {**texts, "answer": self.answer, **flags}
        data: dict[str, object] = {name: value for name, value in known.items() if value}
        if self.kind != "other":
            data["kind"] = self.kind
        counts = {"attempt": self.attempt, "of": self.of}
        return data | {name: count for name, count in counts.items() if count is not None}


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of what the model thinks, as the content; only if the message wants `reasoning`."""

    type: ClassVar[str] = "reasoning"

    @classmethod
    def parse(cls, data: object) -> Self:
        return cls()

    def to_json(self) -> dict[str, object]:
        return {}


@dataclass(frozen=True, slots=True)
class Spent:
    """What the turn has used so far, after each call of a model; if the message wants `usage`."""

    type: ClassVar[str] = "usage"
    usage: Usage
    context: Context | None = None

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = Fields(data, "metadata")
        return cls(
            usage=Usage.parse(fields.get("usage")),
            context=Context.parse(fields.get("context")) if fields.has("context") else None,
        )

    def to_json(self) -> dict[str, object]:
        data: dict[str, object] = {"usage": self.usage.to_json()}
        return data | ({"context": self.context.to_json()} if self.context is not None else {})


def _args(value: object) -> Args:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or len(value) > MAX_ARGS:
        raise WireError(f"`metadata.args` must be an object of at most {MAX_ARGS} entries")
    args: dict[str, str | int | float | bool | None] = {}
    for name, given in value.items():
        if isinstance(given, str):
            args[_name(name)] = checked_text(given, "metadata.args")
        elif given is None or (isinstance(given, bool | int | float) and _fits(given)):
            args[_name(name)] = given
        else:
            raise WireError("`metadata.args` must hold texts, numbers, true, false or null")
    return args


def _name(name: object) -> str:
    return checked_text(name, "metadata.args")


def _fits(number: float) -> bool:
    """Whether JSON and A2A's metadata represent the number."""
    return abs(number) < 2**53 if isinstance(number, int) else math.isfinite(number)
