"""What a request must pass before the SDK sees it: host, peer token, media type, size."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import Awaitable, Collection, Mapping

from a2a.server.jsonrpc_models import JSONParseError
from a2a.server.request_handlers.response_helpers import build_error_response
from a2a.utils.error_handlers import build_rest_error_payload
from a2a.utils.errors import A2AError, ContentTypeNotSupportedError, InvalidRequestError
from pydantic import SecretStr
from starlette.authentication import (
    AuthCredentials,
    AuthenticationBackend,
    AuthenticationError,
    SimpleUser,
)
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["BodyGuard", "HostGuard", "LineGuard", "PeerTokens", "refuse_peer"]

logger = logging.getLogger(__name__)


class PeerTokens(AuthenticationBackend):
    """The bearer token's name is the peer. Without tokens everybody is the same nameless peer."""

    def __init__(self, tokens: Mapping[str, SecretStr], open_paths: Collection[str]) -> None:
        self._tokens = {n: t.get_secret_value().encode() for n, t in tokens.items()}
        self._open_paths = open_paths

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser] | None:
        if not self._tokens or conn.scope["path"] in self._open_paths:
            return None
        scheme, _, token = conn.headers.get("authorization", "").partition(" ")
        peer = self._peer(token.strip().encode("utf-8", "surrogateescape"))
        if scheme.lower() != "bearer" or peer is None:
            raise AuthenticationError("a bearer token of this agent is needed")
        return AuthCredentials(["authenticated"]), SimpleUser(peer)

    def _peer(self, token: bytes) -> str | None:
        """Compares with every token, each in constant time, so that timing tells nothing."""
        matches = [n for n, known in self._tokens.items() if hmac.compare_digest(known, token)]
        return matches[0] if matches else None


def refuse_peer(conn: HTTPConnection, error: AuthenticationError) -> Response:
    headers = {"WWW-Authenticate": 'Bearer realm="a2a"'}
    return JSONResponse({"error": {"code": 401, "message": str(error)}}, 401, headers)


class HostGuard:
    """Answers only to known host names.

    A page in a browser on this machine could otherwise reach a token-less agent on loopback by
    pointing a name of its own at 127.0.0.1 (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            host = HTTPConnection(scope).url.hostname
            if (host or "").lower() not in self._hosts:
                message = (
                    f"this agent does not answer to that host name; it knows "
                    f"{', '.join(sorted(self._hosts))} (or set MOLECULE_HERMES_PUBLIC_URL)"
                )
                response = JSONResponse({"error": {"code": 403, "message": message}}, 403)
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


class LineGuard:
    """Escapes Unicode's own line ends in event streams.

    They may stand in a JSON text, but the SDK's client ends its lines there (probed on 1.3.0), and
    so do other clients that split with `str.splitlines`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        streams = False

        async def escape(message: Message) -> None:
            nonlocal streams
            if message["type"] == "http.response.start":
                streams = "event-stream" in Headers(raw=message["headers"]).get("content-type", "")
            elif streams:
                for raw, escaped in _LINE_ENDS:
                    message["body"] = message.get("body", b"").replace(raw, escaped)
            await send(message)

        return self._app(scope, receive, escape)


_LINE_ENDS = tuple((c.encode(), f"\\u{ord(c):04x}".encode()) for c in "\x85\u2028\u2029")


class BodyGuard:
    """Reads the whole body, within a size and a time, and hands it on.

    The SDK has no limit of its own and reads it whole anyway.
    """

    def __init__(
        self, app: ASGIApp, limit: int, rpc_paths: Collection[str], timeout: float = 30.0
    ) -> None:
        self._app = app
        self._limit = limit
        self._rpc_paths = rpc_paths
        self._timeout = timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] in ("POST", "PUT", "PATCH"):
            try:
                receive = await self._checked(scope, receive)
            except _RefusedError as refused:
                await self._refuse(scope, *refused.args)(scope, receive, send)
                return
            except ClientDisconnect:
                return
        await self._app(scope, receive, send)

    async def _checked(self, scope: Scope, receive: Receive) -> Receive:
        """What receives the body that has been read and found good."""
        headers = HTTPConnection(scope).headers
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > self._limit:
            raise self._too_large()
        try:
            async with asyncio.timeout(self._timeout):
                body = await self._read(receive)
        except TimeoutError:
            raise _RefusedError(
                408, InvalidRequestError("the body did not arrive in time")
            ) from None
        if body and not _is_json(headers.get("content-type", "")):
            raise _RefusedError(415, ContentTypeNotSupportedError("send application/json"))
        if body and not _is_readable(body):
            raise _RefusedError(400, InvalidRequestError("the body is not JSON that can be read"))
        return _replay(body, receive)

    def _too_large(self) -> _RefusedError:
        return _RefusedError(
            413, InvalidRequestError(f"the body is larger than {self._limit} bytes")
        )

    async def _read(self, receive: Receive) -> bytes:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            body += message.get("body", b"")
            if len(body) > self._limit:
                raise self._too_large()
            if not message.get("more_body"):
                return bytes(body)

    def _refuse(self, scope: Scope, status: int, error: A2AError) -> Response:
        if scope["path"] in self._rpc_paths:
            # JSON-RPC tells what is wrong with a body inside the envelope; its clients read no 415.
            told = JSONParseError(message=str(error)) if status == 400 else error
            payload = build_error_response(None, told)
            return JSONResponse(payload, 200 if status in (400, 415) else status)
        payload = build_rest_error_payload(error)
        payload["error"]["code"] = status
        return JSONResponse(payload, status)


class _RefusedError(Exception):
    """With the status, and what is told."""


def _is_json(content_type: str) -> bool:
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type == "application/json" or (
        media_type.startswith("application/") and media_type.endswith("+json")
    )


def _is_readable(body: bytes) -> bool:
    """Whether the SDK gets through the body: on bad UTF-8, endless nesting or digits, and half a
    character (`\\ud800`) it raises what reaches the peer as an internal error with its text.
    """
    try:
        json.dumps(json.loads(body.decode()), ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return False
    return True


def _replay(body: bytes, receive: Receive) -> Receive:
    """Gives the body once, and does not hold it longer."""
    bodies = [body]

    async def replay() -> Message:
        if not bodies:
            return await receive()
        return {"type": "http.request", "body": bodies.pop(), "more_body": False}

    return replay
