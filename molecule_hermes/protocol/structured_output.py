"""Answers as data: what a peer asks for, and how the agent is asked for it. No I/O.

A peer asks for data with a JSON Schema in the metadata of its message, or by accepting
`application/json` and no text. `docs/extensions.md` describes both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from a2a.types import Message
from google.protobuf import json_format

from molecule_hermes.protocol.extensions import STRUCTURED_OUTPUT
from molecule_hermes.protocol.numbers import with_whole_numbers
from molecule_hermes.protocol.output_modes import accepts_json, accepts_text
from molecule_hermes.text import redact, shorten
from molecule_hermes.turns.model import Turn

__all__ = ["MAX_SCHEMA", "BadSchemaError", "StructuredOutput", "requested_output"]

MAX_SCHEMA = 32_768
"""Characters of a schema as JSON. Over chat completions it shares 65,536 with the message."""
MAX_SCHEMA_DEPTH = 32
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_MAX_PROBLEM = 1000
_REPAIR = "-repair"


class BadSchemaError(ValueError):
    """The message asks for data in a way that cannot be met. The text says why."""


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """The data that a peer wants as its answer."""

    schema: dict[str, Any] | None = field(default=None, hash=False)
    """What the data must be valid against; None if any JSON will do."""

    @property
    def response_format(self) -> dict[str, Any]:
        """What the model's provider is asked for, in the terms of chat completions."""
        if self.schema is None:
            return {"type": "json_object"}
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": self.schema}}

    def prompt(self, turn: Turn) -> Turn:
        """The turn that asks for the data."""
        return replace(
            turn,
            text=f"{turn.text}\n\n{self._instruction()}".lstrip(),
            response_format=self.response_format,
        )

    def repair(self, turn: Turn, problem: str) -> Turn:
        """The turn that asks again, after an answer with that problem.

        Its id follows from that of the first turn, so that a bridge that was restarted finds it.
        """
        why = shorten(redact(problem), _MAX_PROBLEM)
        return replace(
            turn,
            message_id=f"{turn.message_id}{_REPAIR}",
            text=f"[Your last answer cannot be used: {why}]\n{self._instruction()}",
            attachments=(),
            history=(),
        )

    def is_repair(self, turn: Turn) -> bool:
        return turn.message_id.endswith(_REPAIR)

    def _instruction(self) -> str:
        only = (
            "Your final answer must be one JSON value and nothing else: no text before or after "
            "it, no code fence."
        )
        if self.schema is None:
            return f"[{only}]"
        schema = json.dumps(self.schema, ensure_ascii=False)
        return f"[{only} It must be valid against this JSON Schema:]\n{schema}"


def requested_output(message: Message | None, accepted: Sequence[str]) -> StructuredOutput | None:
    """What the message asks for; None if it asks for text. Raises `BadSchemaError`."""
    if message is not None and STRUCTURED_OUTPUT in message.metadata.fields:
        return StructuredOutput(_schema(message))
    if accepts_json(accepted) and not accepts_text(accepted):
        return StructuredOutput()
    return None


def _schema(message: Message) -> dict[str, Any]:
    try:
        given = json_format.MessageToDict(message.metadata.fields[STRUCTURED_OUTPUT])
    except ValueError as error:
        raise BadSchemaError("it holds NaN or Infinity, which JSON does not have") from error
    schema = given.get("schema") if isinstance(given, dict) else None
    if not isinstance(schema, dict):
        raise BadSchemaError(f'the metadata "{STRUCTURED_OUTPUT}" must be {{"schema": {{…}}}}')
    schema = dict(with_whole_numbers(schema))
    if len(json.dumps(schema, ensure_ascii=False)) > MAX_SCHEMA:
        raise BadSchemaError(f"it is longer than {MAX_SCHEMA:,} characters")
    for depth, key, value in _entries(schema):
        if depth > MAX_SCHEMA_DEPTH:
            raise BadSchemaError(f"it is nested deeper than {MAX_SCHEMA_DEPTH} levels")
        if key in _REFERENCES and isinstance(value, str) and not value.startswith("#"):
            raise BadSchemaError(
                f"{key} {shorten(value, 100)!r} refers to another document; put it into $defs"
            )
        if key == "$id" and depth > 1 and isinstance(value, str):
            raise BadSchemaError("$id is accepted at the top only")
    return schema


def _entries(value: Any, depth: int = 1) -> Iterator[tuple[int, str, Any]]:
    """Every entry of every object, with its depth. Stops below the depth that is accepted."""
    items = value.items() if isinstance(value, dict) else (("", item) for item in value)
    for key, item in items:
        yield depth, key, item
        if isinstance(item, dict | list) and depth <= MAX_SCHEMA_DEPTH:
            yield from _entries(item, depth + 1)
