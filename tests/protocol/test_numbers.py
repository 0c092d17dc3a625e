"""Whole numbers reach a peer as such, whichever way it asks."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.protocol.numbers import with_whole_numbers, with_whole_numbers_in
from molecule_hermes.turns.model import Completed, Question, TextDelta, Usage
from tests.conftest import StartBridge
from tests.support.fakes import Answered, ScriptedTransport

USAGE = {
    "inputTokens": 1200,
    "outputTokens": 30,
    "cachedTokens": 0,
    "reasoningTokens": 0,
    "totalTokens": 1230,
    "model": "m 1.0",
}
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**52), 2**52)
    | st.integers(-(2**52), 2**52).map(float)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(["3.0,", '"3.0}', "\\", '\\"1.0]', "data: 2.0}"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def has_a_whole_float(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(has_a_whole_float, value.values()))
    if isinstance(value, list):
        return any(map(has_a_whole_float, value))
    return isinstance(value, float) and value.is_integer() and abs(value) < 10**15


@given(st.dictionaries(st.text(), VALUES), st.sampled_from([None, (",", ":")]))
def test_only_the_form_of_whole_numbers_changes(
    value: dict[str, Any], separators: tuple[str, str] | None
) -> None:
    encoded = json.dumps(value, ensure_ascii=False, separators=separators).encode()
    changed = json.loads(with_whole_numbers_in(encoded))
    assert changed == with_whole_numbers(value) == value
    assert not has_a_whole_float(changed)
    assert not has_a_whole_float(with_whole_numbers(value))


def request(version: str, binding: str, streaming: bool) -> tuple[str, dict[str, Any]]:
    """The path and the body of a message, as the version's own clients write them."""
    old = version == "0.3"
    named: dict[str, Any] = {"messageId": "m"}
    text = {"text": "hi"}
    if binding == "JSONRPC":
        named["role"] = "user" if old else "ROLE_USER"
        named["parts"] = [{"kind": "text"} | text if old else text]
        methods = {
            "0.3": ("message/send", "message/stream"),
            "1.0": ("SendMessage", "SendStreamingMessage"),
        }
        method = methods[version][streaming]
        return "/", {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"message": named}}
    named["role"] = "ROLE_USER"
    named["content" if old else "parts"] = [text]
    prefix = "/v1" if old else ""
    return f"{prefix}/message:{'stream' if streaming else 'send'}", {"message": named}


def metadata_in(answer: str) -> dict[str, Any]:
    """The metadata of the last thing in the answer that has the usage in it."""
    lines = answer.splitlines()
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return dict(_find(json.loads((events or [answer])[-1])))


def _find(value: Any) -> Any:
    if isinstance(value, dict):
        if "usage" in value:
            return value
        value = list(value.values())
    found = [_find(item) for item in value] if isinstance(value, list) else []
    return next((item for item in found if item), None)


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_token_counts_are_whole_numbers_in_the_json_that_a_peer_receives(
    bridge: StartBridge, version: str, binding: str, streaming: bool
) -> None:
    script = (
        TextDelta("it is 3.0, [4.0]"),
        Completed("it is 3.0, [4.0]", Usage(1200, 30, 1230, "m 1.0")),
    )
    path, body = request(version, binding, streaming)
    async with bridge(ScriptedTransport(*script)) as b, httpx.AsyncClient() as http:
        answer = await http.post(b.url + path, json=body, headers={"A2A-Version": version})
    assert answer.status_code == 200, answer.text
    assert "it is 3.0, [4.0]" in answer.text
    metadata = metadata_in(answer.text)
    assert metadata["usage"] == USAGE
    assert all(isinstance(metadata["usage"][n], int) for n in USAGE if n.endswith("Tokens"))
    assert isinstance(metadata["durationSeconds"], float | int)


async def test_names_that_peers_see_are_in_camel_case(bridge: StartBridge) -> None:
    asks = Question("q1", "approval", "may I?", ("once", "deny"))
    script = TextDelta("x"), asks, Answered(), Completed("x", Usage(1, 2, 3, "m"))
    headers = {"A2A-Version": "1.0"}
    async with bridge(ScriptedTransport(*script)) as b, httpx.AsyncClient(base_url=b.url) as http:
        path, body = request("1.0", "HTTP+JSON", False)
        task = (await http.post(path, json=body, headers=headers)).json()["task"]
        asked = task["status"]["message"]["metadata"]["question"]
        assert asked.pop("expiresAt")
        assert asked == {"questionId": "q1", "kind": "approval", "choices": ["once", "deny"]}
        answer = {"data": {"questionId": "q1", "answer": "once"}}
        body["message"] |= {"messageId": "n", "taskId": task["id"], "parts": [answer]}
        task = (await http.post(path, json=body, headers=headers)).json()["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert set(task["metadata"]) == {"usage", "durationSeconds", "firstTextSeconds", "version"}
    names = set(_names(task))
    assert {"answered", "questionId", "inputTokens"} <= names
    assert not [name for name in names if "_" in name]


def _names(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [*value, *(name for item in value.values() for name in _names(item))]
    if isinstance(value, list):
        return [name for item in value for name in _names(item)]
    return []
