"""Reads an answer as JSON and validates it against a JSON Schema.

Runs as a program, in a process of its own (`schema_process.py`): a pattern, or references that
multiply, can make a validation take for ever, and a thread cannot be killed. So it imports nothing
that takes long to load. It reads one request from stdin and writes one verdict to stdout:

    {"schema": SCHEMA}                → {} or {"schemaProblem": WHY}
    {"schema": SCHEMA, "text": TEXT}  → {"value": VALUE}, {"problem": WHY} or {"schemaProblem": WHY}

If the schema is null, every JSON value is valid.
"""

from __future__ import annotations

import json
import math
import re
import resource
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

from molecule_hermes.text import shorten

__all__ = ["CPU_SECONDS", "MAX_ANSWER", "candidates", "judge", "schema_problem", "unsendable"]

CPU_SECONDS = 5
"""What one request may use. The kernel ends the process then, also without the bridge."""
_MEMORY = 2**30
MAX_ANSWER = 2**20
"""Characters of an answer."""
MAX_VALUES = 10_000
"""Of an answer: each of them blocks the bridge for some microseconds, whenever its task is read."""
MAX_DEPTH = 24
"""protobuf does not read back a task with an artifact that is nested deeper than 32 levels."""
_EXACT = 2**53
"""Beyond it a double, which a data part holds, does not hold every whole number."""
_ATTEMPTS = 16
"""How often something in the text is tried as JSON."""
_NAMED = 5
"""How many violations a problem names."""
_FENCED = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)
_OPENING = re.compile(r"[{\[]")


def judge(schema: dict[str, Any] | None, text: str) -> dict[str, Any]:
    """The verdict on an answer. Models put JSON into fences or between sentences, so the first
    valid value counts. If none is valid, the first one's problem is told."""
    if len(text) > MAX_ANSWER:
        return {"problem": f"it is longer than {MAX_ANSWER:,} characters"}
    problems = []
    # Without a schema, "[1]" in a sentence would pass for the answer.
    for value in candidates(text, arrays=schema is not None):
        problem = unsendable(value) or (_violations(schema, value) if schema is not None else "")
        if not problem:
            return {"value": value}
        problems.append(problem)
    return {"problem": problems[0] if problems else f"it is not JSON: {_syntax_error(text)}"}


def candidates(text: str, *, arrays: bool = True) -> list[Any]:
    """The JSON values that the text may mean: all of it, what is in fences, then the objects (and
    arrays) in it, the longest first."""
    whole = [text, *islice((found[1] for found in _FENCED.finditer(text)), _ATTEMPTS)]
    values = [value for each in whole for value in _parsed(each)]
    embedded = sorted(_embedded(text), key=lambda found: found[0], reverse=True)
    return values + [value for _, value in embedded if arrays or isinstance(value, dict)]


def unsendable(value: Any) -> str:
    """Why a data part cannot hold the value as it is; empty if it can."""
    left, pending = MAX_VALUES, [(value, 1)]
    while pending:
        each, depth = pending.pop()
        left -= 1
        if left < 0:
            return f"it has more than {MAX_VALUES:,} values"
        if problem := _inexact(each):
            return problem
        if isinstance(each, dict | list):
            if depth > MAX_DEPTH:
                return f"it is nested deeper than {MAX_DEPTH} levels"
            inner = [*each, *each.values()] if isinstance(each, dict) else each
            pending += [(item, depth + 1) for item in inner]
    return ""


def schema_problem(schema: dict[str, Any]) -> str:
    """Why the schema cannot be used; empty if it can."""
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for

    draft = validator_for(schema, default=None if "$schema" in schema else _newest_draft())
    if draft is None:
        return "its $schema is not a known draft of JSON Schema"
    try:
        draft.check_schema(schema)
        if lost := _lost_reference(schema, draft):
            return f"the reference {shorten(lost, 200)} leads nowhere"
        draft(schema, registry=_registry()).is_valid(None)
    except SchemaError as error:
        return f"{error.json_path}: {shorten(error.message, 200)}"
    except RecursionError:
        return "it refers to itself in a circle"
    return ""


def _lost_reference(schema: dict[str, Any], draft: Any) -> str:
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import specification_with

    root = specification_with(draft.META_SCHEMA["$schema"]).create_resource(schema)
    resolver = _registry().resolver_with_root(root)
    for reference in _references(schema):
        try:
            resolver.lookup(reference)
        except Unresolvable:
            return reference
    return ""


def _references(value: Any) -> Iterator[str]:
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if key == "$ref" and isinstance(item, str):
            yield item
        elif isinstance(item, dict | list):
            yield from _references(item)


def _violations(schema: dict[str, Any], value: Any) -> str:
    from jsonschema.validators import validator_for

    validator = validator_for(schema, default=_newest_draft())(schema, registry=_registry())
    errors = islice(validator.iter_errors(value), _NAMED)
    return "; ".join(f"{error.json_path}: {shorten(error.message, 200)}" for error in errors)


def _newest_draft() -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator


def _registry() -> Any:
    """Knows no other schema and fetches none. The default of jsonschema would."""
    from referencing import Registry

    return Registry()


def _parsed(text: str) -> list[Any]:
    try:
        return [json.loads(text, parse_constant=_refuse)]
    except (ValueError, RecursionError):
        return []


def _embedded(text: str) -> Iterator[tuple[int, Any]]:
    """The length and the value of each object and array in the text."""
    decoder = json.JSONDecoder(parse_constant=_refuse)
    at = 0
    for _ in range(_ATTEMPTS):
        found = _OPENING.search(text, at)
        if found is None:
            return
        at = found.start() + 1
        try:
            value, end = decoder.raw_decode(text, found.start())
        except (ValueError, RecursionError):
            continue
        yield end - found.start(), value
        at = end


def _inexact(value: Any) -> str:
    match value:
        case bool():
            return ""
        case int() if abs(value) > _EXACT:
            return f"{shorten(str(value), 40)} is too large for a JSON number; write it as a string"
        case float() if not math.isfinite(value):
            return "a number is too large"
        case str() if not _is_unicode(value):
            return "a string is not valid Unicode"
    return ""


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _syntax_error(text: str) -> str:
    try:
        json.loads(text, parse_constant=_refuse)
    except RecursionError:
        return "it is nested too deeply"
    except ValueError as error:
        return shorten(str(error), 200)
    return "it holds none"


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


def _verdict(request: dict[str, Any]) -> dict[str, Any]:
    from referencing.exceptions import Unresolvable

    schema = request["schema"]
    try:
        if "text" in request:
            return judge(schema, request["text"])
        why = schema_problem(schema)
    except (RecursionError, MemoryError):
        why = "it takes too much to apply it"
    except Unresolvable as error:
        why = f"the reference {shorten(error.ref, 200)} leads nowhere"
    except Exception as error:
        # jsonschema passes on what its parts raise: a reference into a string, a pattern that is
        # none, an id that is a number.
        why = f"it cannot be applied ({type(error).__name__}: {shorten(str(error), 200)})"
    return {"schemaProblem": why} if why else {}


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    json.dump(_verdict(json.load(sys.stdin)), sys.stdout)


if __name__ == "__main__":
    main()
