"""What is stored of a turn, read back by another bridge."""

from __future__ import annotations

import json
from typing import Any

import pytest

from molecule_hermes.protocol.turn_record import TurnRecord
from molecule_hermes.turns.model import Place, Question

RECORD = TurnRecord(
    "m",
    Place("http://127.0.0.1:1", "i", "b", 4),
    True,
    1000.0,
    30.5,
    questions=((Question("q", "approval", "may I?", ("once", "deny")), "2026-01-01T00:00:00Z"),),
    asked=("q",),
)


def test_a_record_is_read_back_as_it_was() -> None:
    assert TurnRecord.parse(RECORD.to_json()) == RECORD


@pytest.mark.parametrize(
    "change",
    [
        {"began": "yesterday"},
        {"began": None},
        {"seconds_left": None},
        {"seconds_left": float("nan")},
        {"first_text": "soon"},
        {"message_id": 5},
        {"message_id": ""},
        {"sent": "no"},
        {"place": {"seq": "4"}},
        {"place": {"seq": None}},
        {"place": {"bridge": None}},
        {"questions": [[{"question_id": 1, "kind": "clarify", "text": "?", "choices": []}, ""]]},
        {"later": True},
    ],
)
def test_a_record_that_makes_no_sense_is_none(change: dict[str, Any]) -> None:
    assert TurnRecord.parse(json.dumps(json.loads(RECORD.to_json()) | change)) is None


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "[" * 100_000])
def test_what_is_no_record_is_none(text: str) -> None:
    assert TurnRecord.parse(text) is None
