"""A single request body cannot block the agent for other peers."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from a2a.types import ListTasksRequest
from hypothesis import example, given
from hypothesis import strategies as st

from molecule_hermes.server.json_scan import (
    MAX_DEPTH,
    MAX_ENVELOPE,
    MAX_NAME,
    JsonLimitError,
    JsonLimits,
    JsonScanner,
    JsonSyntaxError,
)
from molecule_hermes.turns.model import Completed
from tests.conftest import StartBridge
from tests.support.event_loop import stall
from tests.support.fakes import ScriptedTransport
from tests.support.peers import peer

JSON = {"Content-Type": "application/json"}
V10 = JSON | {"A2A-Version": "1.0"}

# On a real socket.


def message(parts: str, **more: Any) -> str:
    head = json.dumps({"messageId": uuid.uuid4().hex, "role": "ROLE_USER"} | more)
    return f'{{"message": {head[:-1]}, "parts": {parts}}}}}'


def rpc(params: str, method: str = "SendMessage") -> bytes:
    return f'{{"jsonrpc": "2.0", "id": 1, "method": "{method}", "params": {params}}}'.encode()


def many(item: str, count: int) -> str:
    return f"[{','.join([item] * count)}]"


FLOODS = {
    "empty parts": message(many("{}", 300_000)),
    "zeros": message(f'[{{"data": {many("0", 1_000_000)}}}]'),
    "objects": message(f'[{{"data": {many("{}", 300_000)}}}]'),
    "names": message('[{"data": {' + ",".join(f'"{i}":0' for i in range(200_000)) + "}}]"),
    "references": message('[{"text": "x"}]', referenceTaskIds=["x"] * 300_000),
    "unknown": '{"what": ' + many('"x"', 300_000) + "}",
}


@pytest.mark.parametrize("flood", FLOODS)
async def test_a_flood_of_values_is_refused_and_delays_nobody(
    bridge: StartBridge, flood: str
) -> None:
    params = FLOODS[flood]
    async with bridge(ScriptedTransport(Completed("x"))) as b, httpx.AsyncClient() as http:
        async with stall() as held:
            over_rpc = await http.post(b.url, content=rpc(params), headers=V10)
            over_rest = await http.post(
                f"{b.url}/message:send", content=params.encode(), headers=V10
            )
        assert (await http.get(b.url + "/livez")).status_code == 200
    assert over_rpc.status_code == over_rest.status_code == 413
    assert over_rpc.json()["error"]["code"] == -32600
    assert over_rest.json()["error"]["code"] == 413
    for answered in (over_rpc, over_rest):
        assert "it has more than" in answered.json()["error"]["message"]
    assert held.longest < 10.0


@pytest.mark.parametrize("method", ["message/send", "message/stream"])
async def test_a_flood_of_bad_parts_in_a_0_3_message_is_refused(
    bridge: StartBridge, method: str
) -> None:
    body = rpc(
        '{"message": {"messageId": "m", "role": "user", "parts": ' + many("{}", 100_000) + "}}",
        method,
    )
    async with bridge(ScriptedTransport()) as b, httpx.AsyncClient() as http, stall() as held:
        answered = await http.post(b.url, content=body, headers=JSON)
    assert answered.status_code == 413
    assert "more than 1000 parts" in answered.json()["error"]["message"]
    assert len(answered.content) < 1000
    assert held.longest < 10.0


FULLEST = {
    "numbers": message(f'[{{"data": {many("0", 4_900)}}}]'),
    "objects": message(f'[{{"data": {many("{}", 4_900)}}}]'),
    "names": message('[{"data": {' + ",".join(f'"{i}":{i}' for i in range(4_900)) + "}}]"),
    "parts": message(many('{"text":"x"}', 1000)),
    "metadata": message('[{"text": "x"}]', metadata={"m": [[0]] * 2_400}),
}


@pytest.mark.parametrize("full", FULLEST)
async def test_the_largest_accepted_body_delays_others_only_briefly(
    bridge: StartBridge, full: str
) -> None:
    transport = ScriptedTransport(Completed("x"))
    async with bridge(transport) as b, httpx.AsyncClient() as http, stall() as held:
        answered = await http.post(b.url, content=rpc(FULLEST[full]), headers=V10, timeout=30)
    assert answered.json()["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert held.longest < 10.0


async def test_an_operator_can_set_other_limits(bridge: StartBridge) -> None:
    more, less = message(many('{"text":"x"}', 30)), message(many('{"text":"x"}', 20))
    async with (
        bridge(ScriptedTransport(Completed("x")), MAX_PARTS=20, MAX_VALUES=100) as b,
        httpx.AsyncClient() as http,
    ):
        assert (await http.post(b.url, content=rpc(more), headers=V10)).status_code == 413
        assert (await http.post(b.url, content=rpc(less), headers=V10)).status_code == 200
        data = message(f'[{{"data": {many("0", 100)}}}]')
        assert (await http.post(b.url, content=rpc(data), headers=V10)).status_code == 413


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/", rpc('{"message": "' + "A" * 3_000_000 + '"}')),
        ("/", rpc('{"message": {"parts": ' + many('"' + "A" * 30_000 + '"', 100) + "}}")),
        ("/message:send", b'"' + b"A" * 3_000_000 + b'"'),
        ("/v1/message:send", b'{"configuration": "' + b"A" * 3_000_000 + b'"}'),
        ("/v1/message:send", b'{"message": {"content": [{"data": "' + b"A" * 3_000_000 + b'"}]}}'),
    ],
    ids=["message", "parts", "request", "configuration", "0.3 data"],
)
async def test_a_long_string_in_place_of_an_object_delays_nobody(
    bridge: StartBridge, path: str, body: bytes
) -> None:
    """protobuf looks up each of its characters as the name of a field."""
    headers = JSON if path.startswith("/v1") else V10
    async with bridge(ScriptedTransport()) as b, httpx.AsyncClient(timeout=60) as http:
        async with stall() as held:
            answered = await http.post(b.url + path, content=body, headers=headers)
        assert "error" in answered.json()
    assert held.longest < 10.0


def nested(levels: int, opening: str, closing: str) -> str:
    return opening * levels + "1" + closing * levels


@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize(("opening", "closing"), [('{"a":', "}"), ("[", "]")])
async def test_the_deepest_accepted_data_can_be_listed(
    bridge: StartBridge, store: str, opening: str, closing: str
) -> None:
    """The SDK accepts deeper data, but then cannot read the task."""
    accepted = 0
    async with (
        bridge(ScriptedTransport(Completed("x")), STORE=store) as b,
        httpx.AsyncClient() as http,
        peer(b.url) as client,
    ):
        for levels in range(24, 34):
            params = message(f'[{{"data": {nested(levels, opening, closing)}}}]')
            answered = (await http.post(b.url, content=rpc(params), headers=V10)).json()
            accepted += "result" in answered
            if "error" in answered:
                assert "nested deeper than" in answered["error"]["message"]
        page = await client.list_tasks(ListTasksRequest())
    assert 0 < accepted == len(page.tasks) < 10


@pytest.mark.parametrize(
    "body",
    [
        rpc('{"' + "n" * 2000 + '": 1}'),
        rpc("{}", "m" * 2000),
        b'{"jsonrpc": "2.0", "id": "' + b"i" * 2000 + b'", "method": "GetTask", "params": {}}',
        rpc('{"id": "' + "\\u0069" * 2000 + '"}', "GetTask"),
        rpc('{"taskId": "t", "id": "' + "i" * 2000 + '"}', "CreateTaskPushNotificationConfig"),
    ],
    ids=["name", "method", "JSON-RPC id", "escaped task id", "push config id"],
)
async def test_long_names_and_ids_are_refused(bridge: StartBridge, body: bytes) -> None:
    async with bridge(ScriptedTransport()) as b, httpx.AsyncClient() as http:
        answered = await http.post(b.url, content=body, headers=V10)
    error = answered.json()["error"]
    assert error["code"] == -32700
    assert error["message"].endswith(f"a name or an id has more than {MAX_NAME} characters")


async def test_data_may_contain_long_strings_under_any_name(bridge: StartBridge) -> None:
    data = json.dumps({"id": "i" * 5000, "parts": [0] * 2000, "messageId": "m" * 5000})
    params = message(f'[{{"data": {data}}}]', metadata={"id": "i" * 5000})
    async with bridge(ScriptedTransport(Completed("x"))) as b, httpx.AsyncClient() as http:
        answered = await http.post(b.url, content=rpc(params), headers=V10)
    assert answered.json()["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.parametrize("path", ["/tasks/x:subscribe", "/v1/tasks/x:subscribe"])
async def test_the_body_of_a_get_is_limited_too(bridge: StartBridge, path: str) -> None:
    async with bridge(ScriptedTransport(), MAX_BODY=2048) as b, httpx.AsyncClient() as http:
        answered = await http.request("GET", b.url + path, content=b" " * 5000, headers=V10)
    assert answered.status_code == 413


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_a_body_may_arrive_in_any_chunks(bridge: StartBridge, size: int) -> None:
    text = 'Grüße 🙂 "quoted" \\ \x00 ' + "é" * 3000
    body = rpc(message(json.dumps([{"text": text}, {"text": text[::-1]}], ensure_ascii=size > 1)))

    async def pieces() -> Any:
        for start in range(0, len(body), size):
            yield body[start : start + size]
            await asyncio.sleep(0)

    transport = ScriptedTransport(Completed("x"))
    async with bridge(transport) as b, httpx.AsyncClient() as http:
        answered = await http.post(b.url, content=pieces(), headers=V10, timeout=30)
    assert answered.json()["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert transport.turns[0].text == f"{text}\n{text[::-1]}"


async def test_one_validation_error_is_reported_and_not_thousands(
    bridge: StartBridge, caplog: pytest.LogCaptureFixture
) -> None:
    bad = '{"message": {"messageId": "m", "role": "user", "parts": ' + many("{}", 1000) + "}}"
    async with bridge(ScriptedTransport()) as b, httpx.AsyncClient() as http:
        answered = await http.post(b.url, content=rpc(bad, "message/send"), headers=JSON)
    error = answered.json()["error"]
    assert (answered.status_code, error["code"]) == (200, -32600)
    assert "params.message.parts.0" in error["data"]
    assert len(answered.content) < 2000
    assert len(caplog.text) < 10_000
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_an_error_does_not_repeat_a_long_request(
    bridge: StartBridge, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    long = json.dumps("A" * 100_000)
    headers = JSON | {"A2A-Version": version}
    async with bridge(ScriptedTransport()) as b, httpx.AsyncClient(base_url=b.url) as http:
        for method in ("SendMessage", "GetTask", "ListTasks", "message/send", "tasks/get"):
            for params in (long, f'{{"message": {long}, "id": {long[:900]}", "pageSize": {long}}}'):
                answered = await http.post("/", content=rpc(params, method), headers=headers)
                assert "error" in answered.json()
                assert len(answered.content) < 5000
        for path in ("/message:send", "/v1/message:send", "/v1/message:stream"):
            answered = await http.post(path, content=f'{{"message": {long}}}', headers=headers)
            assert answered.status_code == 400
            assert len(answered.content) < 5000
    assert len(caplog.text) < 100_000
    assert "Traceback" not in caplog.text


# The scanner itself.

LIMITS = JsonLimits(values=200, parts=20)


def verdict(body: bytes, sizes: Iterator[int] | None = None, limits: JsonLimits = LIMITS) -> bool:
    """Whether the text passes. Only the two documented errors may be raised."""
    scanner = JsonScanner(limits)
    try:
        while sizes is not None and body:
            size = next(sizes)
            scanner.feed(body[:size])
            body = body[size:]
        scanner.feed(body)
        scanner.close()
    except (JsonSyntaxError, JsonLimitError):
        return False
    return True


def readable(body: bytes) -> bool:
    """The reference: JSON in UTF-8, with finite numbers and valid characters only."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        json.dumps(
            json.loads(body.decode(), parse_constant=refuse), ensure_ascii=False, allow_nan=False
        ).encode()
    except (ValueError, RecursionError):
        return False
    return True


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just("parts"), inner),
    max_leaves=30,
)
TEXTS = st.builds(
    lambda value, indent, ascii_only: json.dumps(value, indent=indent, ensure_ascii=ascii_only),
    VALUES,
    st.sampled_from([None, 0, 2]),
    st.booleans(),
).map(lambda text: text.encode("utf-8", "surrogatepass"))
WORDS = (
    "0 -1 1.5 1e5 1e999 -1e999 01 1. .5 + - 1e NaN Infinity -Infinity true false null nul é \x7f"
)
STRINGS = r'"a" "parts" "\n" "\x" "\u00zz" "\ud83d\ude00" "\ude00" "\ud83d\u0041" \ \u \ud800'
MARKS = '{ } [ ] , : " \x00 \ufeff'
TOKENS = st.lists(
    st.sampled_from([*WORDS.split(" "), *STRINGS.split(" "), *MARKS.split(" ")])
    | st.sampled_from([" ", "\n", "\t", "\r", "\x0b", "\xa0", '"\t"', "9" * 400, "1" * 5000]),
    max_size=12,
).map(lambda tokens: "".join(tokens).encode())
BODIES = TEXTS | TOKENS | st.binary(max_size=60)


