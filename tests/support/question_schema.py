"""The JSON Schema of questions and answers that docs/extensions.md publishes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker

_DOCS = Path(__file__).parents[2] / "docs" / "extensions.md"


def published_schema() -> dict[str, Any]:
    blocks = re.findall(r"```json\n(.*?)```", _DOCS.read_text(), re.S)
    (block,) = [block for block in blocks if '"$defs"' in block]
    schema: dict[str, Any] = json.loads(block)
    Draft202012Validator.check_schema(schema)
    return schema


def check_question(question: object) -> None:
    """Raises `jsonschema.ValidationError` if the schema does not allow it."""
    _check("question", question)


def check_questions(questions: object) -> None:
    _check("questions", questions)


def check_answer(answer: object) -> None:
    _check("answer", answer)


def _check(name: str, value: object) -> None:
    schema = {**published_schema(), "$ref": f"#/$defs/{name}"}
    Draft202012Validator(schema, format_checker=FormatChecker()).validate(value)
