"""The ASGI application: its routes and the middleware around them."""

from __future__ import annotations

from collections.abc import Sequence
from email.utils import formatdate
from typing import Any
from urllib.parse import urlsplit

from a2a.server.request_handlers import RequestHandler
from a2a.server.routes import create_agent_card_routes
from a2a.types import AgentCard
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import ASGIApp

from molecule_hermes.config import Settings
from molecule_hermes.server.bodies import BodyMiddleware
from molecule_hermes.server.error_responses import ErrorMiddleware
from molecule_hermes.server.json_rpc import JsonRpcEndpoint
from molecule_hermes.server.json_scan import JsonLimits
from molecule_hermes.server.middleware import (
    ExtensionsMiddleware,
    HostMiddleware,
    LineSeparatorMiddleware,
    PeerTokens,
    PublicPathsMiddleware,
    refuse_overload,
    refuse_peer,
)
from molecule_hermes.server.rest import rest_routes
from molecule_hermes.telemetry.metrics import CONTENT_TYPE, CountResponses, Metrics
from molecule_hermes.text import is_loopback

__all__ = ["create_app", "create_overload_app"]

_CARD_CACHE_CONTROL = "public, max-age=300"
"""The card changes only with a restart of the bridge."""
_OLDER_CARD_PATH = "/.well-known/agent.json"
"""Where clients of A2A before 0.3 look for the card."""


def create_app(
    settings: Settings,
    url: str,
    card: AgentCard,
    handler: RequestHandler,
    *,
    probes: Sequence[Route],
    peer_tokens: PeerTokens,
    metrics: Metrics,
) -> ASGIApp:
    """Serves the card and the probes to everybody, and everything else to peers."""
    public = _starlette([*_card_routes(card), *probes])
    prefix = path_prefix(url)
    protected = _starlette(
        [_metrics_route(metrics), *_a2a_routes(handler, prefix, compat_v03=settings.compat_v03)],
        [
            Middleware(AuthenticationMiddleware, backend=peer_tokens, on_error=refuse_peer),
            Middleware(
                ExtensionsMiddleware,
                declared=[extension.uri for extension in card.capabilities.extensions],
            ),
            Middleware(LineSeparatorMiddleware),
            Middleware(ErrorMiddleware),
            Middleware(
                BodyMiddleware,
                limit=settings.max_body,
                rpc_paths=frozenset({"/", prefix, f"{prefix}/"}),
                json_limits=JsonLimits(settings.max_values, settings.max_parts),
            ),
        ],
    )
    return _outermost(PublicPathsMiddleware(protected, public), settings, url, metrics)


def create_overload_app(
    settings: Settings, url: str, *, probes: Sequence[Route], metrics: Metrics
) -> ASGIApp:
    """Serves the probes, and refuses everything else."""
    app = PublicPathsMiddleware(refuse_overload, _starlette(probes))
    return _outermost(app, settings, url, metrics)


def path_prefix(url: str) -> str:
    """The path of the public URL, which a proxy may keep or strip: both are served."""
    return urlsplit(url).path.rstrip("/")


def _starlette(
    routes: Sequence[BaseRoute], middleware: Sequence[Middleware] | None = None
) -> Starlette:
    app = Starlette(
        routes=routes, middleware=middleware, exception_handlers={HTTPException: _http_error}
    )
    # An unknown path is answered with 404 at once, not with a redirect to another unknown path.
    app.router.redirect_slashes = False
    return app


def _http_error(request: Request, error: Any) -> Response:
    body = {"error": {"code": error.status_code, "message": error.detail}}
    return JSONResponse(body, error.status_code, error.headers)


def _a2a_routes(handler: RequestHandler, prefix: str, *, compat_v03: bool) -> list[BaseRoute]:
    rpc = JsonRpcEndpoint(handler, compat_v03=compat_v03).handle
    routes: list[BaseRoute] = [
        Route("/", rpc, methods=["POST"]),
        *rest_routes(handler, compat_v03=compat_v03),
    ]
    if not prefix:
        return routes
    # The prefix comes first: the REST routes take the first segment of any other path as a tenant.
    return [
        Route(prefix, rpc, methods=["POST"]),
        Mount(prefix, Router(routes, redirect_slashes=False)),
        *routes,
    ]


def _card_routes(card: AgentCard) -> list[Route]:
    (route,) = create_agent_card_routes(card, cache_control=_CARD_CACHE_CONTROL)
    last_modified = formatdate(usegmt=True)

    async def serve(request: Request) -> Response:
        response: Response = await route.endpoint(request)
        response.headers["Last-Modified"] = last_modified
        return response

    return [Route(path, serve, methods=["GET"]) for path in (route.path, _OLDER_CARD_PATH)]


def _metrics_route(metrics: Metrics) -> Route:
    async def serve(request: Request) -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    return Route("/metrics", serve)


def _outermost(app: ASGIApp, settings: Settings, url: str, metrics: Metrics) -> ASGIApp:
    if not settings.peer_tokens and is_loopback(settings.host):
        hosts = {"localhost", "127.0.0.1", "::1", settings.host.strip("[]")}
        app = HostMiddleware(app, frozenset(hosts | {urlsplit(url).hostname or ""}))
    return CountResponses(app, metrics)
