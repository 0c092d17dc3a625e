"""A bad request of a 0.3 client gets a protocol error, and the log no stack trace."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from molecule_hermes.turns.model import Completed
from tests.conftest import StartBridge
from tests.support.fakes import ScriptedTransport

JSON = {"Content-Type": "application/json"}


def message(**more: Any) -> dict[str, Any]:
    return {"message": {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "x"}]} | more}


BAD: dict[str, tuple[Any, int]] = {
    "nothing": ({}, 400),
    "a list": ([], 400),
    "a number": (7, 400),
    "no content": (message(content=[]), 400),
    "an empty part": (message(content=[{}]), 400),
    "a number for an id": (message(messageId=7), 400),
    "a number for a message": ({"message": 7}, 400),
    "text for data": (message(content=[{"data": "x"}]), 400),
    "text for data, by protobuf's name": (
        {"request": message(content=[{"data": "x"}])["message"]},
        400,
    ),
    "a long messageId": (message(messageId="m" * 257), 400),
    "a long contextId": (message(contextId="c" * 257), 400),
    "a NUL in the messageId": (message(messageId="m\0"), 400),
    "a bad setting": (message() | {"configuration": {"historyLength": "many"}}, 400),
    "an unknown task": (message(taskId="nobody"), 404),
}


@pytest.mark.parametrize("path", ["/v1/message:stream", "/v1/message:send"])
@pytest.mark.parametrize("bad", BAD)
async def test_a_bad_message_over_rest_gets_an_error_with_a_body(
    bridge: StartBridge, path: str, bad: str, caplog: pytest.LogCaptureFixture
) -> None:
    body, status = BAD[bad]
    transport = ScriptedTransport(Completed("x"))
    async with bridge(transport) as b, httpx.AsyncClient(base_url=b.url) as http:
        answered = await http.post(path, json=body, headers=JSON)
        assert answered.status_code == status
        assert answered.json()["error"]["code"] == status
        assert answered.json()["error"]["message"]
        good = await http.post(path, json=message(), headers=JSON)
        assert good.status_code == 200
        assert "TASK_STATE_COMPLETED" in good.text
    assert len(transport.turns) == 1
    assert "Traceback" not in caplog.text
    assert "Exception in ASGI" not in caplog.text


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_subscribing_to_an_unknown_task_is_not_found(
    bridge: StartBridge, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with bridge(ScriptedTransport()) as b, httpx.AsyncClient(base_url=b.url) as http:
        answered = await http.request(method, "/v1/tasks/nobody:subscribe")
    assert answered.status_code == 404
    assert answered.json()["error"]["status"] == "NOT_FOUND"
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("method", ["message/send", "message/stream"])
@pytest.mark.parametrize(
    "params",
    [
        {},
        [],
        7,
        {"message": 7},
        {"message": {"messageId": "m", "role": "user", "parts": [{}]}},
        {"message": {"messageId": "m", "role": "user", "parts": []}},
        {"message": {"messageId": "m" * 257, "role": "user", "parts": [{"text": "x"}]}},
    ],
    ids=["nothing", "a list", "a number", "no message", "an empty part", "no parts", "a long id"],
)
async def test_a_bad_message_over_json_rpc_gets_an_error_in_its_envelope(
    bridge: StartBridge, method: str, params: Any, caplog: pytest.LogCaptureFixture
) -> None:
    body = {"jsonrpc": "2.0", "id": 9, "method": method, "params": params}
    async with bridge(ScriptedTransport()) as b, httpx.AsyncClient() as http:
        answered = await http.post(b.url, json=body, headers=JSON)
    text = answered.text.strip().removeprefix("data: ")
    envelope = json.loads(text)
    assert (answered.status_code, envelope["id"]) == (200, 9)
    assert envelope["error"]["code"] in (-32600, -32602)
    assert "Traceback" not in caplog.text


async def test_a_stream_that_breaks_in_the_middle_ends_with_an_error_event(
    bridge: StartBridge, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection is not cut, whatever fails in the SDK."""
    from a2a.compat.v0_3 import conversions

    convert = conversions.to_compat_stream_response
    calls = 0

    def breaks(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise RuntimeError("password=hunter2")
        return convert(*args)

    monkeypatch.setattr(conversions, "to_compat_stream_response", breaks)
    async with bridge(ScriptedTransport(Completed("x"))) as b, httpx.AsyncClient() as http:
        answered = await http.post(f"{b.url}/v1/message:stream", json=message(), headers=JSON)
    assert answered.status_code == 200
    assert "event: error" in answered.text
    assert "hunter2" not in answered.text
    assert "hunter2" in caplog.text, "the operator finds it in the log"
