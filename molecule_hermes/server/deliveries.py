"""`GET /deliveries`: a caller's deliveries as server-sent events, from the store.

An event's id is a cursor: a client that names the last one that it has gets what came after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from datetime import datetime
from typing import Any, Protocol

from a2a.server.context import ServerCallContext
from a2a.types import Task
from a2a.utils.errors import A2AError
from google.protobuf.json_format import MessageToDict
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from molecule_hermes.errors import StorageFailure
from molecule_hermes.protocol.caller import Caller
from molecule_hermes.protocol.numbers import with_whole_numbers
from molecule_hermes.protocol.task_registry import TaskRegistry
from molecule_hermes.server.rest import rest_error
from molecule_hermes.server.versions import CallContextBuilder
from molecule_hermes.storage.base import DeliveryEvent

__all__ = ["DeliveryFeed", "Wake", "delivery_endpoint"]

_BATCH = 50
_MAX_CURSOR = 2**63 - 1
_RETRY_STORE = 1.0
_LONGEST = 3600.0
"""Seconds of a stream. Then its client comes back, and shows that it still may follow."""


class Wake(asyncio.Event):
    """Set when there may be more for a stream, or when it is over."""

    over = False


class DeliveryFeed:
    """Tells its subscribers what the store has. Nothing is kept for them but their cursors."""

    def __init__(
        self,
        tasks: TaskRegistry,
        *,
        max_subscribers: int = 256,
        max_of_caller: int = 8,
        keepalive: float = 15.0,
    ) -> None:
        self._tasks = tasks
        self._max_subscribers = max_subscribers
        self._max_of_caller = max_of_caller
        self._keepalive = keepalive
        self._subscribers: dict[Wake, frozenset[str]] = {}
        self._of_caller: Counter[str] = Counter()
        self._closed = False

    def __len__(self) -> int:
        return len(self._subscribers)

    def changed(self, owner: str) -> None:
        """A delivery of the owner was stored."""
        for wake, owners in self._subscribers.items():
            if owner in owners:
                wake.set()

    def close(self) -> None:
        """Ends all streams. The clients come back to the next bridge with their cursors."""
        self._closed = True
        self.end_all()

    def end_all(self) -> None:
        """Ends those that there are now: who may follow what may be different from now on."""
        for wake in self._subscribers:
            wake.over = True
            wake.set()

    def respond(self, request: Request, owners: Sequence[str], peer: str) -> Response:
        try:
            after = _cursor(request)
        except ValueError as error:
            return _refused(400, str(error))
        if self._closed:
            return _refused(503, "the agent is shutting down", retry_after=5)
        full = len(self._subscribers) >= self._max_subscribers
        if full or self._of_caller[peer] >= self._max_of_caller:
            return _refused(429, "too many clients follow deliveries", retry_after=30)
        # Counted from now on, so that requests that arrive together do not pass the limit together.
        lasting = contextlib.ExitStack()
        wake = lasting.enter_context(self._subscribed(frozenset(owners), peer))
        return _Stream(self.events(owners, after, wake), lasting)

    @contextlib.contextmanager
    def _subscribed(self, owners: frozenset[str], peer: str) -> Iterator[Wake]:
        wake = Wake()
        self._subscribers[wake] = owners
        self._of_caller[peer] += 1
        try:
            yield wake
        finally:
            del self._subscribers[wake]
            self._of_caller[peer] -= 1
            if not self._of_caller[peer]:
                del self._of_caller[peer]

    async def events(
        self, owners: Sequence[str], after: int | None, wake: Wake
    ) -> AsyncGenerator[str, None]:
        """The lines of a stream; `wake` is set when there may be more."""
        cursor = int(time.time() * 1e6) if after is None else after
        until = time.monotonic() + _LONGEST
        # A client that has seen nothing yet comes back to where it began, too.
        yield f"id: {cursor}\nretry: 2000\n\n"
        while not wake.over and time.monotonic() < until:
            wake.clear()  # before the store is read: what comes later sets it again
            try:
                found = await self._tasks.delivery_events(owners, cursor, _BATCH)
                for event in found:
                    yield await self._shown(event)
                    cursor = event.number
            except StorageFailure:
                yield ": the store does not respond\n\n"
                await asyncio.sleep(_RETRY_STORE)
                continue
            if not found:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._keepalive):
                        await wake.wait()
                        continue
                yield ": still here\n\n"

    async def _shown(self, event: DeliveryEvent) -> str:
        """The event's text. What was deleted meanwhile is no event, but still a cursor."""
        caller = Caller.from_scope(event.owner)
        task = await self._tasks.get(event.task_id, ServerCallContext(user=caller))
        if task is None:
            return f"id: {event.number}\n\n"
        if event.kind == "created":
            task.ClearField("artifacts")
            task.ClearField("history")
        data = {"kind": event.kind, "agent": caller.agent, "task": _json(task)}
        text = json.dumps(data, separators=(",", ":"))
        return f"id: {event.number}\nevent: {event.kind}\ndata: {text}\n\n"


def delivery_endpoint(
    feed: DeliveryFeed, scopes: Scopes, delivers: Callable[[str], bool]
) -> Callable[[Request], Awaitable[Response]]:
    """`delivers` says whether an agent can make deliveries now."""

    async def handle(request: Request) -> Response:
        context = CallContextBuilder().build(request)
        try:
            owners = scopes.scopes(context)
        except A2AError as error:
            return rest_error(error)
        if not any(map(delivers, owners)):
            return _refused(404, "no agent here speaks to you unasked")
        peer = context.user.user_name if context.user.is_authenticated else ""
        return feed.respond(request, list(owners.values()), peer)

    return handle


class Scopes(Protocol):
    def scopes(self, context: ServerCallContext) -> Mapping[str, str]:
        """The agents that the caller reaches, and the owner of its tasks at each. Raises
        `A2AError`."""


class _Stream(StreamingResponse):
    """Also leaves the feed if the client is gone before the first event."""

    def __init__(self, events: AsyncGenerator[str, None], lasting: contextlib.ExitStack) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._events = events
        self._lasting = lasting

    async def __call__(self, *asgi: Any) -> None:
        with self._lasting:
            async with contextlib.aclosing(self._events):
                await super().__call__(*asgi)


def _json(task: Task) -> Any:
    return with_whole_numbers(MessageToDict(task))


def _cursor(request: Request) -> int | None:
    """The number after which events are wanted; None for those from now on. Raises `ValueError`."""
    query = request.query_params
    given = request.headers.get("last-event-id") or query.get("after")
    if given is not None:
        if not (given.isascii() and given.isdigit()) or int(given[:20]) > _MAX_CURSOR:
            raise ValueError("`after` and Last-Event-ID take the id of an event, or 0 for all")
        return int(given[:20])
    if (since := query.get("since")) is None:
        return None
    try:
        seconds = datetime.fromisoformat(since).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ValueError("`since` takes a time such as 2026-01-31T12:00:00Z") from None
    return min(max(0, int(seconds * 1e6)), _MAX_CURSOR)


def _refused(status: int, message: str, *, retry_after: int = 0) -> JSONResponse:
    headers = {"Retry-After": str(retry_after)} if retry_after else None
    return JSONResponse({"error": {"code": status, "message": message}}, status, headers)
