"""What the SDK's REST routes for A2A 0.3 get wrong, corrected in front of them and behind them.

Probed on a2a-sdk 1.3.0: a message that cannot be converted is an internal error or cuts the
connection, and the bytes of a file are base64 within base64, in requests and in responses.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from typing import Any, NamedTuple

from a2a.compat.v0_3 import a2a_v0_3_pb2
from a2a.compat.v0_3.proto_utils import FromProto
from a2a.utils.errors import InvalidParamsError
from google.protobuf.json_format import ParseDict
from sse_starlette import EventSourceResponse
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from molecule_hermes.server.bodies import replay
from molecule_hermes.server.error_responses import shortened

__all__ = ["V03Message", "decode_files_once", "read_v03_message", "require_v03_query"]

# protobuf takes the names in the .proto file as well as those in JSON.
_MESSAGE = ("message", "request")
_BYTES = ("fileWithBytes", "file_with_bytes")
_FREE_FORM = frozenset({"metadata", "data"})
_MAX_DIGITS = 9
_MIN_TWICE_ENCODED = 16
"""A short word such as `test` is valid base64 by chance, unless it has padding."""


def require_v03_query(request: Request) -> None:
    """Raises `InvalidParamsError` for a query string that the SDK fails to read."""
    length = request.query_params.get("historyLength", "")
    if length and not (length.isascii() and length.isdigit() and len(length) <= _MAX_DIGITS):
        raise InvalidParamsError("historyLength is not a number of messages")


class V03Message(NamedTuple):
    request: Request
    """The request as the SDK can read it."""
    twice_encoded: bool
    """Whether the client encodes the bytes of files twice, as the SDK's own client does."""


async def read_v03_message(request: Request) -> V03Message:
    """Raises `InvalidParamsError` for a message that the SDK cannot convert."""
    try:
        body = await request.json()
    except ValueError as error:
        raise InvalidParamsError("the body is empty") from error
    parts = list(_parts(body))
    # protobuf would look up each character of the string as the name of a field.
    if any(isinstance(part.get("data"), str) for part in parts):
        raise InvalidParamsError("the data of a part is not an object")
    twice_encoded = [_encode_twice(part.get("file")) for part in parts]
    try:
        message = ParseDict(body, a2a_v0_3_pb2.SendMessageRequest(), ignore_unknown_fields=True)
        FromProto.message_send_params(message)
    except Exception as error:
        # Whatever the conversion raises, the body is the cause.
        raise InvalidParamsError(shortened(str(error)) or "the message cannot be read") from error
    replayed = Request(request.scope, replay(json.dumps(body).encode(), request.receive))
    return V03Message(replayed, any(twice_encoded))


def _parts(body: Any) -> Iterator[dict[str, Any]]:
    messages = [body.get(name) for name in _MESSAGE] if isinstance(body, dict) else []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict):
                yield part


def _encode_twice(file: Any) -> bool:
    """Changes the bytes of a file in place into what the SDK expects.

    Returns whether the client has sent them in that form.
    """
    twice = False
    for name in _BYTES if isinstance(file, dict) else ():
        if isinstance(value := file.get(name), str):
            content = _decoded(value)
            twice = _is_base64(content)
            file[name] = base64.b64encode(content if twice else base64.b64encode(content)).decode()
    return twice


def _decoded(value: str) -> bytes:
    """Takes the standard and the URL-safe alphabet, with or without padding, as protobuf does."""
    text = value.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidParamsError("the bytes of a file part are not base64") from error


def _is_base64(content: bytes) -> bool:
    if len(content) < _MIN_TWICE_ENCODED and not content.endswith(b"="):
        return False
    try:
        base64.b64decode(content, validate=True)
    except binascii.Error:
        return False
    return True


def decode_files_once(response: Response) -> Response:
    """The response with the bytes of files in base64, not in base64 within base64."""
    if isinstance(response, EventSourceResponse):
        response.body_iterator = _decoded_events(response.body_iterator)
    elif isinstance(response, JSONResponse) and _BYTES[0].encode() in bytes(response.body):
        content = json.loads(bytes(response.body))
        _decode_files(content)
        return JSONResponse(content, response.status_code)
    return response


async def _decoded_events(events: AsyncIterable[Any]) -> AsyncIterator[Any]:
    async for event in events:
        if isinstance(event, str) and _BYTES[0] in event:
            content = json.loads(event)
            _decode_files(content)
            yield json.dumps(content)
        else:
            yield event


def _decode_files(value: Any) -> None:
    if isinstance(value, list):
        for item in value:
            _decode_files(item)
    elif isinstance(value, dict):
        if isinstance(encoded := value.get(_BYTES[0]), str):
            value[_BYTES[0]] = base64.b64decode(encoded).decode()
        for name, item in value.items():
            if name not in _FREE_FORM:
                _decode_files(item)
