"""What a bridge stores of a running turn with its task, so that another bridge can go on with it.

The record and the task are one write, so the record's place is exactly how far the task has come.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from molecule_hermes.turns.model import Place, Question

__all__ = ["TurnRecord"]


@dataclass(frozen=True, slots=True)
class TurnRecord:
    message_id: str
    """The message's name on the wire."""
    place: Place
    sent: bool
    """Whether Hermes has, or may have, the message."""
    began: float
    """In seconds since 1970."""
    seconds_left: float
    """Of the turn's time limit."""
    first_text: float | None = None
    """Seconds from the beginning to the first text."""
    accepted: tuple[str, ...] = ()
    """The media types that the peer accepts."""
    extensions: tuple[str, ...] = ()
    """What the peer asked for beyond the usual events."""
    steered: tuple[str, ...] = ()
    """The ids of the messages that were to steer the turn."""
    additions: tuple[str, ...] = ()
    """What the peer added before Hermes got the turn."""
    questions: tuple[tuple[Question, str], ...] = ()
    """The questions that wait for the peer's answers, and when each expires."""
    asked: tuple[str, ...] = ()
    """The ids of all questions that the peer was asked."""
    conversation: str = ""
    """Hermes's name for the conversation; empty in the record of an older bridge."""
    delivery: bool = False
    """Whether the agent began the turn, and not a message of its peer."""

    def to_json(self) -> str:
        data = {name: getattr(self, name) for name in self.__slots__}
        data["place"] = asdict(self.place)
        data["questions"] = [[asdict(question), at] for question, at in self.questions]
        return json.dumps(data, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The record, or None if there is none or another version of the bridge wrote it."""
        try:
            data: dict[str, Any] = json.loads(text)
            record = cls(
                place=Place(**data.pop("place")),
                accepted=tuple(map(str, data.pop("accepted"))),
                extensions=tuple(map(str, data.pop("extensions"))),
                steered=tuple(map(str, data.pop("steered"))),
                additions=tuple(map(str, data.pop("additions"))),
                asked=tuple(map(str, data.pop("asked"))),
                questions=tuple((_question(item), str(at)) for item, at in data.pop("questions")),
                **data,
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        return record if record._is_sound() else None

    def _is_sound(self) -> bool:
        times = (self.began, self.seconds_left, self.first_text or 0.0)
        place = self.place
        names = (self.message_id, self.conversation, place.address, place.instance, place.bridge)
        return (
            all(isinstance(name, str) for name in names)
            and bool(self.message_id)
            and isinstance(self.sent, bool)
            and isinstance(self.delivery, bool)
            and isinstance(place.seq, int)
            and all(isinstance(time, int | float) and math.isfinite(time) for time in times)
        )


def _question(data: Mapping[str, Any]) -> Question:
    question = Question(**{**data, "choices": tuple(map(str, data["choices"]))})
    if not isinstance(question.question_id, str) or not isinstance(question.text, str):
        raise TypeError("a question has an id and a text")
    return question
