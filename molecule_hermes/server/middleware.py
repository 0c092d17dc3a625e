"""Middleware around the SDK's routes: public paths, peer tokens, host names, extensions,
line separators."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Collection, Mapping

from a2a.extensions.common import get_requested_extensions
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.authentication import (
    AuthCredentials,
    AuthenticationBackend,
    AuthenticationError,
    SimpleUser,
)
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from molecule_hermes.text import is_loopback

__all__ = [
    "ExtensionsMiddleware",
    "HostMiddleware",
    "LineSeparatorMiddleware",
    "PeerTokens",
    "PublicPathsMiddleware",
    "is_local",
    "refuse_overload",
    "refuse_peer",
]


class PeerTokens(AuthenticationBackend):
    """Authenticates peers by bearer token. Without tokens, all callers are one anonymous peer."""

    def __init__(self, tokens: Mapping[str, SecretStr]) -> None:
        self._tokens = {n: t.get_secret_value().encode() for n, t in tokens.items()}

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser] | None:
        if not self._tokens:
            return None
        peer = self.peer_of(conn)
        if peer is None:
            raise AuthenticationError("this agent requires a bearer token")
        return AuthCredentials(["authenticated"]), SimpleUser(peer)

    def peer_of(self, conn: HTTPConnection) -> str | None:
        """The peer whose token the request contains, or None.

        It compares with every token, each in constant time, so that the time reveals nothing.
        """
        scheme, _, token = conn.headers.get("authorization", "").partition(" ")
        given = token.strip().encode("utf-8", "surrogateescape")
        matches = [n for n, known in self._tokens.items() if hmac.compare_digest(known, given)]
        return matches[0] if matches and scheme.lower() == "bearer" else None


_FORWARDED = ("forwarded", "via", "x-real-ip")


def is_local(conn: HTTPConnection) -> bool:
    """Whether the request comes from this machine, and not through a proxy on it.

    The host name must be a loopback name as well. Otherwise a web page in a browser on this machine
    could send the request, by pointing its own name at 127.0.0.1 (DNS rebinding).
    """
    if conn.client is None or not is_loopback(conn.client.host):
        return False
    if not is_loopback(conn.url.hostname or ""):
        return False
    return not any(n in _FORWARDED or n.startswith("x-forwarded") for n in conn.headers)


class PublicPathsMiddleware:
    """Serves the paths of the routes of `public`, and passes all other requests to `app`.

    `public` refuses methods that a route does not name, so a request to a public path never reaches
    `app`, whatever is mounted there.
    """

    def __init__(self, app: ASGIApp, public: Starlette) -> None:
        self._app = app
        self._public = public
        routes = [route for route in public.routes if isinstance(route, Route)]
        self._paths = frozenset(route.path for route in routes)
        self._patterns = [r.path_regex for r in routes if r.param_convertors]

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        path = scope["path"]
        is_public = path in self._paths or any(p.match(path) for p in self._patterns)
        return (self._public if is_public else self._app)(scope, receive, send)


def refuse_overload(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
    """Refuses a request on a connection that is over the limits."""
    message = "too many connections; try again in a few seconds"
    headers = {"Retry-After": "5", "Connection": "close"}
    return JSONResponse({"error": {"code": 503, "message": message}}, 503, headers)(
        scope, receive, send
    )


def refuse_peer(conn: HTTPConnection, error: AuthenticationError) -> Response:
    headers = {"WWW-Authenticate": 'Bearer realm="a2a"'}
    return JSONResponse({"error": {"code": 401, "message": str(error)}}, 401, headers)


class HostMiddleware:
    """Accepts requests for known host names only.

    Otherwise a web page in a browser on this machine could reach an agent on loopback that has no
    tokens, by pointing its own name at 127.0.0.1 (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            host = HTTPConnection(scope).url.hostname
            if (host or "").lower() not in self._hosts:
                message = (
                    f"unknown host name; this agent accepts {', '.join(sorted(self._hosts))} "
                    f"(MOLECULE_HERMES_PUBLIC_URL adds one)"
                )
                response = JSONResponse({"error": {"code": 403, "message": message}}, 403)
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


class ExtensionsMiddleware:
    """Names in each response the extensions that its request activated, as A2A wants it."""

    def __init__(self, app: ASGIApp, declared: Collection[str]) -> None:
        self._app = app
        self._declared = declared

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        given = Headers(scope=scope)
        for name in ("A2A-Extensions", "X-A2A-Extensions"):  # the latter before A2A 1.0
            asked = get_requested_extensions(given.getlist(name))
            if active := ", ".join(uri for uri in self._declared if uri in asked):
                return self._app(scope, receive, _with_header(send, name, active))
        return self._app(scope, receive, send)


def _with_header(send: Send, name: str, value: str) -> Send:
    async def add(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message)[name] = value
        await send(message)

    return add


class LineSeparatorMiddleware:
    """Escapes Unicode line separators in event streams.

    JSON allows them, but clients that split lines with `str.splitlines` break at them, among them
    the SDK's own (probed on 1.3.0).
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
                for raw, escaped in _SEPARATORS:
                    message["body"] = message.get("body", b"").replace(raw, escaped)
            await send(message)

        return self._app(scope, receive, escape)


_SEPARATORS = tuple((c.encode(), f"\\u{ord(c):04x}".encode()) for c in "\x85\u2028\u2029")
