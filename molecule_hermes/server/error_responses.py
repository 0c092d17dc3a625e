"""What a peer is told when its request is wrong: the protocol's error, and a short one.

Probed on a2a-sdk 1.3.0: an answer repeats every validation error there is (three for each bad part
of a 0.3 message) and values of the request at any length, the log has the same with a stack trace,
and a stream of the 0.3 REST binding that fails cuts the connection.
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
"""Bytes of an answer that is looked at, because it may be a long error."""
_MAX_LOG = 2000

_V03 = "/v1/"

_MISTAKES = (A2AError, ParseError, ValidationError)
"""What is raised because of the request, not because of the agent."""

_UNREADABLE = "Failed to "
"""So begins what the SDK logs of a request that it cannot read, whatever was raised."""
_SDK_LOGGERS = (
    "a2a.compat.v0_3.jsonrpc_adapter",
    "a2a.server.routes.jsonrpc_dispatcher",
    "a2a.server.routes.rest_dispatcher",
    "a2a.utils.error_handlers",
)


class ErrorMiddleware:
    """Shortens long errors, and gives streams of the 0.3 REST binding that fail an answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        answer = _Answer(send)
        if scope["type"] == "http" and _V03 in scope["path"]:
            return self._answered(scope, receive, answer)
        return self._app(scope, receive, answer.send)

    async def _answered(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        try:
            await self._app(scope, receive, answer.send)
        except Exception as error:
            cause = _cause(error)
            if not isinstance(cause, _MISTAKES):
                logger.exception("a request failed")
            await answer.fail(scope, receive, cause)


class _Answer:
    """Holds the head of an answer back until its first bytes come: until then it can change."""

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
            _shorten_answer(head, message)
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
    """The value with long texts cut, and the first item only of each list."""
    match value:
        case str() if len(value) > MAX_TEXT:
            return f"{value[: MAX_TEXT - 1]}…"
        case dict():
            return {key: shortened(item) for key, item in value.items()}
        case list() if value and isinstance(value[0], dict) and "@type" in value[0]:
            return [shortened(item) for item in value]  # the details of a REST error, two at most
        case list():
            return [shortened(item) for item in value[:1]]
    return value


def _shorten_answer(head: Message, message: Message) -> None:
    """Both in place, if they are a long error in one piece."""
    body = message.get("body", b"")
    if len(body) <= _LONG or message.get("more_body") or b'"error":' not in body[:_LONG]:
        return
    headers = MutableHeaders(raw=head["headers"])
    if "json" not in headers.get("content-type", ""):
        return
    answer = json.loads(body)
    if isinstance(answer, dict) and "error" in answer and "result" not in answer:
        answer["error"] = shortened(answer["error"])
        message["body"] = json.dumps(answer, ensure_ascii=False).encode()
        headers["content-length"] = str(len(message["body"]))


def _write_whole_numbers(head: Message, message: Message) -> None:
    """Both in place."""
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
    """A peer's mistake takes one line of bounded length in the log, without a stack trace."""
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
