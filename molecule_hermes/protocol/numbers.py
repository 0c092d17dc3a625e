"""Whole numbers in JSON.

protobuf's `Struct` and `Value` hold every number as a double, and Python writes a whole double as
`3.0`. JSON decoders with integer types, such as Go's, refuse that for an integer.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["with_whole_numbers", "with_whole_numbers_in"]

_EXACT = 2**53
"""Beyond it a double does not hold every whole number."""

_SUSPECT = re.compile(rb"\d\.0[,}\]]")
_STRING_OR_WHOLE = re.compile(rb'("(?:[^"\\]++|\\.)*+")|(\d)\.0(?=[,}\]])', re.DOTALL)


def with_whole_numbers(value: Any) -> Any:
    """A copy of a decoded JSON value in which whole floats are integers."""
    match value:
        case dict():
            return {key: with_whole_numbers(item) for key, item in value.items()}
        case list():
            return [with_whole_numbers(item) for item in value]
        case float() if value.is_integer() and abs(value) < _EXACT:
            return int(value)
    return value


def with_whole_numbers_in(encoded: bytes) -> bytes:
    """The same for encoded JSON, or for one server-sent event that holds JSON; strings stay."""
    if not _SUSPECT.search(encoded):
        return encoded
    return _STRING_OR_WHOLE.sub(rb"\1\2", encoded)