@given(BODIES)
@example(b"")
@example(b" ")
@example(b"\xef\xbb\xbf{}")
@example('{"a": 1}'.encode("utf-16"))
@example('{"a": 1}'.encode("utf-16-le"))
@example('{"a": 1}'.encode("utf-32"))
@example(b'{"a": 1, "a": 2}')
@example(b"[1,]")
@example(b'{"a":}')
@example(b'{"a" 1}')
@example(b"[1 2]")
@example(b"1 1")
@example(b"[}")
@example(b'"\xed\xa0\x80"')
def test_the_scanner_accepts_only_json(body: bytes) -> None:
    if verdict(body):
        assert readable(body)
        json.loads(body)


@given(TEXTS)
def test_json_within_the_limits_passes(body: bytes) -> None:
    assert verdict(body, limits=JsonLimits(10**6, 10**6)) == readable(body) or depth(body) > 32


def depth(body: bytes) -> int:
    deepest = level = 0
    for byte in body:
        level += (byte in b"[{") - (byte in b"]}")
        deepest = max(deepest, level)
    return deepest


@given(BODIES, st.lists(st.integers(1, 9), min_size=1))
@example(b'{"a": "\\ud83d\\ude00", "b": [true, 1e5, -0.5]}', [1])
@example(b"9" * 1500, [1])
def test_the_chunks_of_a_text_do_not_change_the_verdict(body: bytes, sizes: list[int]) -> None:
    def endless() -> Iterator[int]:
        while True:
            yield from sizes

    assert verdict(body, endless()) == verdict(body)


