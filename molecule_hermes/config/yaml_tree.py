"""YAML as a tree of bounded size that knows its lines.

It is composed from the parser's events: a constructor would follow tags, and would give up the
lines of scalars.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
    StreamStartEvent,
)
from ruamel.yaml.reader import ReaderError

__all__ = ["MAX_BYTES", "Scalar", "Tree", "YamlProblem", "parse_yaml"]

MAX_BYTES = 2**20
_MAX_SIZE = 4 * MAX_BYTES
_MAX_DEPTH = 32

Scalar: TypeAlias = str | int | float | bool | None

_CONSTANTS: dict[str, Scalar] = {"": None, "~": None}
for _word, _meaning in (("null", None), ("true", True), ("false", False)):
    _CONSTANTS |= dict.fromkeys((_word, _word.capitalize(), _word.upper()), _meaning)
_WHOLE = re.compile(r"[-+]?[0-9]{1,18}")
_DECIMAL = re.compile(
    r"[-+]?(?:\.[0-9]{1,50}|[0-9]{1,50}(?:\.[0-9]{0,50})?)(?:[eE][-+]?[0-9]{1,3})?"
)


class YamlProblem(ValueError):
    """The text is not the YAML that is understood here."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.message = message


@dataclass(frozen=True, slots=True)
class Tree:
    """A value and the line where it is. A value of a mapping has the line of its key."""

    line: int
    value: Scalar | list[Tree] | dict[Scalar, Tree]
    size: int = 1
    """Its values and their characters, those behind aliases included."""


def parse_yaml(data: bytes) -> Tree:
    """The single document in the data; null if there is none. Raises `YamlProblem`."""
    if len(data) > MAX_BYTES:
        raise YamlProblem(1, f"the file has more than {MAX_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise YamlProblem(data[: error.start].count(b"\n") + 1, "this is not UTF-8") from None
    return _Composer(_events(text)).document()


def _events(text: str) -> Iterator[Any]:
    try:
        yield from YAML(typ="safe", pure=True).parse(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(str(error.problem or error.context or "").split())
        raise YamlProblem(mark.line + 1 if mark else 1, f"not valid YAML: {problem}") from None
    except ReaderError as error:
        line = text[: int(error.position)].count("\n") + 1
        raise YamlProblem(line, "not valid YAML: a control character") from None
    except Exception as error:
        # For some texts ruamel.yaml raises other errors than its own, such as AssertionError.
        raise YamlProblem(1, "not valid YAML") from error


class _Composer:
    """Builds the tree. An alias may only name what is complete, so the tree has no cycles."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events
        self._anchors: dict[str, Tree] = {}

    def document(self) -> Tree:
        tree: Tree | None = None
        for event in self._events:
            if isinstance(event, StreamStartEvent | DocumentEndEvent | StreamEndEvent):
                continue
            if not isinstance(event, DocumentStartEvent):
                tree = self._compose(event, 0)
            elif tree is not None:
                raise YamlProblem(_line(event), "the file has more than one document")
        return tree or Tree(1, None)

    def _compose(self, event: Any, depth: int) -> Tree:
        line = _line(event)
        if depth > _MAX_DEPTH:
            raise YamlProblem(line, f"values are nested more than {_MAX_DEPTH} deep")
        if isinstance(event, AliasEvent):
            if event.anchor not in self._anchors:
                raise YamlProblem(line, "an alias has no anchor before it")
            return replace(self._anchors[event.anchor], line=line)
        if event.tag is not None:
            raise YamlProblem(line, "tags have no place here")
        if isinstance(event, SequenceStartEvent):
            tree = self._sequence(line, depth)
        elif isinstance(event, MappingStartEvent):
            tree = self._mapping(line, depth)
        else:
            tree = Tree(line, _scalar(event), 1 + len(event.value))
        if event.anchor is not None:
            self._anchors[event.anchor] = tree
        return tree

    def _sequence(self, line: int, depth: int) -> Tree:
        items: list[Tree] = []
        size = 1
        while not isinstance(event := next(self._events), SequenceEndEvent):
            items.append(self._compose(event, depth + 1))
            size = _bounded(size + items[-1].size, items[-1].line)
        return Tree(line, items, size)

    def _mapping(self, line: int, depth: int) -> Tree:
        entries: dict[Scalar, Tree] = {}
        size = 1
        while not isinstance(event := next(self._events), MappingEndEvent):
            key = self._compose(event, depth + 1)
            value = self._compose(next(self._events), depth + 1)
            if isinstance(key.value, list | dict):
                raise YamlProblem(key.line, "a key is not text")
            if key.value in entries:
                first = entries[key.value].line
                raise YamlProblem(key.line, f"a key comes twice: it is in line {first}, too")
            entries[key.value] = replace(value, line=key.line)
            size = _bounded(size + key.size + value.size, key.line)
        return Tree(line, entries, size)


def _bounded(size: int, line: int) -> int:
    """An alias of an alias could otherwise describe more than any memory holds."""
    if size > _MAX_SIZE:
        raise YamlProblem(line, "the aliases repeat too much")
    return size


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _scalar(event: ScalarEvent) -> Scalar:
    """Plain words have the types of YAML 1.2: `no` and `off` are text."""
    text = str(event.value)
    if not text.isascii():
        text = _unicode(text, _line(event))
    if event.style:
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) else text


def _unicode(text: str, line: int) -> str:
    """The parser leaves surrogates as JSON escapes them; alone they are no characters."""
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise YamlProblem(line, "an escaped character is none of Unicode's") from None
