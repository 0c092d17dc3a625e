"""What our tools have in common: arguments are checked, waiting ends when the turn does, and what
comes back is bounded.

Handlers are synchronous: Hermes cannot interrupt an asynchronous one.
"""

from __future__ import annotations

import concurrent.futures
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from molecule_hermes.plugin.hermes_api import is_interrupted
from molecule_hermes.text import redact

__all__ = ["MAX_RESULT", "Tool", "ToolError", "reason_of", "result_text", "wait"]

MAX_RESULT = 50_000
_MAX_ARGUMENT = 100_000
_MAX_ERROR = 500
_POLL = 0.1


class ToolError(Exception):
    """The reason why a call has no result, for the model."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool whose arguments are texts, but for `lists`, which are lists of texts."""

    name: str
    description: str
    required: Mapping[str, str] = field(default_factory=dict)
    optional: Mapping[str, str] = field(default_factory=dict)
    lists: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 30.0

    @property
    def schema(self) -> dict[str, Any]:
        texts = {
            name: {"type": "string", "description": text}
            for name, text in {**self.required, **self.optional}.items()
        }
        lists = {
            name: {"type": "array", "items": {"type": "string"}, "description": text}
            for name, text in self.lists.items()
        }
        return {
            "name": self.name,
            "description": self.description,
            "parameters": {
                "type": "object",
                "properties": {**texts, **lists},
                "required": list(self.required),
            },
        }

    def arguments(self, given: Mapping[str, Any]) -> dict[str, str]:
        """The texts that the tool takes; what the model adds to them is dropped."""
        arguments = {}
        for name in (*self.required, *self.optional):
            value = given.get(name)
            if value is None and name in self.optional:
                continue
            if not isinstance(value, str) or (not value and name in self.required):
                raise ToolError(f"`{name}` must be text")
            arguments[name] = _bounded(name, value)
        return arguments

    def list_of(self, name: str, given: Mapping[str, Any], most: int) -> Sequence[str]:
        value = given.get(name)
        if value is None:
            return ()
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(each, str) for each in items):
            raise ToolError(f"`{name}` must be a list of texts")
        if len(items) > most:
            raise ToolError(f"`{name}` has {len(items)} entries, and may have {most}")
        return [_bounded(name, each) for each in items if each]

    def handler(self, call: Callable[[Mapping[str, Any], Mapping[str, Any]], str]) -> Any:
        """A handler for Hermes. `call` gets the model's arguments and what Hermes adds."""

        def handle(given: Mapping[str, Any], **about: Any) -> str:
            try:
                return call(given or {}, about)
            except ToolError as error:
                return json.dumps({"error": f"{self.name}: {error}"}, ensure_ascii=False)

        return handle


def wait(outcome: concurrent.futures.Future[Any], timeout: float) -> None:
    """Waits for an outcome. Raises `ToolError` if the turn ends, or if it takes too long."""
    deadline = time.monotonic() + timeout
    while not concurrent.futures.wait([outcome], _POLL).done:
        if is_interrupted():
            raise ToolError("the turn was canceled")
        if time.monotonic() > deadline:
            raise ToolError(f"no result within {timeout:g} s")


def reason_of(error: BaseException) -> str:
    """The beginning of an error's text. A secret at the end of what is read is not shown."""
    try:
        text = str(error)[: 10 * _MAX_ERROR]
    except Exception:
        text = "it has no text"
    return redact(f"{type(error).__name__}: {text}")[:_MAX_ERROR]


def result_text(result: object) -> str:
    """The result for the model: text, or JSON; what is too long is cut."""
    try:
        text = result if isinstance(result, str) else json.dumps(result, default=str)
    except Exception as error:  # of any kind: `default` calls methods of the result
        raise ToolError("its result is neither text nor JSON") from error
    if len(text) > MAX_RESULT:
        left_out = len(text) - MAX_RESULT
        return f"{text[:MAX_RESULT]}\n[{left_out} more characters are left out]"
    return text


def _bounded(name: str, value: str) -> str:
    if len(value) > _MAX_ARGUMENT:
        raise ToolError(f"`{name}` is longer than {_MAX_ARGUMENT} characters")
    return value