@given(st.integers(0, 60), st.sampled_from(["[{", "[", "{"]))
def test_the_depth_is_limited_exactly(levels: int, kind: str) -> None:
    openings = {"[": ("[", "]"), "{": ('{"a":', "}")}
    pairs = [openings[kind[i % len(kind)]] for i in range(levels)]
    text = "".join(a for a, _ in pairs) + "1" + "".join(b for _, b in reversed(pairs))
    assert verdict(text.encode()) == (levels <= MAX_DEPTH)


@given(st.integers(0, 400), st.integers(0, 40))
def test_values_and_parts_are_limited_exactly(values: int, parts: int) -> None:
    assert verdict(many("0", values).encode()) == (values + 1 <= LIMITS.values)
    for name in ("parts", "p\\u0061rts", "content"):
        assert verdict(f'{{"{name}": {many("0", parts)}}}'.encode()) == (parts <= LIMITS.parts)
    assert verdict(f'{{"data": {{"parts": {many("0", parts)}}}}}'.encode())


@given(st.integers(MAX_NAME - 2, MAX_NAME + 2), st.sampled_from(["a", "é", "\\n", "\\u00e9", "🙂"]))
def test_names_and_ids_are_limited_exactly(length: int, character: str) -> None:
    text = character * length
    fits = length <= MAX_NAME
    assert verdict(f'{{"{text}": 1}}'.encode()) == fits
    assert verdict(f'{{"message": {{"messageId": "{text}"}}}}'.encode()) == fits
    assert verdict(f'{{"referenceTaskIds": ["{text}"]}}'.encode()) == fits
    assert verdict(f'{{"text": "{text}"}}'.encode())


