"""Request bodies: read within limits and checked before the SDK parses them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from a2a.server.jsonrpc_models import JSONParseError
from a2a.server.request_handlers.response_helpers import build_error_response
from a2a.utils.error_handlers import build_rest_error_payload
from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    InvalidRequestError,
)
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from molecule_hermes.server.json_scan import (
    JsonLimitError,
    JsonLimits,
    JsonScanner,
    JsonSyntaxError,
)

__all__ = ["BodyMiddleware", "replay"]

UNREADABLE = "the body cannot be parsed as JSON"

_PIECE = 8 * 1024
"""Bytes that are scanned before other requests can run: at most 12 ms, as measured."""


class BodyMiddleware:
    """Reads the whole body within limits on its size, its JSON and its time, and passes it on.

    The SDK has no limits of its own, and reads the body of a GET, too.
    """

    def __init__(
        self,
        app: ASGIApp,
        limit: int,
        rpc_paths: Collection[str],
        *,
        json_limits: JsonLimits,
        timeout: float = 30.0,
    ) -> None:
        self._app = app
        self._limit = limit
        self._rpc_paths = rpc_paths
        self._json_limits = json_limits
        self._timeout = timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _has_body(scope):
            try:
                receive = await self._checked(scope, receive)
            except _RefusedError as refused:
                await self._refuse(scope, *refused.args)(scope, receive, send)
                return
            except ClientDisconnect:
                return
        await self._app(scope, receive, send)

    async def _checked(self, scope: Scope, receive: Receive) -> Receive:
        """Reads and checks the body; returns a `receive` that replays it."""
        headers = HTTPConnection(scope).headers
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > self._limit:
            raise self._too_large()
        try:
            async with asyncio.timeout(self._timeout):
                body = await self._read(receive, _is_json(headers.get("content-type", "")))
        except TimeoutError:
            raise _RefusedError(
                408, InvalidRequestError("the body did not arrive in time")
            ) from None
        return replay(body, receive)

    async def _read(self, receive: Receive, is_json: bool) -> bytes:
        body = bytearray()
        scanner = JsonScanner(self._json_limits)
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            chunk = message.get("body", b"")
            if chunk and not is_json:
                raise _RefusedError(415, ContentTypeNotSupportedError("send application/json"))
            body += chunk
            if len(body) > self._limit:
                raise self._too_large()
            last = not message.get("more_body")
            await _scan(scanner, chunk, last=last and bool(body))
            if last:
                return bytes(body)

    def _too_large(self) -> _RefusedError:
        return _RefusedError(
            413, InvalidRequestError(f"the body is larger than {self._limit} bytes")
        )

    def _refuse(self, scope: Scope, status: int, error: A2AError) -> Response:
        if scope["path"] in self._rpc_paths:
            # JSON-RPC reports a bad body inside the envelope; its clients do not expect a 415.
            shown = JSONParseError(message=str(error)) if status == 400 else error
            payload = build_error_response(None, shown)
            return JSONResponse(payload, 200 if status in (400, 415) else status)
        payload = build_rest_error_payload(error)
        payload["error"]["code"] = status
        return JSONResponse(payload, status)


class _RefusedError(Exception):
    """Its arguments are the HTTP status and the error."""


def _has_body(scope: Scope) -> bool:
    """HTTP/1.1 announces a body with one of these headers, whatever the method is."""
    names = {name for name, _ in scope["headers"]}
    return b"content-length" in names or b"transfer-encoding" in names


def _is_json(content_type: str) -> bool:
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type == "application/json" or (
        media_type.startswith("application/") and media_type.endswith("+json")
    )


async def _scan(scanner: JsonScanner, chunk: bytes, *, last: bool) -> None:
    """Scans a large chunk in pieces, and lets other requests run between them."""
    try:
        for start in range(0, len(chunk), _PIECE):
            if start:
                await asyncio.sleep(0)
            scanner.feed(chunk[start : start + _PIECE])
        if last:
            scanner.close()
    except JsonSyntaxError as error:
        raise _RefusedError(400, InvalidRequestError(UNREADABLE)) from error
    except JsonLimitError as error:
        if error.count:
            raise _RefusedError(
                413,
                InvalidRequestError(f"the body is too large: {error}; send less, or send a file"),
            ) from error
        raise _RefusedError(400, InvalidRequestError(f"{UNREADABLE}: {error}")) from error


def replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns the body once, and does not keep it afterwards."""
    bodies = [body]

    async def replay() -> Message:
        if not bodies:
            return await receive()
        return {"type": "http.request", "body": bodies.pop(), "more_body": False}

    return replay
