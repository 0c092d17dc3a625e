"""Properties of what stands between HTTP and the SDK, for any body."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any, cast

from a2a.compat.v0_3 import a2a_v0_3_pb2
from a2a.compat.v0_3.proto_utils import FromProto
from a2a.server.request_handlers import RequestHandler
from a2a.utils.errors import InvalidParamsError
from google.protobuf.json_format import ParseDict
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.types import Message

from molecule_hermes.server.json_rpc import JsonRpcEndpoint
from molecule_hermes.server.v03_rest import read_v03_message

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
METHODS = st.sampled_from(["SendMessage", "ListTasks", "SubscribeToTask", "message/send", "x", ""])
REQUESTS = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0") | JSON, "method": METHODS | JSON},
    optional={"id": JSON, "params": JSON, "stream": JSON},
)


def _message(part: Any) -> dict[str, Any]:
    return {"message": {"messageId": "m", "role": "ROLE_USER", "content": [part]}}


def request(body: Any) -> Request:
    async def receive() -> Message:
        return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": []}
    return Request(scope, receive)


@given(REQUESTS | JSON)
def test_any_body_gets_a_json_rpc_response_or_none_if_it_is_a_notification(body: Any) -> None:
    endpoint = JsonRpcEndpoint(cast("RequestHandler", None), compat_v03=True)
    response = asyncio.run(endpoint.handle(request(body)))
    is_notification = (
        isinstance(body, dict)
        and "id" not in body
        and body.get("jsonrpc") == "2.0"
        and isinstance(body.get("method"), str)
    )
    if is_notification:
        assert (response.status_code, bytes(response.body)) == (204, b"")
    else:
        assert "error" in json.loads(bytes(response.body))


@given(st.binary(max_size=64))
def test_the_sdk_reads_the_bytes_that_a_0_3_client_encoded_once(content: bytes) -> None:
    sent = {"file": {"fileWithBytes": base64.b64encode(content).decode()}}
    read = asyncio.run(read_v03_message(request(_message(sent))))
    if not read.twice_encoded:
        assert asyncio.run(_bytes_for_the_sdk(read.request)) == content


@given(st.binary(min_size=10, max_size=64) | st.binary(min_size=1, max_size=2))
def test_the_sdk_reads_the_bytes_that_its_own_client_encoded_twice(content: bytes) -> None:
    twice = base64.b64encode(base64.b64encode(content)).decode()
    read = asyncio.run(read_v03_message(request(_message({"file": {"fileWithBytes": twice}}))))
    assert read.twice_encoded
    assert asyncio.run(_bytes_for_the_sdk(read.request)) == content


@given(JSON | st.builds(_message, JSON))
def test_a_0_3_message_is_read_or_refused_as_invalid(body: Any) -> None:
    try:
        asyncio.run(read_v03_message(request(body)))
    except InvalidParamsError as error:
        assert str(error)


async def _bytes_for_the_sdk(received: Request) -> bytes:
    message = ParseDict(await received.json(), a2a_v0_3_pb2.SendMessageRequest())
    file: Any = FromProto.message_send_params(message).message.parts[0].root
    return base64.b64decode(file.file.bytes)