@given(st.integers(MAX_ENVELOPE - 2, MAX_ENVELOPE + 2), st.integers(1, 5))
def test_strings_outside_content_are_limited_in_total(length: int, pieces: int) -> None:
    fields = ", ".join(f'"f{i}": "{"x" * (length // pieces)}"' for i in range(pieces - 1))
    rest = "x" * (length - length // pieces * (pieces - 1))
    text = f'{{{fields}{"," if fields else ""} "last": "{rest}"}}'
    assert verdict(text.encode()) == (length <= MAX_ENVELOPE)
    for name in ("text", "raw", "data", "metadata"):
        assert verdict(f'{{"{name}": "{"x" * length}"}}'.encode())


@pytest.mark.parametrize("number", ["1e308", "-1e308", "1e-400", "9" * 308, "0." + "1" * 1000])
def test_numbers_that_a_float_can_hold_pass(number: str) -> None:
    assert verdict(number.encode())


@pytest.mark.parametrize(
    "number",
    ["1e309", "-1e309", "9" * 400, "1" + "0" * 309, "9" * 1025, "NaN", "Infinity", "-Infinity"],
)
def test_numbers_that_no_float_can_hold_are_refused(number: str) -> None:
    for body in (number, f"[{number}]", f'{{"a": {number}}}'):
        assert not verdict(body.encode())
