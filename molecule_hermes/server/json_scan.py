"""Checks a JSON text while it arrives, before anything else parses it.

The parsers behind it take microseconds per value and have no limits of their own, so the limits are
applied here. Regular expressions match runs of characters; Python code runs once per token, and the
limit on values also limits the tokens. It does no I/O.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["JsonLimitError", "JsonLimits", "JsonScanner", "JsonSyntaxError"]

MAX_DEPTH = 32
"""protobuf decodes 100 nested messages, and a JSON object takes three of them: a deeper task could
be stored, but not be loaded again."""
MAX_NAME = 1024
MAX_ENVELOPE = 256 * 1024
"""Characters in all strings that are neither content nor data. protobuf accepts a string in place
of an object, and looks up each of its characters as a field name (one second per million)."""
MAX_NUMBER = 1024

_STRING = re.compile(
    r"""(?: [^"\\\x00-\x1f]++
          | \\["\\/bfnrt]
          | \\u(?: [0-9abcefABCEF][0-9a-fA-F]{3}
                 | [dD][0-7][0-9a-fA-F]{2}
                 | [dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}
               )
        )*+""",
    re.VERBOSE,
)
"""The inside of a string. It excludes lone surrogates, which are not characters."""
_MAX_ESCAPE = len(r"\ud83d\ude00")
_TOKEN = re.compile(r'[ \t\n\r]*+(?:([][{}",:])|([-+.0-9A-Za-z]++)|\Z)')
_NUMBER = re.compile(r"-?+(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][-+]?+[0-9]++)?+")
_LITERALS = frozenset({"true", "false", "null"})

_OPAQUE = frozenset({"data", "metadata"})
"""Free-form values: the names below these have no meaning in the protocol."""
_CONTENT = frozenset(
    {"text", "raw", "url", "bytes", "uri"}
    | {"fileWithBytes", "fileWithUri", "file_with_bytes", "file_with_uri"}
)
"""The content of a message part, in A2A 1.0 and 0.3."""
_PARTS = frozenset({"parts", "content"})
_IDS = frozenset(
    {
        "id",
        "jsonrpc",
        "method",
        "messageId",
        "message_id",
        "contextId",
        "context_id",
        "taskId",
        "task_id",
        "referenceTaskIds",
        "reference_task_ids",
        "pushNotificationConfigId",
        "push_notification_config_id",
        "tenant",
    }
)


class JsonSyntaxError(ValueError):
    """The text is not valid JSON."""


class JsonLimitError(ValueError):
    """The text exceeds a limit. `count` is true if it has too many values or parts."""

    def __init__(self, message: str, *, count: bool = False) -> None:
        super().__init__(message)
        self.count = count


@dataclass(frozen=True, slots=True)
class JsonLimits:
    values: int = 5000
    parts: int = 1000


# The states of the scanner: what may come next.
_VALUE, _VALUE_OR_END, _NAME, _NAME_OR_END, _COLON, _MORE_OF_OBJECT, _MORE_OF_ARRAY, _END = range(8)
_AFTER_SEPARATOR = {
    (_COLON, ":"): _VALUE,
    (_MORE_OF_OBJECT, ","): _NAME,
    (_MORE_OF_ARRAY, ","): _VALUE,
}
_CLOSES = frozenset(
    {
        (_NAME_OR_END, "}"),
        (_MORE_OF_OBJECT, "}"),
        (_VALUE_OR_END, "]"),
        (_MORE_OF_ARRAY, "]"),
    }
)


class _Container(NamedTuple):
    after_value: int
    """The state after each of its values."""
    name: str
    opaque: bool
    is_parts: bool


_NO_CONTAINER = _Container(_END, "", False, False)


class JsonScanner:
    """Pass the bytes to `feed` as they arrive, then call `close`.

    Both raise `JsonSyntaxError` or `JsonLimitError`. `json.loads` accepts every text that passes.
    """

    def __init__(self, limits: JsonLimits) -> None:
        self._limits = limits
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._values = 0
        self._parts = 0
        self._containers = [_NO_CONTAINER]
        self._state = _VALUE
        self._name = ""
        self._in_string = False
        self._captured: str | None = None
        """The string so far, if it is a name or an id."""
        self._in_envelope = False
        self._envelope = 0
        self._rest = ""
        """The beginning of a word or an escape that the next bytes may complete."""

    def feed(self, data: bytes) -> None:
        self._scan(self._decode(data), final=False)

    def close(self) -> None:
        self._scan(self._decode(b"", final=True), final=True)
        if self._in_string or self._state != _END:
            raise JsonSyntaxError("it ends early")

    def _decode(self, data: bytes, *, final: bool = False) -> str:
        try:
            return self._rest + self._decoder.decode(data, final)
        except UnicodeDecodeError as error:
            raise JsonSyntaxError("it is not UTF-8") from error

    def _scan(self, text: str, *, final: bool) -> None:
        self._rest = ""
        position = 0
        while position < len(text):
            if self._in_string:
                position = self._scan_string(text, position)
                continue
            found = _TOKEN.match(text, position)
            if found is None:
                raise JsonSyntaxError("an unexpected character")
            position = found.end()
            if mark := found[1]:
                self._take_mark(mark)
            elif word := found[2]:
                if position == len(text) and not final and len(word) <= MAX_NUMBER:
                    self._rest = word
                    return
                self._begin_value()
                _require_word(word)

    def _scan_string(self, text: str, start: int) -> int:
        found = _STRING.match(text, start)
        end = found.end() if found else start
        if self._captured is not None:
            self._captured += text[start:end]
            if len(self._captured) > MAX_NAME * _MAX_ESCAPE:
                raise _too_long()
        if self._in_envelope:
            self._envelope += end - start
            if self._envelope > MAX_ENVELOPE:
                raise JsonLimitError(
                    f"its strings outside content and data have more than {MAX_ENVELOPE} characters"
                )
        if end == len(text):
            return end
        if text[end] == '"':
            self._end_string()
            return end + 1
        if text[end] != "\\" or len(text) - end >= _MAX_ESCAPE:
            raise JsonSyntaxError("a string contains an invalid character")
        self._rest = text[end:]
        return len(text)

    def _take_mark(self, mark: str) -> None:
        if mark == '"':
            self._begin_string()
        elif mark in "[{":
            self._begin_container(mark == "{")
        elif (self._state, mark) in _CLOSES:
            self._containers.pop()
            self._state = self._containers[-1].after_value
        elif (after := _AFTER_SEPARATOR.get((self._state, mark))) is not None:
            self._state = after
        else:
            raise JsonSyntaxError(f"an unexpected {mark}")

    def _begin_value(self) -> None:
        if self._state > _VALUE_OR_END:
            raise JsonSyntaxError("an unexpected value")
        within = self._containers[-1]
        self._state = within.after_value
        self._values += 1
        if self._values > self._limits.values:
            raise JsonLimitError(f"it has more than {self._limits.values} values", count=True)
        if within.is_parts:
            self._parts += 1
            if self._parts > self._limits.parts:
                raise JsonLimitError(f"it has more than {self._limits.parts} parts", count=True)

    def _begin_container(self, is_object: bool) -> None:
        self._begin_value()
        if len(self._containers) > MAX_DEPTH:
            raise JsonLimitError(f"it is nested deeper than {MAX_DEPTH} levels")
        name = self._value_name()
        opaque = self._containers[-1].opaque or name in _OPAQUE
        if is_object:
            self._containers.append(_Container(_MORE_OF_OBJECT, name, opaque, False))
            self._state = _NAME_OR_END
        else:
            is_parts = not opaque and name in _PARTS
            self._containers.append(_Container(_MORE_OF_ARRAY, name, opaque, is_parts))
            self._state = _VALUE_OR_END

    def _begin_string(self) -> None:
        if self._state in (_NAME, _NAME_OR_END):
            self._captured = ""
        else:
            self._begin_value()
            name = self._value_name()
            if not self._containers[-1].opaque and name not in _OPAQUE:
                self._captured = "" if name in _IDS else None
                self._in_envelope = name not in _CONTENT
        self._in_string = True

    def _end_string(self) -> None:
        self._in_string = self._in_envelope = False
        captured, self._captured = self._captured, None
        if captured is None:
            return
        if "\\" in captured:
            captured = str(json.loads(f'"{captured}"'))
        if len(captured) > MAX_NAME:
            raise _too_long()
        if self._state in (_NAME, _NAME_OR_END):
            self._name = captured
            self._state = _COLON

    def _value_name(self) -> str:
        """The member name of a value; the elements of an array have the name of the array."""
        within = self._containers[-1]
        return self._name if within.after_value == _MORE_OF_OBJECT else within.name


def _require_word(word: str) -> None:
    if word in _LITERALS:
        return
    if len(word) > MAX_NUMBER:
        raise JsonLimitError(f"a number has more than {MAX_NUMBER} characters")
    if not _NUMBER.fullmatch(word):
        raise JsonSyntaxError("an unexpected word")
    # float() turns a larger number into Infinity, which JSON cannot express.
    if (len(word) > 300 or "e" in word or "E" in word) and math.isinf(float(word)):
        raise JsonLimitError("a number is too large")


def _too_long() -> JsonLimitError:
    return JsonLimitError(f"a name or an id has more than {MAX_NAME} characters")
