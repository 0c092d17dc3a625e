"""What Hermes asks a peer, and how a peer's message answers it. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from a2a.helpers import get_data_parts, get_text_parts
from a2a.types import Message, Part, Task
from google.protobuf import json_format

from molecule_hermes.text import safe_name
from molecule_hermes.turns.model import Question

__all__ = [
    "NOBODY_TO_ASK",
    "NotAnAnswerError",
    "asked_in",
    "describe",
    "read_answer",
    "refusal",
]

NOBODY_TO_ASK = "Nobody can be asked now. Choose what is safest and say what you assumed."
DENY = "deny"

_YES = frozenset({"yes", "y", "ok", "okay", "true", "approve", "approved", "allow"})
_NO = frozenset({"no", "n", "false", "denied", "reject"})


class NotAnAnswerError(ValueError):
    """The message does not answer the question. The text is for the peer."""


def describe(question: Question) -> dict[str, Any]:
    """The data part that goes with a question."""
    return {
        "questionId": question.question_id,
        "kind": question.kind,
        "choices": list(question.choices),
    }


def asked_in(task: Task) -> str:
    """The id of the question that a task waits on, as its peer was told; empty if none."""
    for data in _data(task.status.message.parts):
        if isinstance(asked := data.get("questionId"), str):
            return asked
    return ""


def refusal(question: Question) -> str:
    """The answer in the name of a peer that gives none: what lets the turn go on safely."""
    return DENY if question.kind == "approval" else NOBODY_TO_ASK


def read_answer(question: Question, message: Message | None, asked: str = "") -> str:
    """The answer in a peer's message; raises `NotAnAnswerError`.

    It is a data part `{questionId, answer}`, or text: a choice, yes or no, and for a
    clarification anything else. `asked` is the question that the peer had seen: a "yes" that was
    sent twice must not approve the next command.
    """
    _refuse_files(message)
    meant, given = _given(message)
    if (meant or asked or question.question_id) != question.question_id:
        raise NotAnAnswerError("that question is gone; this one waits")
    if choice := _choice(question, given):
        return choice
    if question.kind == "clarify" and given:
        return given
    what = f"{given[:100]!r} is none of the choices" if given else "the message holds no answer"
    raise NotAnAnswerError(f"{what}; {_takes(question)}")


def _refuse_files(message: Message | None) -> None:
    """Hermes takes words for an answer; a file would be lost on the way."""
    for number, part in enumerate(message.parts if message is not None else (), 1):
        if part.WhichOneof("content") in ("raw", "url"):
            name = safe_name(part.filename) if part.filename else "a file"
            raise NotAnAnswerError(
                f"part {number} ({name}) cannot go with an answer; send it in a message of its own"
            )


def _given(message: Message | None) -> tuple[str, str]:
    """The question that is named, if any, and what is said."""
    parts = message.parts if message is not None else ()
    for data in _data(parts):
        if "answer" in data:
            answer = data["answer"]
            said = str(answer).lower() if isinstance(answer, bool) else str(answer)
            return str(data.get("questionId", "")), said.strip()
    return "", "\n".join(get_text_parts(parts)).strip()


def _data(parts: Sequence[Part]) -> list[Mapping[str, Any]]:
    try:
        return [data for data in get_data_parts(parts) if isinstance(data, Mapping)]
    # ValueError: an infinite number, which protobuf carries and JSON does not.
    except (json_format.Error, ValueError) as error:
        raise NotAnAnswerError("the data part cannot be read") from error


def _choice(question: Question, given: str) -> str:
    word = given.casefold()
    for choice in question.choices:
        if choice.casefold() == word:
            return choice
    if question.kind == "approval" and question.choices:
        if word in _YES:
            return next((choice for choice in question.choices if choice != DENY), "")
        if word in _NO:
            return DENY
    return ""


def _takes(question: Question) -> str:
    if question.kind == "approval":
        return f"answer {', '.join(question.choices)}, yes or no"
    return "answer in words"
