from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.protocol.json_answers import candidates, judge, schema_problem, unsendable

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",))),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
OBJECT = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}


@given(value=json_values)
def test_json_alone_or_in_a_fence_is_found_as_it_is(value: Any) -> None:
    text = json.dumps(value)
    for form in (text, f"\n {text}\n", f"```json\n{text}\n```", f"So:\n```\n{text}\n```\nDone."):
        assert judge(None, form) == {"value": value}


@given(value=st.dictionaries(st.text(), json_values), before=st.text(st.characters(categories="L")))
def test_an_object_between_sentences_is_found(value: Any, before: str) -> None:
    assert judge(None, f"{before} {json.dumps(value)} I hope this helps.") == {"value": value}


@given(text=st.text() | st.text(alphabet='{}[]",:`\n json0'))
def test_any_text_has_a_verdict(text: str) -> None:
    for schema in (None, OBJECT, {"type": "array"}):
        verdict = judge(schema, text)
        assert set(verdict) in ({"value"}, {"problem"})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ('As [1] says: {"a": 2}, {"b": {"c": [1, 2, 3, 4]}}', {"a": 2}),
        ('First ```json\n{"b": 1}\n``` no, ```json\n{"a": 3}\n```', {"a": 3}),
        ('{"a": 12345678901234567} {"a": 4}', {"a": 4}),
    ],
)
def test_the_first_valid_value_counts(text: str, value: Any) -> None:
    assert judge(OBJECT, text) == {"value": value}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("no JSON at all", "not JSON: Expecting value"),
        ('{"a": 1', "not JSON: "),
        ("", "not JSON"),
        ('{"a": "1"}', "$.a: '1' is not of type 'integer'"),
        ('{"b": 1}', "$: 'a' is a required property"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": 9007199254740993}', "9007199254740993 is too large"),
        ('{"a": 1e999}', "too large"),
        ('{"a": 1, "b": "\\ud800"}', "not valid Unicode"),
        ("[" * 100_000, "not JSON"),
        ('{"a":' * 30 + "1" + "}" * 30, "nested deeper than"),
        (json.dumps({"a": 1, "b": [0] * 10_000}), "more than 10,000 values"),
        ('"' + "x" * 2**20 + '"', "longer than"),
    ],
)
def test_a_problem_is_named(text: str, why: str) -> None:
    assert why in judge(OBJECT, text)["problem"]


def test_what_looks_like_json_in_a_sentence_is_no_answer_without_a_schema() -> None:
    assert "not JSON" in judge(None, "As [1] says, it is late.")["problem"]
    assert candidates("As [1] says, it is late.") == [[1]]


@given(value=json_values)
def test_what_can_be_sent_holds_no_number_that_changes(value: Any) -> None:
    assert unsendable(value) == ""
    assert unsendable([value, 2**53 + 1]) != ""
    assert unsendable({"x": [value, math.inf]}) != ""


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "strin"}, "$.type"),
        ({"properties": {"a": 3}}, "$.properties.a"),
        ({"pattern": "("}, "regex"),
        ({"$schema": "https://example.com/mine"}, "$schema is not a known draft"),
        ({"$ref": "#/$defs/none"}, "#/$defs/none leads nowhere"),
        ({"properties": {"a": {"items": {"$ref": "#lost"}}}}, "#lost leads nowhere"),
        ({"$ref": "#"}, "in a circle"),
    ],
)
def test_what_is_wrong_with_a_schema_is_named(schema: dict[str, Any], why: str) -> None:
    assert why in schema_problem(schema)


def test_schemas_of_several_drafts_are_accepted() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
    seven = {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "null"}]}
    assert [schema_problem(schema) for schema in ({}, OBJECT, node, seven)] == [""] * 4
    assert judge(seven, "[1]")["problem"] == "$[0]: 1 is not of type 'null'"
