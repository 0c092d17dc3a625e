"""Error responses to bad requests: in the protocol's form, and short.

Probed on a2a-sdk 1.3.0: an error response repeats every validation error (three for each bad part
of a 0.3 message) and values of the request at any length, the log contains the same with a stack
trace, and a failing stream of the 0.3 REST binding cuts the connection.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable
from typing import Any

from a2a.utils.error_handlers import build_rest_error_payload
from a2a.utils.errors import A2AError
from google.protobuf.json_format import ParseError
from pydantic import ValidationError
from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from molecule_hermes.protocol.numbers import with_whole_numbers_in

__all__ = ["ErrorMiddleware", "shorten_sdk_logs", "shortened"]

logger = logging.getLogger(__name__)

MAX_TEXT = 500
_LONG = 4096
"""Bytes above which a response is parsed, because it may be a long error."""
_MAX_LOG = 2000

_V03 = "/v1/"

_MISTAKES = (A2AError, ParseError, ValidationError)
"""Exceptions that the request causes, not the agent."""

_UNREADABLE = "Failed to "
"""How the SDK's log record of an unreadable request begins, whatever the exception is."""
_SDK_LOGGERS = (
    "a2a.compat.v0_3.jsonrpc_adapter",
    "a2a.server.routes.jsonrpc_dispatcher",
    "a2a.server.routes.rest_dispatcher",
    "a2a.utils.error_handlers",
)


class ErrorMiddleware:
    """Shortens long errors, and turns exceptions of 0.3 REST streams into error responses."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        response = _Response(send)
        if scope["type"] == "http" and _V03 in scope["path"]:
            return self._handle_errors(scope, receive, response)
        return self._app(scope, receive, response.send)

    async def _handle_errors(self, scope: Scope, receive: Receive, response: _Response) -> None:
        try:
            await self._app(scope, receive, response.send)
        except Exception as error:
            cause = _cause(error)
            if not isinstance(cause, _MISTAKES):
                logger.exception("a request failed")
            await response.fail(scope, receive, cause)


class _Response:
    """Holds back the start of a response until its first body chunk, so that it can change."""

    __slots__ = ("_begun", "_head", "_send")

    def __init__(self, send: Send) -> None:
        self._send = send
        self._head: Message | None = None
        self._begun = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._head = message
            return
        if self._head is not None:
            head, self._head = self._head, None
            self._begun = True
            _shorten_error(head, message)
            _write_whole_numbers(head, message)
            await self._send(head)
        elif body := message.get("body"):
            message["body"] = with_whole_numbers_in(body)
        await self._send(message)

    async def fail(self, scope: Scope, receive: Receive, error: Exception) -> None:
        payload = build_rest_error_payload(error)
        if self._begun:
            event = f"event: error\r\ndata: {json.dumps(shortened(payload))}\r\n\r\n"
            await self._send({"type": "http.response.body", "body": event.encode()})
        else:
            self._head = None
            response = JSONResponse(payload, payload["error"]["code"])
            await response(scope, receive, self.send)


def shortened(value: Any) -> Any:
    """The value with long strings cut, and only the first item of each list."""
    match value:
        case str() if len(value) > MAX_TEXT:
            return f"{value[: MAX_TEXT - 1]}…"
        case dict():
            return {key: shortened(item) for key, item in value.items()}
        case list() if value and isinstance(value[0], dict) and "@type" in value[0]:
            return [shortened(item) for item in value]  # the details of a REST error, at most two
        case list():
            return [shortened(item) for item in value[:1]]
    return value


def _shorten_error(head: Message, message: Message) -> None:
    """Changes both in place if they are a long error in one chunk."""
    body = message.get("body", b"")
    if len(body) <= _LONG or message.get("more_body") or b'"error":' not in body[:_LONG]:
        return
    headers = MutableHeaders(raw=head["headers"])
    if "json" not in headers.get("content-type", ""):
        return
    content = json.loads(body)
    if isinstance(content, dict) and "error" in content and "result" not in content:
        content["error"] = shortened(content["error"])
        message["body"] = json.dumps(content, ensure_ascii=False).encode()
        headers["content-length"] = str(len(message["body"]))


def _write_whole_numbers(head: Message, message: Message) -> None:
    """Changes both in place."""
    body = message.get("body", b"")
    if (changed := with_whole_numbers_in(body)) is body:
        return
    headers = MutableHeaders(raw=head["headers"])
    message["body"] = changed
    if "content-length" in headers:
        headers["content-length"] = str(len(changed))


def _cause(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def shorten_sdk_logs() -> None:
    """Makes the SDK log a bad request in one line of limited length, without a stack trace."""
    for name in _SDK_LOGGERS:
        logging.getLogger(name).addFilter(_shorten_record)


def _shorten_record(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    text = record.getMessage()
    if isinstance(error, _MISTAKES) or (error and text.startswith(_UNREADABLE)):
        text = f"{text}: {error}"
        record.exc_info = None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
    if len(text) > _MAX_LOG or error is not None:
        record.msg, record.args = " ".join(text[:_MAX_LOG].split()), None
    return True
