"""JSON of the demo model: a value that fits a JSON Schema, as far as it understands the schema."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from typing import Any

__all__ = ["is_correction", "json_answer"]

# How the bridge asks for data, and for a correction (protocol/structured_output.py).
_SCHEMA = re.compile(r"JSON Schema:\]\n(\{.*\})")
_CORRECTION = "[Your last answer cannot be used: "
_MAX_DEPTH = 8


def is_correction(prompt: str) -> bool:
    return _CORRECTION in prompt


def json_answer(how: str, prompt: str) -> str:
    """The answer to a prompt that asks for data. `how` is the value of `demo:json`: "" (valid),
    "fenced" (valid, among other text), "second" (valid when it is corrected) or "never"."""
    if how == "never" or (how == "second" and not is_correction(prompt)):
        return '{"this is not":'
    value: Any = {"demo": True}
    if found := _SCHEMA.search(prompt):
        with contextlib.suppress(ValueError):
            schema = json.loads(found[1])
            value = _sample(schema, schema, 0)
    text = json.dumps(value, ensure_ascii=False)
    return f"Here it is:\n```json\n{text}\n```\nAnything else?" if how == "fenced" else text


def _sample(schema: Any, root: Mapping[str, Any], depth: int) -> Any:
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return None
    if isinstance(target := schema.get("$ref"), str):
        return _sample(_definition(target, root), root, depth + 1)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("enum", "anyOf", "oneOf", "allOf"):
        choices = schema.get(key)
        if isinstance(choices, list) and choices:
            return choices[0] if key == "enum" else _sample(choices[0], root, depth + 1)
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    return _of_type(str(kind), schema, root, depth)


def _of_type(kind: str, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    match kind:
        case "array":
            count = schema.get("minItems")
            items = min(count, 100) if isinstance(count, int) else 1
            return [_sample(schema.get("items", {}), root, depth + 1) for _ in range(items)]
        case "integer" | "number":
            least = schema.get("minimum", 1)
            return least if isinstance(least, int | float) else 1
        case "string":
            return "demo"
        case "boolean":
            return True
        case "null":
            return None
    fields = schema.get("properties")
    fields = fields if isinstance(fields, dict) else {}
    return {name: _sample(field, root, depth + 1) for name, field in fields.items()}


def _definition(reference: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    for step in reference.removeprefix("#/").split("/") if reference != "#" else ():
        found = found.get(step) if isinstance(found, dict) else None
    return found
