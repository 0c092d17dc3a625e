"""Hermes through its OpenAI-compatible API: `POST {base}/chat/completions`, streamed."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any, Self

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport
from httpx_sse import EventSource, SSEError

from molecule_hermes.errors import (
    AuthFailure,
    BadRequest,
    Busy,
    Draining,
    EmptyReply,
    InternalFailure,
    Interrupted,
    TooLarge,
    TurnFailure,
    TurnTimeout,
    Unreachable,
    failure_from_model_error,
)
from molecule_hermes.features import features_of
from molecule_hermes.mailbox import Mailbox
from molecule_hermes.transports.base import QuestionGoneError
from molecule_hermes.transports.completions import (
    Chunk,
    StreamError,
    parse_chunk,
    parse_tool,
    readable,
)
from molecule_hermes.turns import (
    Cancelled,
    Completed,
    Failed,
    Notice,
    TextDelta,
    ToolProgress,
    Turn,
    TurnEvent,
    is_last,
)

__all__ = ["MAX_BODY", "MAX_TEXT", "ChatTransport"]

logger = logging.getLogger(__name__)

MAX_TEXT = 65_536
"""Hermes cuts a longer text without a word (gateway/platforms/api_server.py:126)."""

MAX_BODY = 10_000_000
"""Bytes of a request that Hermes takes (api_server.py:124)."""

MAX_REPLY = 8 * 2**20
"""A reply beyond this is a runaway; it would be copied into every update of the task."""

# How an agent names a file to hand over; where Hermes streams, it leaves that in the text.
_FILE_NAMED = re.compile(r"^[ \t]*MEDIA:[ \t]*\S", re.M)
# Hermes sends a keep-alive every 30 s (measured), so a stream silent for three of them is dead.
_SILENCE = 100.0
_FIRST_RETRY = 0.5
_LAST_RETRY = 2.0


class _NotThere(Unreachable):
    """Nobody listens, so nothing was sent."""


class ChatTransport:
    """One pooled client for the life of the process; one request per turn."""

    features = features_of("chat")

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        model: str = "hermes-agent",
        system_prompt: str = "",
        patient: bool = False,
        connect_timeout: float = 5.0,
    ) -> None:
        """`patient`: a Hermes that is not there is being started again, and worth waiting for."""
        self._base_url = base_url.rstrip("/")
        self._api_key = api_key
        self._model = model
        self._system_prompt = system_prompt
        self._passing = (Busy, Draining, *((_NotThere,) if patient else ()))
        self._timeout = httpx.Timeout(_SILENCE, connect=connect_timeout, pool=None)
        self._readers: dict[str, asyncio.Task[None]] = {}
        self._client: httpx.AsyncClient | None = None

    def __repr__(self) -> str:
        return f"ChatTransport({self._base_url!r})"

    @property
    def pending(self) -> int:
        return len(self._readers)

    async def __aenter__(self) -> Self:
        # A new client per turn would load the TLS store each time, about 40 ms of CPU.
        # 0, because None leaves aiohttp's own limit of 100 in force.
        limits = httpx.Limits(max_connections=0, max_keepalive_connections=100)
        self._client = httpx.AsyncClient(
            transport=AiohttpTransport(limits=limits),
            timeout=self._timeout,
            headers={"Authorization": f"Bearer {self._api_key}"} if self._api_key else {},
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def check(self) -> None:
        """`/models` needs the API key, so a wrong one shows here and not on the first turn."""
        try:
            response = await self._open_client().get(f"{self._base_url}/models", timeout=5.0)
        except httpx.HTTPError as error:
            raise self._unreachable() from error
        if response.status_code != 200:
            raise _refusal(response.status_code)

    async def run(self, turn: Turn) -> AsyncGenerator[TurnEvent, None]:
        """Yields what the reader task puts into the mailbox.

        The reader is a task of its own so that a cancel reaches the socket, and never the
        consumer in the middle of handling an event.
        """
        mailbox: Mailbox[TurnEvent] = Mailbox()
        reader = asyncio.create_task(self._read(turn, mailbox), name=f"chat:{turn.message_id}")
        self._readers[turn.message_id] = reader
        try:
            while True:
                event = await mailbox.get()
                yield event
                if is_last(event):
                    return
        finally:
            del self._readers[turn.message_id]
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader

    async def cancel(self, turn: Turn) -> None:
        """Closes the stream; Hermes interrupts its agent at the next write."""
        if reader := self._readers.get(turn.message_id):
            reader.cancel()

    async def answer(self, turn: Turn, question_id: str, answer: str) -> None:
        """Hermes has no way to ask here: a dangerous command is refused by its tool."""
        raise QuestionGoneError(question_id)

    async def _read(self, turn: Turn, mailbox: Mailbox[TurnEvent]) -> None:
        last: TurnEvent
        try:
            last = await self._request(turn, mailbox)
        except asyncio.CancelledError:
            mailbox.put(Cancelled())
            raise
        except TurnFailure as failure:
            last = Failed(failure)
        except Exception:
            logger.exception("turn %s failed in the chat transport", turn.message_id)
            last = Failed(InternalFailure())
        mailbox.put(last)

    async def _request(self, turn: Turn, mailbox: Mailbox[TurnEvent]) -> Completed:
        if len(turn.text) > MAX_TEXT:
            raise TooLarge(
                f"the message has {len(turn.text):,} characters; Hermes takes {MAX_TEXT:,}"
            )
        body = self._body(turn)
        wait = _FIRST_RETRY
        while True:
            try:
                return await self._attempt(turn, body, mailbox)
            except self._passing as failure:
                # Refused before anything ran, so trying again cannot run the turn twice. The
                # executor bounds the whole by the turn's time.
                mailbox.put(Notice(f"{failure.message}; trying again in {wait:g} s"))
                await asyncio.sleep(wait)
                wait = min(wait * 2, _LAST_RETRY)

    def _body(self, turn: Turn) -> bytes:
        messages: list[dict[str, Any]] = [{"role": "user", "content": _content(turn)}]
        if self._system_prompt:
            messages.insert(0, {"role": "system", "content": self._system_prompt})
        request = {"model": self._model, "stream": True, "messages": messages}
        body = json.dumps(request, ensure_ascii=False).encode()
        if len(body) > MAX_BODY:
            raise TooLarge(
                f"the message takes {len(body):,} bytes with its images; Hermes takes "
                f"{MAX_BODY:,} over chat completions",
                hint="send smaller or fewer images at once",
            )
        return body

    async def _attempt(self, turn: Turn, body: bytes, mailbox: Mailbox[TurnEvent]) -> Completed:
        reply = _Reply(mailbox)
        try:
            async with self._open_client().stream(
                "POST",
                f"{self._base_url}/chat/completions",
                content=_pieces(body),
                headers={
                    "Content-Length": str(len(body)),
                    "Content-Type": "application/json",
                    "X-Hermes-Session-Id": turn.conversation,
                },
            ) as response:
                if response.status_code != 200:
                    raise _refusal(response.status_code, await _error_text(response))
                return await reply.read(response)
        except (StreamError, SSEError) as error:
            raise InternalFailure(
                "Hermes answered something that is not a chat completion",
                hint="check that HERMES_API_BASE is a Hermes API server",
            ) from error
        except httpx.ReadTimeout as error:
            raise TurnTimeout(f"Hermes was silent for {_SILENCE:g} s") from error
        except httpx.HTTPError as error:
            if _never_connected(error):
                raise self._unreachable() from error
            raise Interrupted("the stream from Hermes broke off") from error

    def _open_client(self) -> httpx.AsyncClient:
        if self._client is None:
            raise Draining("the transport is closed")
        return self._client

    def _unreachable(self) -> Unreachable:
        return _NotThere(f"Hermes does not answer at {self._base_url}")


class _Reply:
    """Collects one streamed reply.

    Hermes's deltas are interim text, tools, and the answer in one flow. What stands
    before a tool call is interim: the text after the last one is the answer.
    """

    def __init__(self, mailbox: Mailbox[TurnEvent]) -> None:
        self._mailbox = mailbox
        self._segment: list[str] = []
        self._interim = ""
        self._size = 0

    async def read(self, response: httpx.Response) -> Completed:
        source = EventSource(response)
        finish: Chunk | None = None
        async for event in source.aiter_sse():
            if event.event == "hermes.tool.progress":
                self._tool(parse_tool(event.data))
            elif event.data.strip() == "[DONE]":
                break
            elif event.event == "message" and event.data:
                chunk = parse_chunk(event.data)
                self._text(chunk.text)
                if chunk.finish_reason:
                    finish = chunk
        return self._end(finish)

    def _tool(self, progress: ToolProgress) -> None:
        if progress.phase == "start" and self._segment:
            self._interim = "".join(self._segment)
            self._segment.clear()
        self._mailbox.put(progress)

    def _text(self, text: str) -> None:
        first = not self._segment
        if first and self._interim:
            text = text.lstrip("\n")  # Hermes parts the segments by a blank line of its own
        if not text:
            return
        self._size += len(text)
        if self._size > MAX_REPLY:
            raise TooLarge("the reply is too long to pass on", hint="ask for less at once")
        self._segment.append(text)
        self._mailbox.put(TextDelta(text, replace=first and bool(self._interim)))

    def _end(self, finish: Chunk | None) -> Completed:
        if finish is None:
            raise Interrupted("the stream from Hermes ended without a finish")
        text = "".join(self._segment) or self._interim
        if finish.finish_reason == "error":
            raise failure_from_model_error(finish.error)
        if finish.finish_reason == "length":
            self._mailbox.put(Notice("the reply was cut at the model's output limit"))
        if not text.strip():
            raise EmptyReply()
        if _FILE_NAMED.search(text):
            self._mailbox.put(Notice("files cannot be handed over by chat completions"))
        return Completed(text, finish.usage)


def _never_connected(error: httpx.HTTPError) -> bool:
    """Whether nothing of the request left; httpx-aiohttp calls a lost connection the same."""
    cause = error.__cause__
    return isinstance(cause, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)


def _content(turn: Turn) -> str | list[dict[str, Any]]:
    """The text, with images as parts beside it."""
    if not turn.attachments:
        return turn.text
    parts: list[dict[str, Any]] = [{"type": "text", "text": turn.text}] if turn.text else []
    for image in turn.attachments:
        data = base64.b64encode(image.data).decode()
        url = f"data:{image.media_type};base64,{data}"
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return parts


async def _pieces(body: bytes, size: int = 2**16) -> AsyncIterator[bytes]:
    """A body with images in it, written in one go, would hold up the event loop."""
    for start in range(0, len(body), size):
        yield body[start : start + size]


_REFUSALS: Mapping[int, Callable[[], TurnFailure]] = {
    401: lambda: AuthFailure(
        "Hermes refused the bridge's API key",
        hint="API_SERVER_KEY must be the same for the bridge and for Hermes",
    ),
    404: lambda: Unreachable(
        "no chat completions at that address", hint="HERMES_API_BASE usually ends in /v1"
    ),
    413: TooLarge,
    429: lambda: Busy("Hermes runs as many turns as it may"),
    503: lambda: Draining("Hermes is starting or shutting down"),
}


def _refusal(status: int, detail: str = "") -> TurnFailure:
    """Names what an HTTP status of Hermes's API server means for the turn."""
    if status in _REFUSALS:
        return _REFUSALS[status]()
    if status >= 500:
        return failure_from_model_error(detail, status)
    return BadRequest(f"Hermes refused the message: {detail}" if detail else "", hint="")


async def _error_text(response: httpx.Response, limit: int = 64 * 1024) -> str:
    """What an error body says, read up to a limit."""
    body = bytearray()
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) >= limit:
            break
    text = body[:limit].decode("utf-8", "replace")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return text[:500]
    error = data.get("error") if isinstance(data, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return readable(message[:500]) if isinstance(message, str) else ""
