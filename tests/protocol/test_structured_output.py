from __future__ import annotations

import json
from typing import Any

import pytest
from a2a.types import Message
from hypothesis import given

from molecule_hermes.protocol.extensions import STRUCTURED_OUTPUT
from molecule_hermes.protocol.structured_output import (
    MAX_SCHEMA,
    BadSchemaError,
    StructuredOutput,
    requested_output,
)
from molecule_hermes.turns.model import Attachment, Turn
from tests.protocol.test_json_answers import json_values

SCHEMA = {"type": "object", "properties": {"größe": {"type": "integer", "minimum": 1}}}


def asking(value: Any) -> Message:
    message = Message()
    message.metadata.update({STRUCTURED_OUTPUT: value})
    return message


def turn(text: str = "How large?") -> Turn:
    return Turn("m1", "alice", "ctx", "task", text, (Attachment("a", "b/c", b""),), model="large")


@pytest.mark.parametrize(
    ("accepted", "wanted"),
    [
        ([], False),
        (["text/plain"], False),
        (["application/json"], True),
        (["Application/JSON; charset=utf-8"], True),
        (["application/*"], True),
        (["application/json", "image/png"], True),
        (["application/json", "text/plain"], False),
        (["application/json", "text"], False),
        (["*/*"], False),
        (["image/png"], False),
    ],
)
def test_data_is_wanted_where_text_is_not_accepted(accepted: list[str], wanted: bool) -> None:
    assert requested_output(Message(), accepted) == (StructuredOutput() if wanted else None)


def test_a_schema_asks_for_data_whatever_else_is_accepted() -> None:
    for accepted in ([], ["text/plain"], ["application/json"]):
        output = requested_output(asking({"schema": SCHEMA, "more": 1}), accepted)
        assert output == StructuredOutput(SCHEMA)
        # Whole numbers stay whole, for providers that are strict about it.
        assert "1.0" not in json.dumps(output.schema)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("text", '{"schema": {…}}'),
        ({}, '{"schema": {…}}'),
        ({"schema": True}, '{"schema": {…}}'),
        ({"schema": {"minimum": float("inf")}}, "Infinity"),
        ({"schema": {"description": "x" * MAX_SCHEMA}}, "longer than"),
        ({"schema": {"$ref": "https://example.com/x"}}, "another document"),
        ({"schema": {"items": [{"$dynamicRef": "other.json"}]}}, "another document"),
        ({"schema": {"properties": {"a": {"$id": "https://example.com"}}}}, "at the top"),
    ],
)
def test_a_bad_request_for_data_says_what_is_wrong(value: Any, why: str) -> None:
    with pytest.raises(BadSchemaError, match=why.replace("{", r"\{")):
        requested_output(asking(value), [])


def test_a_schema_is_not_nested_too_deeply() -> None:
    schema: dict[str, Any] = {}
    for _ in range(20):
        schema = {"properties": {"a": schema}}
    with pytest.raises(BadSchemaError, match="nested deeper"):
        requested_output(asking({"schema": schema}), [])


@given(value=json_values)
def test_any_metadata_is_a_schema_or_refused(value: Any) -> None:
    try:
        output = requested_output(asking(value), [])
    except BadSchemaError:
        return
    assert output is not None
    assert output.schema == value["schema"]


def test_the_prompt_and_the_request_to_the_provider_hold_the_schema() -> None:
    asked = StructuredOutput(SCHEMA).prompt(turn())
    first, blank, note, schema = asked.text.split("\n")
    assert (first, blank) == ("How large?", "")
    assert note.startswith("[Your final answer must be one JSON value and nothing else")
    assert json.loads(schema) == SCHEMA
    assert asked.response_format == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": SCHEMA},
    }
    any_json = StructuredOutput().prompt(turn(""))
    assert any_json.text.startswith("[Your final answer")
    assert any_json.response_format == {"type": "json_object"}


def test_a_repair_names_the_problem_in_a_message_that_can_be_found_again() -> None:
    output = StructuredOutput(SCHEMA)
    first = output.prompt(turn())
    again = output.repair(first, "$.größe: 'x' is not of type 'integer', sk-abcdefghijkl")
    assert again.message_id == "m1-repair"
    assert (output.is_repair(first), output.is_repair(again)) == (False, True)
    assert again.text.startswith("[Your last answer cannot be used: $.größe: 'x' is not")
    assert "sk-abc" not in again.text
    assert again.text.endswith(json.dumps(SCHEMA, ensure_ascii=False))
    assert (again.model, again.conversation) == ("large", first.conversation)
    assert again.response_format == first.response_format
    assert (again.attachments, again.history) == ((), ())
    assert len(output.repair(first, "x" * 10_000).text) < 3000
