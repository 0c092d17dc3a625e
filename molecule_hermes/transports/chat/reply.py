"""Reads one streamed chat completion and turns it into turn events."""

from __future__ import annotations

import asyncio
import re

import aiohttp

from molecule_hermes.errors import EmptyReply, Interrupted, TooLarge
from molecule_hermes.provider_errors import failure_from_model_error
from molecule_hermes.transports.chat.completions import (
    Chunk,
    EventStream,
    parse_chunk,
    parse_tool,
)
from molecule_hermes.turns.model import (
    Completed,
    Failed,
    Notice,
    TextDelta,
    ToolProgress,
    TurnEvent,
)

__all__ = ["MAX_REPLY", "StreamedReply"]

MAX_REPLY = 8 * 2**20
"""A longer reply is a runaway model. It would be copied into every update of the task."""

# How an agent marks a file for delivery. Hermes leaves the mark in streamed text.
_FILE_MARK = re.compile(r"^[ \t]*MEDIA:[ \t]*\S", re.M)


class StreamedReply:
    """Collects one streamed reply.

    Hermes streams interim text, tool calls and the answer together. Text before a tool call is
    interim; the text after the last one is the answer.
    """

    def __init__(self, events: asyncio.Queue[TurnEvent]) -> None:
        self._events = events
        self._segment: list[str] = []
        self._interim = ""
        self._size = 0

    async def read(self, content: aiohttp.StreamReader) -> Completed | Failed:
        events = EventStream()
        finish: Chunk | None = None
        async for received in content.iter_any():
            for name, data in events.feed(received):
                if name == "hermes.tool.progress":
                    self._tool(parse_tool(data))
                elif data.strip() == "[DONE]":
                    return self._end(finish)
                elif name == "message" and data:
                    chunk = parse_chunk(data)
                    self._text(chunk.text)
                    if chunk.finish_reason:
                        finish = chunk
        return self._end(finish)

    def _tool(self, progress: ToolProgress) -> None:
        if progress.phase == "start" and self._segment:
            self._interim = "".join(self._segment)
            self._segment.clear()
        self._events.put_nowait(progress)

    def _text(self, text: str) -> None:
        first = not self._segment
        if first and self._interim:
            text = text.lstrip("\n")  # Hermes separates the segments by a blank line
        if not text:
            return
        self._size += len(text)
        if self._size > MAX_REPLY:
            raise TooLarge("the reply is too long", hint="ask for less at once")
        self._segment.append(text)
        self._events.put_nowait(TextDelta(text, replace=first and bool(self._interim)))

    def _end(self, finish: Chunk | None) -> Completed | Failed:
        if finish is None:
            raise Interrupted("the stream from Hermes ended without a finish")
        text = "".join(self._segment) or self._interim
        if finish.finish_reason == "error":
            return Failed(failure_from_model_error(finish.error), finish.usage)
        if finish.finish_reason == "length":
            self._events.put_nowait(Notice("the reply was cut at the model's output limit"))
        if not text.strip():
            return Failed(EmptyReply(), finish.usage)
        if _FILE_MARK.search(text):
            self._events.put_nowait(Notice("files cannot be delivered over chat completions"))
        return Completed(text, finish.usage)
