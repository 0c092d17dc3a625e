"""The transport to Hermes's OpenAI-compatible API: `POST {base}/chat/completions`, streamed."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import partial
from typing import Any, Self

import aiohttp

from molecule_hermes.backoff import Backoff
from molecule_hermes.errors import (
    AuthFailure,
    BadRequest,
    Busy,
    Draining,
    InternalFailure,
    Interrupted,
    TooLarge,
    TurnFailure,
    TurnTimeout,
    Unreachable,
)
from molecule_hermes.provider_errors import failure_from_model_error
from molecule_hermes.transports.base import BACKOFF, Attached, QuestionGoneError, as_payload
from molecule_hermes.transports.chat.completions import (
    StreamError,
    readable,
)
from molecule_hermes.transports.chat.history import with_history
from molecule_hermes.transports.chat.profiles import base_of, require_profiles
from molecule_hermes.transports.chat.reply import StreamedReply
from molecule_hermes.transports.deliveries import Receiver
from molecule_hermes.turns.features import Feature, features_of, why_not
from molecule_hermes.turns.model import (
    Canceled,
    Completed,
    Failed,
    Notice,
    Place,
    Turn,
    TurnEvent,
    is_last,
)
from molecule_hermes.wire import Steered

__all__ = ["MAX_BODY", "MAX_TEXT", "ChatTransport"]

logger = logging.getLogger(__name__)

MAX_TEXT = 65_536
"""Hermes truncates a longer text silently (gateway/platforms/api_server.py:126)."""

MAX_BODY = 10_000_000
"""The largest request body that Hermes accepts, in bytes (api_server.py:124)."""

# Hermes sends a keep-alive every 30 s (measured): a stream that misses three of them is dead.
_SILENCE = 100.0
_OPENING = 32


class _NotListening(Unreachable):
    """Nothing listens at the address, so nothing was sent."""


class ChatTransport:
    """One HTTP client for the life of the process, and one request per turn."""

    features = features_of("chat")

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        model: str = "hermes-agent",
        patient: bool = False,
        connect_timeout: float = 5.0,
        backoff: Backoff = BACKOFF,
        profile: str = "",
        holds_toolsets: bool = False,
    ) -> None:
        """With `patient`, turns wait for a Hermes that is not there: it is being restarted.
        `profile` is the profile of Hermes that answers turns which name none. `holds_toolsets` says
        that the configuration of Hermes limits its agent to the toolsets of the turns."""
        self._base_url = base_url.rstrip("/")
        self._api_key = api_key
        self._model = model
        self._profile = profile
        self._holds_toolsets = holds_toolsets
        self._backoff = backoff
        self._retried = (Busy, Draining, *((_NotListening,) if patient else ()))
        self._timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=connect_timeout, sock_read=_SILENCE
        )
        self._readers: dict[str, asyncio.Task[None]] = {}
        self._session: aiohttp.ClientSession | None = None

    def __repr__(self) -> str:
        return f"ChatTransport({self._base_url!r})"

    @property
    def pending(self) -> int:
        return len(self._readers)

    async def __aenter__(self) -> Self:
        # A session per turn would load the TLS certificates each time: about 40 ms of CPU.
        self._session = aiohttp.ClientSession(
            connector=_PacedConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=self._timeout,
            headers={"Authorization": f"Bearer {self._api_key}"} if self._api_key else {},
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def check(self) -> None:
        """Requests `/models`, which needs the API key: a wrong one fails here, not in a turn."""
        limit = aiohttp.ClientTimeout(total=5.0)
        try:
            if self._profile:
                await require_profiles(self._open_session(), self._base_url, self._profile)
            url = f"{base_of(self._base_url, self._profile)}/models"
            async with self._open_session().get(
                url, timeout=limit, allow_redirects=False
            ) as response:
                status = response.status
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._unreachable() from error
        if status != 200:
            raise _refusal(status)

    async def run(self, turn: Turn) -> AsyncGenerator[TurnEvent, None]:
        """Yields the events that the reader task puts into the queue.

        The reader is a separate task so that a cancel interrupts the socket, and never the
        consumer while it handles an event.
        """
        events: asyncio.Queue[TurnEvent] = asyncio.Queue()
        reader = asyncio.create_task(self._read(turn, events), name=f"chat:{turn.message_id}")
        reader.add_done_callback(partial(_put_canceled, events))
        self._readers[turn.message_id] = reader
        try:
            while True:
                event = await events.get()
                yield event
                if is_last(event):
                    return
        finally:
            del self._readers[turn.message_id]
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader

    async def cancel(self, turn: Turn) -> None:
        """Closes the stream. Hermes interrupts its agent at the next write."""
        if reader := self._readers.get(turn.message_id):
            reader.cancel()

    async def answer(self, turn: Turn, question_id: str, answer: str) -> None:
        """Hermes asks nothing over chat completions: its tools refuse dangerous commands."""
        raise QuestionGoneError(question_id)

    def place(self, turn: Turn) -> Place:
        return Place(self._base_url)

    def take_deliveries(self, receiver: Receiver) -> None:
        """There are none."""

    def leave_turns(self) -> None:
        """Hermes stops a turn whose stream is closed."""

    async def attach(self, turn: Turn, place: Place) -> Attached:
        raise Interrupted("the agent was restarted during the turn")

    async def steer(self, turn: Turn, text: str) -> Steered:
        return Steered(False, why_not(Feature.STEERING, "chat"))

    async def _read(self, turn: Turn, events: asyncio.Queue[TurnEvent]) -> None:
        last: TurnEvent
        try:
            last = await self._request(turn, events)
        except TurnFailure as failure:
            last = Failed(failure)
        except Exception:
            logger.exception("turn %s failed in the chat transport", turn.message_id)
            last = Failed(InternalFailure())
        events.put_nowait(last)

    async def _request(self, turn: Turn, events: asyncio.Queue[TurnEvent]) -> Completed | Failed:
        if len(turn.text) > MAX_TEXT:
            raise TooLarge(
                f"the message has {len(turn.text):,} characters; Hermes accepts {MAX_TEXT:,}"
            )
        if turn.toolsets is not None and not self._holds_toolsets:
            raise BadRequest(
                "the toolsets of a peer cannot be held over chat completions",
                hint="let the bridge reach this Hermes through its plugin",
            )
        if turn.history and not await self._knows(turn):
            turn = with_history(turn, MAX_TEXT)
        body = self._body(turn)
        delays = self._backoff.delays()
        while True:
            try:
                return await self._attempt(turn, body, events)
            except self._retried as failure:
                # Refused before anything ran, so a retry cannot run the turn twice. The executor
                # bounds all attempts together by the turn's timeout.
                delay = next(delays)
                events.put_nowait(
                    Notice(f"{failure.message}; trying again in {delay:g} s", kind="retrying")
                )
                await asyncio.sleep(delay)

    def _base_of(self, turn: Turn) -> str:
        return base_of(self._base_url, turn.profile or self._profile)

    async def _knows(self, turn: Turn) -> bool:
        """Whether Hermes has the session. If it cannot be asked, it counts as known: to repeat
        earlier turns that Hermes remembers is worse than to leave them out."""
        url = f"{self._base_of(turn).removesuffix('/v1')}/api/sessions/{turn.conversation}"
        limit = aiohttp.ClientTimeout(total=5.0)
        try:
            async with self._open_session().get(url, timeout=limit, allow_redirects=False) as found:
                return found.status != 404
        except (aiohttp.ClientError, TimeoutError):
            return True

    def _body(self, turn: Turn) -> bytes:
        messages: list[dict[str, Any]] = [{"role": "user", "content": _content(turn)}]
        if turn.system_prompt:
            messages.insert(0, {"role": "system", "content": turn.system_prompt})
        request = {"model": self._model, "stream": True, "messages": messages}
        body = json.dumps(request, ensure_ascii=False).encode()
        if len(body) > MAX_BODY:
            raise TooLarge(
                f"the message has {len(body):,} bytes with its images; Hermes accepts "
                f"{MAX_BODY:,} over chat completions",
                hint="send smaller or fewer images at once",
            )
        return body

    async def _attempt(
        self, turn: Turn, body: bytes, events: asyncio.Queue[TurnEvent]
    ) -> Completed | Failed:
        reply = StreamedReply(events)
        try:
            if profile := turn.profile or self._profile:
                # In each turn, because Hermes may have been restarted without profiles.
                await require_profiles(self._open_session(), self._base_url, profile)
            async with self._open_session().post(
                f"{self._base_of(turn)}/chat/completions",
                data=as_payload(body),
                headers={
                    "Content-Type": "application/json",
                    "X-Hermes-Session-Id": turn.conversation,
                },
                allow_redirects=False,
            ) as response:
                return await reply.read(await _stream(response))
        except StreamError as error:
            raise InternalFailure(
                "the response of Hermes is not a chat completion",
                hint="check that HERMES_API_BASE is the address of a Hermes API server",
            ) from error
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise self._unreachable() from error  # nothing was sent
        except TimeoutError as error:
            raise TurnTimeout(f"Hermes was silent for {_SILENCE:g} s") from error
        except aiohttp.ClientError as error:
            raise Interrupted("the stream from Hermes was cut") from error

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise Draining("the transport is closed")
        return self._session

    def _unreachable(self) -> Unreachable:
        return _NotListening(f"Hermes does not answer at {self._base_url}")


class _PacedConnector(aiohttp.TCPConnector):
    """Opens a limited number of connections at a time. Opening one takes about 4 KiB, which
    a thousand turns at once would otherwise hold together."""

    def __init__(self, *, limit: int) -> None:
        super().__init__(limit=limit)
        self._opening = asyncio.Semaphore(_OPENING)

    async def connect(self, *args: Any, **more: Any) -> aiohttp.connector.Connection:
        async with self._opening:
            return await super().connect(*args, **more)


def _put_canceled(events: asyncio.Queue[TurnEvent], reader: asyncio.Task[None]) -> None:
    """A done callback, because a task that is canceled before its first step never runs."""
    if reader.cancelled():
        events.put_nowait(Canceled())


def _content(turn: Turn) -> str | list[dict[str, Any]]:
    """The text, and the images as further parts."""
    if not turn.attachments:
        return turn.text
    parts: list[dict[str, Any]] = [{"type": "text", "text": turn.text}] if turn.text else []
    for image in turn.attachments:
        data = base64.b64encode(image.data).decode()
        url = f"data:{image.media_type};base64,{data}"
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return parts


_REFUSALS: Mapping[int, Callable[[], TurnFailure]] = {
    401: lambda: AuthFailure(
        "Hermes refused the bridge's API key",
        hint="set API_SERVER_KEY to the same value for the bridge and for Hermes",
    ),
    404: lambda: Unreachable(
        "there is no chat completions API at that address",
        hint="HERMES_API_BASE usually ends in /v1",
    ),
    413: TooLarge,
    429: lambda: Busy("Hermes is at its limit of concurrent turns"),
    503: lambda: Draining("Hermes is starting or shutting down"),
}


def _refusal(status: int, detail: str = "") -> TurnFailure:
    """The failure that an HTTP status of Hermes's API server means for the turn."""
    if status in _REFUSALS:
        return _REFUSALS[status]()
    if 300 <= status < 400:
        return Unreachable(
            "the server at Hermes's address redirects elsewhere",
            hint="set HERMES_API_BASE to the address of Hermes itself",
        )
    if status >= 500:
        return failure_from_model_error(detail, status)
    return BadRequest(f"Hermes refused the message: {detail}" if detail else "", hint="")


async def _stream(response: aiohttp.ClientResponse) -> aiohttp.StreamReader:
    if response.status in _REFUSALS:
        raise _refusal(response.status)
    if response.status != 200:
        raise _refusal(response.status, await _error_text(response))
    if response.content_type != "text/event-stream":
        raise StreamError("not an event stream")
    return response.content


async def _error_text(response: aiohttp.ClientResponse, limit: int = 64 * 1024) -> str:
    """The message in an error body, of which at most `limit` bytes are read."""
    body = bytearray()
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):  # keep what has arrived
        async for piece in response.content.iter_any():
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
