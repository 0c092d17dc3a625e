"""The JSON-RPC endpoint: the SDK's, with what JSON-RPC 2.0 and A2A ask for beyond it.

Probed on a2a-sdk 1.3.0: it answers notifications, refuses requests with members that it does not
know, and reports a version mismatch of a 0.3 method as an internal error.
"""

from __future__ import annotations

import json
from typing import Any

from a2a.compat.v0_3.jsonrpc_adapter import JSONRPC03Adapter
from a2a.server.request_handlers import RequestHandler
from a2a.server.request_handlers.response_helpers import build_error_response
from a2a.server.routes import create_jsonrpc_routes
from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
from a2a.utils.errors import A2AError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message

from molecule_hermes.protocol.validation import require_known_status
from molecule_hermes.server.bodies import replay
from molecule_hermes.server.list_tasks import without_empty_defaults
from molecule_hermes.server.versions import V03, V10, CallContextBuilder, require_version

__all__ = ["JsonRpcEndpoint"]

_MEMBERS = frozenset({"jsonrpc", "method", "params", "id"})
_LIST_TASKS = "ListTasks"
_NOTIFICATION_ID = "notification"


class JsonRpcEndpoint:
    def __init__(self, handler: RequestHandler, *, compat_v03: bool) -> None:
        (route,) = create_jsonrpc_routes(
            handler, "/", CallContextBuilder(), enable_v0_3_compat=compat_v03
        )
        self._dispatch = route.endpoint
        self._versions = dict.fromkeys(JsonRpcDispatcher.METHOD_TO_MODEL, V10)
        if compat_v03:
            self._versions |= dict.fromkeys(JSONRPC03Adapter.METHOD_TO_MODEL, V03)

    async def handle(self, request: Request) -> Response:
        try:
            body = await request.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            return await self._respond(request)
        if _is_notification(body):
            return await self._notify(request, body)
        if body.keys() - _MEMBERS:
            request = _with_body(request, body)
        return await self._call(request, body)

    async def _notify(self, request: Request, body: dict[str, Any]) -> Response:
        # The SDK's 0.3 methods require an id.
        body = body | {"id": _NOTIFICATION_ID}
        response = await self._call(_with_body(request, body), body)
        # The response is consumed, so that a stream runs to its end.
        await response(request.scope, request.receive, _discard)
        return Response(status_code=204)

    async def _call(self, request: Request, body: dict[str, Any]) -> Response:
        method = body.get("method")
        try:
            self._check(request, method, body.get("params"))
        except A2AError as error:
            return JSONResponse(build_error_response(_id(body), error))
        response = await self._respond(request)
        return _without_empty_defaults(response) if method == _LIST_TASKS else response

    def _check(self, request: Request, method: object, params: object) -> None:
        served = self._versions.get(method) if isinstance(method, str) else None
        if served is not None:
            require_version(request, served, str(method))
        if method == _LIST_TASKS and isinstance(params, dict):
            require_known_status(params.get("status"))

    async def _respond(self, request: Request) -> Response:
        response: Response = await self._dispatch(request)
        return response


def _with_body(request: Request, body: dict[str, Any]) -> Request:
    known = {name: value for name, value in body.items() if name in _MEMBERS}
    return Request(request.scope, replay(json.dumps(known).encode(), request.receive))


def _id(body: dict[str, Any]) -> str | int | None:
    value = body.get("id")
    return value if isinstance(value, str | int) and not isinstance(value, bool) else None


def _is_notification(body: dict[str, Any]) -> bool:
    """Whether this is a valid request without an id.

    JSON-RPC 2.0 forbids a response to a notification, even an error. An invalid request without an
    id is no notification: its error has the id null.
    """
    return "id" not in body and body.get("jsonrpc") == "2.0" and isinstance(body.get("method"), str)


async def _discard(message: Message) -> None:
    pass


def _without_empty_defaults(response: Response) -> Response:
    envelope = json.loads(bytes(response.body))
    if "result" not in envelope:
        return response
    envelope["result"] = without_empty_defaults(envelope["result"])
    return JSONResponse(envelope)
