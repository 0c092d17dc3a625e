"""Numbers that JSON cannot express are not stored, and stored ones break nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.types import GetTaskRequest, ListTasksRequest, Task
from google.protobuf import json_format

from molecule_hermes.config import Settings
from molecule_hermes.server.bridge import Bridge
from molecule_hermes.storage.sqlite.store import SqliteTaskStore
from molecule_hermes.turns.model import Completed
from tests.conftest import StartBridge
from tests.support.fakes import ScriptedTransport
from tests.support.peers import peer
from tests.support.tasks import context, task

NUMBERS = ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" + "0" * 400]
V10 = {"Content-Type": "application/json", "A2A-Version": "1.0"}
V03 = {"Content-Type": "application/json"}


def rpc(method: str, params: str) -> str:
    return f'{{"jsonrpc": "2.0", "id": 1, "method": "{method}", "params": {params}}}'


def requests(number: str) -> dict[str, tuple[str, str, dict[str, str]]]:
    """Every request that has data or metadata: path, body, headers."""
    new = f'"messageId": "m", "role": "ROLE_USER", "metadata": {{"n": [{number}]}}'
    old = '"kind": "message", "messageId": "m", "role": "user"'
    data, text = f'[{{"data": {{"n": {number}}}}}]', '[{"text": "x"}]'
    in_part = f'{{"message": {{"messageId": "m", "role": "ROLE_USER", "parts": {data}}}}}'
    in_metadata = f'{{"message": {{{new}, "parts": {text}}}}}'
    of_request = (
        f'{{"message": {{"messageId": "m", "role": "ROLE_USER", "parts": {text}}}, '
        f'"metadata": {{"n": {number}}}}}'
    )
    old_rpc = f'{{"message": {{{old}, "parts": [{{"kind": "data", "data": {{"n": {number}}}}}]}}}}'
    old_rest = (
        '{"message": {"messageId": "m", "role": "ROLE_USER", '
        f'"content": [{{"data": {{"data": {{"n": {number}}}}}}}]}}}}'
    )
    return {
        "part": ("/", rpc("SendMessage", in_part), V10),
        "metadata": ("/", rpc("SendStreamingMessage", in_metadata), V10),
        "request": ("/", rpc("SendMessage", of_request), V10),
        "rest": ("/message:send", in_part, V10),
        "rest stream": ("/message:stream", in_metadata, V10),
        "0.3": ("/", rpc("message/send", old_rpc), V03),
        "0.3 stream": ("/", rpc("message/stream", old_rpc), V03),
        "0.3 rest": ("/v1/message:send", old_rest, V03),
        "0.3 rest stream": ("/v1/message:stream", old_rest, V03),
    }


@pytest.mark.parametrize("way", list(requests("0")))
async def test_invalid_numbers_are_refused_with_the_request(bridge: StartBridge, way: str) -> None:
    transport = ScriptedTransport(Completed("x"))
    async with (
        bridge(transport, STORE="memory") as b,
        httpx.AsyncClient(base_url=b.url) as http,
        peer(b.url) as client,
    ):
        for number in NUMBERS:
            path, body, headers = requests(number)[way]
            answered = await http.post(path, content=body, headers=headers)
            error = answered.json()["error"]
            assert (answered.status_code, error["code"]) in [(200, -32700), (400, 400)]
            assert error["message"].startswith("the body cannot be parsed as JSON")
        assert transport.turns == []
        path, body, headers = requests("1.5e300")[way]
        assert (await http.post(path, content=body, headers=headers)).status_code == 200
        assert len((await client.list_tasks(ListTasksRequest())).tasks) == 1


def spoilt(task_id: str) -> Task:
    """Stores a task as a bridge that accepted such numbers did."""
    made = task(task_id, at=5, text="the reply")
    made.history.add(message_id="m").parts.add()
    json_format.ParseDict({"list": [1.5, {"deep": [math.nan]}]}, made.history[0].parts[0].data)
    made.history[0].metadata["n"] = math.inf
    made.status.message.parts.add().data.struct_value["n"] = -math.inf
    made.metadata["n"] = math.nan
    made.artifacts[0].metadata["n"] = math.nan
    made.artifacts[0].parts[0].metadata["n"] = math.nan
    return made


async def test_a_stored_task_with_non_finite_numbers_can_be_read_and_listed(
    settings: Callable[..., Settings], tmp_path: Path
) -> None:
    async with SqliteTaskStore(tmp_path / "tasks.db") as store:
        await store.save(spoilt("spoilt"), context(""))
        await store.save(task("sound", at=1), context(""))
    async with (
        Bridge(settings(STORE="sqlite"), ScriptedTransport()) as b,
        peer(b.url) as client,
        httpx.AsyncClient(base_url=b.url) as http,
    ):
        page = await client.list_tasks(ListTasksRequest(include_artifacts=True))
        shown = await client.get_task(GetTaskRequest(id="spoilt"))
        rest = (await http.get("/tasks/spoilt", headers=V10)).json()
        old = await http.post("/", content=rpc("tasks/get", '{"id": "spoilt"}'), headers=V03)
    assert [t.id for t in page.tasks] == ["spoilt", "sound"]
    assert shown == page.tasks[0]
    assert rest["history"][0]["parts"][0]["data"] == {"list": [1.5, {"deep": ["NaN"]}]}
    assert rest["history"][0]["metadata"] == {"n": "Infinity"}
    assert rest["status"]["message"]["parts"][0]["data"] == {"n": "-Infinity"}
    assert rest["metadata"] == {"n": "NaN"}
    assert rest["artifacts"][0]["parts"][0]["text"] == "the reply"
    assert "result" in old.json()


async def test_an_unreadable_task_does_not_break_a_listing(
    settings: Callable[..., Settings], tmp_path: Path
) -> None:
    async with SqliteTaskStore(tmp_path / "tasks.db") as store:
        for number in range(3):
            await store.save(task(f"t{number}", "FAILED", f"c{number}", at=number), context(""))
        await store.database.write("UPDATE tasks SET task = ? WHERE id = 't1'", (b"\xff" * 20,))
    async with Bridge(settings(STORE="sqlite"), ScriptedTransport()) as b, peer(b.url) as client:
        page = await client.list_tasks(ListTasksRequest())
        shown = await client.get_task(GetTaskRequest(id="t1"))
    assert [t.id for t in page.tasks] == ["t2", "t1", "t0"]
    assert (shown.context_id, shown.status.state) == ("c1", task("", "FAILED").status.state)
    assert "cannot be read" in shown.status.message.parts[0].text


def test_the_cases_are_what_they_claim() -> None:
    for number in NUMBERS:
        value: Any = json.loads(number)
        assert isinstance(value, int) or not math.isfinite(value)
