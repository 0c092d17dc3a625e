"""Parses the stream of `/chat/completions`. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from molecule_hermes.text import redact
from molecule_hermes.turns.model import ToolProgress, Usage

__all__ = ["Chunk", "EventStream", "StreamError", "parse_chunk", "parse_tool", "readable"]

_PREVIEW = 200
_MAX_EVENT = 16 * 2**20


class StreamError(ValueError):
    """The stream is not one of chat completion chunks."""


@dataclass(frozen=True, slots=True)
class Chunk:
    text: str = ""
    finish_reason: str = ""
    error: str = ""
    usage: Usage | None = None


class EventStream:
    """Parses server-sent events, as pairs of name and data, from bytes in chunks of any size."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._name = ""
        self._data: list[str] = []
        self._size = 0

    def feed(self, received: bytes) -> Iterator[tuple[str, str]]:
        """Yields the complete events. Raises `StreamError` when an event gets too large."""
        self._line += received
        *lines, self._line = self._line.split(b"\n") if b"\n" in received else [self._line]
        for line in lines:
            if line := line.removesuffix(b"\r"):
                self._field(line)
                continue
            name, data = self._name, self._data
            self._name, self._data, self._size = "", [], 0
            if data:
                yield name or "message", "\n".join(data)
        if self._size + len(self._line) > _MAX_EVENT:
            raise StreamError("an event is too large")

    def _field(self, line: bytearray) -> None:
        name, _, value = line.decode("utf-8", "replace").partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
            self._size += len(line)  # not of the value: it can be empty
        elif name == "event":
            self._name = value


def parse_chunk(data: str) -> Chunk:
    """Reads one `data:` line; raises `StreamError` and nothing else."""
    chunk = _object(data)
    choices = chunk.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else {}
    if not isinstance(choice, dict):
        raise StreamError("a choice is not an object")
    delta = choice.get("delta")
    text = delta.get("content") if isinstance(delta, dict) else None
    error = _error(chunk)
    finish = choice.get("finish_reason")
    if not isinstance(finish, str):
        finish = "error" if error else ""
    return Chunk(
        text=readable(text) if isinstance(text, str) else "",
        finish_reason=finish,
        error=error,
        usage=_usage(chunk.get("usage")),
    )


def readable(text: str) -> str:
    """The text without lone surrogates (`\\ud83d`), which JSON allows and protobuf refuses."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def parse_tool(data: str) -> ToolProgress:
    """Reads the data of a `hermes.tool.progress` event; raises `StreamError` and nothing else."""
    progress = _object(data)
    tool = progress.get("tool")
    if not isinstance(tool, str) or not tool:
        raise StreamError("a tool event names no tool")
    label, call = progress.get("label"), progress.get("toolCallId")
    return ToolProgress(
        tool=readable(tool[:_PREVIEW]),
        phase="end" if progress.get("status") == "completed" else "start",
        preview=redact(readable(label[:_PREVIEW])) if isinstance(label, str) else "",
        call_id=readable(call[:_PREVIEW]) if isinstance(call, str) else "",
    )


def _object(data: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StreamError("not JSON") from error
    if not isinstance(value, dict):
        raise StreamError("not a JSON object")
    return value


def _error(chunk: dict[str, Any]) -> str:
    """Hermes repeats an upstream failure in `hermes.error` and `error.message`."""
    for place, key in (("hermes", "error"), ("error", "message")):
        holder = chunk.get(place)
        if isinstance(holder, dict) and isinstance(text := holder.get(key), str) and text:
            return readable(text)
    return ""


def _usage(value: object) -> Usage | None:
    if not isinstance(value, dict):
        return None
    return Usage(
        _count(value.get("prompt_tokens")),
        _count(value.get("completion_tokens")),
        _count(value.get("total_tokens")),
    )


def _count(value: object) -> int:
    """A count that JSON and A2A's metadata represent exactly, otherwise 0."""
    if not isinstance(value, int) or isinstance(value, bool):
        return 0
    return value if 0 <= value < 2**53 else 0
