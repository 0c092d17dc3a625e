"""The ASGI application: its routes and the middleware around them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from email.utils import formatdate
from typing import Any
from urllib.parse import urlsplit

from a2a.server.request_handlers import RequestHandler
from a2a.server.routes import create_agent_card_routes
from a2a.types import AgentCard
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

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

__all__ = ["CurrentApp", "create_app", "create_overload_app"]

_CARD_CACHE_CONTROL = "public, max-age=300"
"""The cards change only with a restart of the bridge, or with its configuration."""
_CARD_PATHS = (AGENT_CARD_WELL_KNOWN_PATH, "/.well-known/agent.json")
"""Clients of A2A before 0.3 look for the card at the second."""
_AGENTS = "/agents"

Endpoint = Callable[[Request], Awaitable[Response]]


class CurrentApp:
    """An application that can be replaced. Requests that have begun stay with the earlier one."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return self.app(scope, receive, send)


def create_app(
    settings: Settings,
    url: str,
    card: AgentCard,
    handler: RequestHandler,
    *,
    agents: Mapping[str, AgentCard],
    probes: Sequence[Route],
    operator: Sequence[Route],
    peer_tokens: PeerTokens,
    metrics: Metrics,
    deliveries: Endpoint,
) -> ASGIApp:
    """Serves the cards and the probes to everybody, the routes of the operator, which authenticate
    it themselves, and everything else to peers.

    `card` is the one at the root, `agents` are those of the agents.
    """
    prefix = path_prefix(url)
    public = _starlette(
        [*_card_routes(card), *_agent_card_routes(agents, prefix), *probes, *operator]
    )
    protected = _starlette(
        [
            _metrics_route(metrics),
            *_a2a_routes(handler, prefix, deliveries, compat_v03=settings.compat_v03),
        ],
        [
            Middleware(AuthenticationMiddleware, backend=peer_tokens, on_error=refuse_peer),
            Middleware(
                ExtensionsMiddleware,
                declared=_declared(agents.values()),
            ),
            Middleware(LineSeparatorMiddleware),
            Middleware(ErrorMiddleware),
            Middleware(
                BodyMiddleware,
                limit=settings.max_body,
                rpc_paths=_rpc_paths(agents, prefix),
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


def _declared(cards: Iterable[AgentCard]) -> list[str]:
    """The URIs of all agents' extensions."""
    return list(dict.fromkeys(e.uri for card in cards for e in card.capabilities.extensions))


def _rpc_paths(agents: Iterable[str], prefix: str) -> frozenset[str]:
    paths = ["", *(f"{_AGENTS}/{name}" for name in agents)]
    return frozenset(
        f"{before}{path}{slash}" for before in ("", prefix) for path in paths for slash in ("", "/")
    )


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


def _a2a_routes(
    handler: RequestHandler, prefix: str, deliveries: Endpoint, *, compat_v03: bool
) -> list[BaseRoute]:
    rpc = JsonRpcEndpoint(handler, compat_v03=compat_v03).handle
    of_agent: list[BaseRoute] = [
        Route("/", rpc, methods=["POST"]),
        Route("/deliveries", deliveries, methods=["GET"]),
        *rest_routes(handler, compat_v03=compat_v03),
    ]
    path = f"{_AGENTS}/{{agent}}"
    # These come first: the REST routes take the first segment of any other path as a tenant.
    routes = [
        Route(path, rpc, methods=["POST"]),
        Mount(path, Router(of_agent, redirect_slashes=False)),
        *of_agent,
    ]
    if not prefix:
        return routes
    # For the same reason, the prefix comes first.
    return [
        Route(prefix, rpc, methods=["POST"]),
        Mount(prefix, Router(routes, redirect_slashes=False)),
        *routes,
    ]


def _card_routes(card: AgentCard) -> list[Route]:
    serve = _card_endpoint(card)
    return [Route(path, serve, methods=["GET"]) for path in _CARD_PATHS]


def _agent_card_routes(agents: Mapping[str, AgentCard], prefix: str) -> list[Route]:
    endpoints = {name: _card_endpoint(card) for name, card in agents.items()}

    async def serve(request: Request) -> Response:
        if endpoint := endpoints.get(request.path_params["agent"]):
            return await endpoint(request)
        raise HTTPException(404)

    paths = [f"{before}{_AGENTS}/{{agent}}" for before in dict.fromkeys(("", prefix))]
    return [Route(at + path, serve, methods=["GET"]) for at in paths for path in _CARD_PATHS]


def _card_endpoint(card: AgentCard) -> Callable[[Request], Awaitable[Response]]:
    (route,) = create_agent_card_routes(card, cache_control=_CARD_CACHE_CONTROL)
    last_modified = formatdate(usegmt=True)

    async def serve(request: Request) -> Response:
        response: Response = await route.endpoint(request)
        response.headers["Last-Modified"] = last_modified
        return response

    return serve


def _metrics_route(metrics: Metrics) -> Route:
    async def serve(request: Request) -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    return Route("/metrics", serve)


def _outermost(app: ASGIApp, settings: Settings, url: str, metrics: Metrics) -> ASGIApp:
    if not settings.peer_tokens and is_loopback(settings.host):
        hosts = {"localhost", "127.0.0.1", "::1", settings.host.strip("[]")}
        app = HostMiddleware(app, frozenset(hosts | {urlsplit(url).hostname or ""}))
    return CountResponses(app, metrics)
