"""A tool call for the peer: bounded, on one line, without secrets. No I/O."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from molecule_hermes.text import redact, shorten
from molecule_hermes.wire import Args, Tool

__all__ = ["brief", "ended", "started"]

_PREVIEW = 200
_RESULT = 8000
_MAX_ARGS = 16
_PARSED = 2**20
"""A longer result is not parsed: the agent's thread would wait for it."""
_SECRET_NAME = re.compile(
    r"(?i)(?:(?:^|[_-])(?:api)?key|token|secret|password|passwd|credentials?|authorization|cookie)$"
)


def started(given: Mapping[str, Any]) -> Tool:
    return Tool(
        _name(given), "start", _preview(given), id=_id(given), args=_args(given.get("args"))
    )


def ended(given: Mapping[str, Any]) -> Tool:
    took = given.get("duration_ms")
    result = _text(given.get("result"))
    return Tool(
        _name(given),
        "end",
        _preview(given),
        duration=max(0.0, took / 1000) if isinstance(took, int | float) else None,
        ok=given.get("status") == "ok",
        output=brief(_output(result)),
        id=_id(given),
        args=_args(given.get("args")),
        error=brief(_text(given.get("error_message"))),
        result=_safe(result, _RESULT),
    )


def brief(text: str) -> str:
    """The beginning of a text on one line."""
    return shorten(redact(" ".join(_readable(text, 10 * _PREVIEW).split())), _PREVIEW)


def _name(given: Mapping[str, Any]) -> str:
    return str(given.get("tool_name") or "tool")[:_PREVIEW]


def _id(given: Mapping[str, Any]) -> str:
    text = given.get("tool_call_id")
    return "".join(filter(str.isprintable, text))[:_PREVIEW] if isinstance(text, str) else ""


def _preview(given: Mapping[str, Any]) -> str:
    """The arguments of the call on one line."""
    arguments = given.get("args")
    if not isinstance(arguments, Mapping) or not arguments:
        return ""
    first = next(iter(arguments.values()))
    return brief(first if isinstance(first, str) else json.dumps(arguments, default=str))


def _args(arguments: object) -> Args:
    """The arguments by name. Long and nested values are shortened texts."""
    if not isinstance(arguments, Mapping):
        return {}
    return {brief(str(name)): _arg(name, arguments[name]) for name in list(arguments)[:_MAX_ARGS]}


def _arg(name: object, value: object) -> str | int | float | bool | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float) and abs(value) < 2**53 and math.isfinite(value):
        return value
    if _SECRET_NAME.search(str(name)):
        return "***"
    return brief(_text(value))


def _output(text: str) -> str:
    """What a tool printed: most tools return JSON with an `output`."""
    if len(text) < _PARSED:
        with contextlib.suppress(ValueError, RecursionError):
            parsed = json.loads(text)
            if isinstance(parsed, dict) and isinstance(parsed.get("output"), str):
                return parsed["output"] or text
    return text


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, default=str) if value else ""


def _safe(text: str, most: int) -> str:
    return shorten(redact(_readable(text, most)), most)


def _readable(text: str, most: int) -> str:
    # Lone surrogates, which JSON allows, are refused on the wire.
    return text[:most].encode("utf-8", "replace").decode()
