"""The REST routes: the SDK's, with version errors that name the remedy, and 0.3 files mended."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

from a2a.server.request_handlers import RequestHandler
from a2a.server.routes import create_rest_routes
from a2a.utils.error_handlers import build_rest_error_payload
from a2a.utils.errors import A2AError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router

from molecule_hermes.protocol.validation import require_known_status
from molecule_hermes.server.list_tasks import without_empty_defaults
from molecule_hermes.server.v03_rest import decode_files_once, read_v03_message, require_v03_query
from molecule_hermes.server.versions import V03, V10, CallContextBuilder, require_version

__all__ = ["rest_error", "rest_routes"]

Endpoint = Callable[[Request], Awaitable[Response]]

_V03_PREFIX = "/v1/"
_LIST_TASKS = "/tasks"


def rest_routes(handler: RequestHandler, *, compat_v03: bool) -> list[BaseRoute]:
    routes = create_rest_routes(handler, CallContextBuilder(), enable_v0_3_compat=compat_v03)
    return [_wrapped(route) for route in routes]


def rest_error(error: A2AError) -> JSONResponse:
    payload = build_rest_error_payload(error)
    return JSONResponse(payload, payload["error"]["code"])


def _wrapped(route: BaseRoute) -> BaseRoute:
    if isinstance(route, Mount):
        inner = Router([_wrapped(each) for each in route.routes], redirect_slashes=False)
        return Mount(route.path, inner)
    if not isinstance(route, Route):
        return route
    endpoint: Endpoint = route.endpoint
    version = V10
    if route.path.startswith(_V03_PREFIX):
        endpoint, version = _v03(endpoint, route.path), V03
    elif route.path == _LIST_TASKS:
        endpoint = _list_tasks(endpoint)
    return Route(route.path, _versioned(endpoint, version), methods=sorted(route.methods or ()))


def _versioned(endpoint: Endpoint, version: str) -> Endpoint:
    async def handle(request: Request) -> Response:
        try:
            require_version(request, version, f"{request.method} {request.url.path}")
            return await endpoint(request)
        except A2AError as error:
            return rest_error(error)

    return handle


def _list_tasks(endpoint: Endpoint) -> Endpoint:
    async def handle(request: Request) -> Response:
        require_known_status(request.query_params.get("status"))
        response = await endpoint(request)
        if response.status_code != 200:
            return response
        result = without_empty_defaults(json.loads(bytes(response.body)))
        return JSONResponse(result, media_type=response.media_type)

    return handle


def _v03(endpoint: Endpoint, path: str) -> Endpoint:
    is_message = path.startswith(f"{_V03_PREFIX}message:")

    async def handle(request: Request) -> Response:
        require_v03_query(request)
        if not is_message:
            return decode_files_once(await endpoint(request))
        message = await read_v03_message(request)
        response = await endpoint(message.request)
        return response if message.twice_encoded else decode_files_once(response)

    return handle
