"""Questions of Hermes to a peer, and how a peer's message answers them. No I/O, no clock."""

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
    "meant",
    "read_answer",
    "refusal",
]

NOBODY_TO_ASK = "Nobody can be asked now. Choose what is safest and say what you assumed."
DENY = "deny"

_YES = frozenset({"yes", "y", "ok", "okay", "true", "approve", "approved", "allow"})
_NO = frozenset({"no", "n", "false", "denied", "reject"})


class NotAnAnswerError(ValueError):
    """The message does not answer the question. The error's text is meant for the peer."""


def describe(question: Question) -> dict[str, Any]:
    """Returns the metadata of a question."""
    about = {"command": question.command, "description": question.description}
    return {
        "questionId": question.question_id,
        "kind": question.kind,
        "choices": list(question.choices),
        **{name: text for name, text in about.items() if text},
    }


def asked_in(task: Task) -> str:
    """Returns the id of the question that the task's status shows, or an empty string."""
    question = _metadata(task.status.message).get("question")
    return str(question.get("questionId", "")) if isinstance(question, Mapping) else ""


def meant(
    questions: Mapping[str, Question], message: Message | None, asked: str = ""
) -> Question | None:
    """Returns the open question that a message is about: the one that it names, else the one that
    its peer has been asked, else the oldest. `read_answer` refuses it if it is not the right one.
    """
    try:
        named = _given(message)[0]
    except NotAnAnswerError:
        named = ""
    oldest = next(iter(questions.values()), None)
    return questions.get(named or asked, oldest)


def refusal(question: Question) -> str:
    """Returns the answer for a peer that gives none, with which the turn goes on safely."""
    return DENY if question.kind == "approval" else NOBODY_TO_ASK


def read_answer(question: Question, message: Message | None, asked: str = "") -> str:
    """Returns the answer in a peer's message, or raises `NotAnAnswerError`.

    It is a data part or metadata `{questionId, answer}`, or text: a choice, yes or no, and for a
    clarification anything else. `asked` is the question that the peer has seen: a "yes" that is
    sent twice must not approve the next command.
    """
    _refuse_files(message)
    meant, given = _given(message)
    if (meant or asked or question.question_id) != question.question_id:
        raise NotAnAnswerError("that question is no longer open; answer this one")
    if choice := _choice(question, given):
        return choice
    if question.kind == "clarify" and given:
        return given
    what = f"{given[:100]!r} is not one of the choices" if given else "the message holds no answer"
    raise NotAnAnswerError(f"{what}; {_takes(question)}")


def _refuse_files(message: Message | None) -> None:
    """Hermes accepts only text as an answer, so a file would be lost."""
    for number, part in enumerate(message.parts if message is not None else (), 1):
        if part.WhichOneof("content") in ("raw", "url"):
            name = safe_name(part.filename) if part.filename else "a file"
            raise NotAnAnswerError(
                f"part {number} ({name}) cannot be part of an answer; send it in a separate message"
            )


def _given(message: Message | None) -> tuple[str, str]:
    """Returns the id of the question that the message names, if any, and the answer."""
    if message is None:
        return "", ""
    metadata = _metadata(message)
    for data in (*_data(message.parts), metadata):
        if "answer" in data:
            answer = data["answer"]
            text = str(answer).lower() if isinstance(answer, bool) else str(answer)
            return str(data.get("questionId", "")), text.strip()
    text = "\n".join(get_text_parts(message.parts)).strip()
    return str(metadata.get("questionId", "")), text


def _metadata(message: Message) -> Mapping[str, Any]:
    try:
        metadata: Mapping[str, Any] = json_format.MessageToDict(message.metadata)
    except (json_format.Error, ValueError) as error:
        raise NotAnAnswerError("the metadata cannot be read") from error
    return metadata


def _data(parts: Sequence[Part]) -> list[Mapping[str, Any]]:
    try:
        return [data for data in get_data_parts(parts) if isinstance(data, Mapping)]
    # ValueError: a number that protobuf can hold and JSON cannot, such as Infinity.
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
    return "answer with text"
