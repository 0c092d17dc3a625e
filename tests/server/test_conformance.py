"""What JSON-RPC 2.0 and A2A ask of the HTTP border, over real sockets (docs/conformance.md)."""

from __future__ import annotations

import base64
import re
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.types import Part, Role
from a2a.utils.errors import A2AError

from molecule_hermes.client.connection import message
from molecule_hermes.turns.model import Completed, FileProduced
from tests.conftest import StartBridge
from tests.server.test_bridge import CARD, rpc, text_message
from tests.support.fakes import ScriptedTransport
from tests.support.peers import ask, peer, send
from tests.support.waiting import until

V10 = {"A2A-Version": "1.0"}
PNG = b"\x89PNG\r\n\x1a\n\xff\x00 not really"
FILE = base64.b64encode(PNG).decode()


def notification(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def v03_params(*parts: dict[str, Any]) -> dict[str, Any]:
    sent = {"kind": "message", "messageId": "m", "role": "user"}
    return {"message": sent | {"parts": [{"kind": "text", "text": "hi"}, *parts]}}


def v03_rest_message(*parts: dict[str, Any]) -> dict[str, Any]:
    content = [{"text": "hi"}, *parts]
    return {"message": {"messageId": "m", "role": "ROLE_USER", "content": content}}


# JSON-RPC 2.0.


@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage"])
async def test_a_notification_runs_and_gets_no_response(bridge: StartBridge, method: str) -> None:
    transport = ScriptedTransport(Completed("x"))
    async with bridge(transport) as b, httpx.AsyncClient(base_url=b.url) as http:
        answered = await http.post("/", json=notification(method, text_message()), headers=V10)
        assert (answered.status_code, answered.content) == (204, b"")
        listed = (await http.get("/tasks", headers=V10)).json()["tasks"]
    assert [task["status"]["state"] for task in listed] == ["TASK_STATE_COMPLETED"]
    assert len(transport.turns) == 1


@pytest.mark.parametrize("method", ["message/send", "message/stream"])
async def test_a_notification_of_a_0_3_client_gets_no_response(
    bridge: StartBridge, method: str
) -> None:
    transport = ScriptedTransport(Completed("x"))
    async with bridge(transport) as b, httpx.AsyncClient(base_url=b.url) as http:
        answered = await http.post("/", json=notification(method, v03_params()))
        assert (answered.status_code, answered.content) == (204, b"")
        await until(lambda: transport.turns)
    assert len(transport.turns) == 1


@pytest.mark.parametrize(
    "body",
    [
        notification("NoSuchMethod", {}),
        notification("GetTask", {"id": "nobody"}),
        notification("SendMessage", {"message": 7}),
        notification("message/send", {}),
    ],
    ids=["unknown method", "unknown task", "bad params", "wrong version"],
)
async def test_a_notification_that_fails_gets_no_response_either(
    bridge: StartBridge, body: dict[str, Any]
) -> None:
    async with bridge(ScriptedTransport()) as b, httpx.AsyncClient(base_url=b.url) as http:
        answered = await http.post("/", json=body, headers=V10)
    assert (answered.status_code, answered.content) == (204, b"")


@pytest.mark.parametrize(
    "body",
    [
        {"jsonrpc": "2.0"},
        {"jsonrpc": "1.0", "method": "GetTask"},
        {"jsonrpc": "2.0", "method": 7},
        rpc("GetTask", {"id": "nobody"}) | {"id": None},
    ],
    ids=["no method", "not 2.0", "method is a number", "id is null"],
)
async def test_an_invalid_request_and_one_with_a_null_id_are_no_notifications(
    bridge: StartBridge, body: dict[str, Any]
) -> None:
    async with bridge(ScriptedTransport()) as b, httpx.AsyncClient(base_url=b.url) as http:
        answered = (await http.post("/", json=body, headers=V10)).json()
    assert answered["id"] is None
    assert answered["error"]["code"] in (-32600, -32001)


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_unknown_members_of_a_request_are_ignored(bridge: StartBridge, version: str) -> None:
    request = (
        rpc("SendMessage", text_message("grüß dich"))
        if version == "1.0"
        else rpc("message/send", v03_params())
    )
    transport = ScriptedTransport(Completed("x"))
    async with bridge(transport) as b, httpx.AsyncClient(base_url=b.url) as http:
        answered = await http.post(
            "/", json=request | {"stream": True, "x": {}}, headers={"A2A-Version": version}
        )
    assert answered.json()["id"] == 1
    assert "result" in answered.json()
    assert transport.turns[0].text == ("grüß dich" if version == "1.0" else "hi")


# Versions.


async def test_the_version_in_the_query_string_counts_as_the_header(bridge: StartBridge) -> None:
    async with (
        bridge(ScriptedTransport(Completed("x"))) as b,
        httpx.AsyncClient(base_url=b.url, params={"A2A-Version": "1.0"}) as http,
    ):
        over_rpc = await http.post("/", json=rpc("SendMessage", text_message()))
        over_rest = await http.post("/message:send", json=text_message())
        listed = await http.get("/tasks", params={"pageSize": "1"})
        header_wins = await http.get("/tasks", headers={"A2A-Version": "0.3"})
    task = over_rpc.json()["result"]["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert over_rest.json()["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert (len(listed.json()["tasks"]), listed.json()["totalSize"]) == (1, 2)
    assert header_wins.status_code == 400


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"A2A-Version": "0.3"},
        {"A2A-Version": "2.0"},
        {"A2A-Version": "1." + "9" * 5000},
    ],
)
async def test_an_operation_of_1_0_under_another_version_says_what_to_send(
    bridge: StartBridge, headers: dict[str, str]
) -> None:
    async with bridge(ScriptedTransport()) as b, httpx.AsyncClient(base_url=b.url) as http:
        over_rpc = await http.post("/", json=rpc("SendMessage", text_message()), headers=headers)
        over_rest = await http.post("/message:send", json=text_message(), headers=headers)
    error = over_rpc.json()["error"]
    assert error["code"] == -32009
    assert error["message"].startswith("SendMessage belongs to A2A 1.0")
    assert error["message"].endswith("send the header A2A-Version: 1.0")
    assert error["data"][0]["reason"] == "VERSION_NOT_SUPPORTED"
    assert over_rest.status_code == 400
    assert over_rest.json()["error"]["message"].endswith("send the header A2A-Version: 1.0")
    assert "0.3 is not supported" not in over_rpc.text + over_rest.text


async def test_an_operation_of_0_3_under_1_0_says_what_to_send(bridge: StartBridge) -> None:
    async with bridge(ScriptedTransport()) as b, httpx.AsyncClient(base_url=b.url) as http:
        answers = [
            await http.post("/", json=rpc(method, v03_params()), headers=V10)
            for method in ("message/send", "message/stream", "tasks/get")
        ]
        over_rest = await http.get("/v1/tasks/x", headers=V10)
    for answered in answers:
        assert answered.json()["error"]["code"] == -32009
        assert "send the header A2A-Version: 0.3" in answered.json()["error"]["message"]
    assert over_rest.status_code == 400
    assert "send the header A2A-Version: 0.3" in over_rest.json()["error"]["message"]


# Files over the REST binding of 0.3.


@pytest.mark.parametrize("path", ["/v1/message:send", "/v1/message:stream"])
@pytest.mark.parametrize(
    "value",
    [FILE, FILE.rstrip("="), base64.urlsafe_b64encode(PNG).decode()],
    ids=["base64", "without padding", "URL-safe"],
)
async def test_a_file_over_0_3_rest_is_base64_once_in_both_directions(
    bridge: StartBridge, path: str, value: str
) -> None:
    transport = ScriptedTransport(FileProduced("a.png", "image/png", PNG), Completed("x"))
    sent = v03_rest_message({"file": {"fileWithBytes": value, "mimeType": "image/png"}})
    async with bridge(transport) as b, httpx.AsyncClient(base_url=b.url) as http:
        answered = await http.post(path, json=sent)
    assert answered.status_code == 200
    assert transport.turns[0].attachments[0].data == PNG
    assert f'"fileWithBytes":"{FILE}"' in answered.text.replace(": ", ":")


async def test_the_sdks_0_3_rest_client_can_send_files(bridge: StartBridge) -> None:
    """It encodes their bytes twice, and expects the same of the response."""
    transport = ScriptedTransport(FileProduced("a.png", "image/png", PNG), Completed("x"))
    async with (
        bridge(transport) as b,
        peer(b.url, binding="HTTP+JSON", version="0.3", streaming=False) as client,
    ):
        request = message("look")
        request.message.parts.append(Part(raw=PNG, media_type="image/png", filename="a.png"))
        turn = await send(client, request)
    assert turn.states[-1] == "COMPLETED"
    assert turn.events[-1].task.artifacts[0].parts[0].raw == PNG
    assert transport.turns[0].attachments[0].data == PNG


@pytest.mark.parametrize("path", ["/v1/message:send", "/v1/message:stream"])
async def test_a_0_3_file_that_is_not_base64_is_the_peers_mistake(
    bridge: StartBridge, path: str
) -> None:
    sent = v03_rest_message({"file": {"fileWithBytes": "not base64!"}})
    async with bridge(ScriptedTransport()) as b, httpx.AsyncClient(base_url=b.url) as http:
        answered = await http.post(path, json=sent)
    assert answered.status_code == 400
    assert answered.json()["error"]["message"] == "the bytes of a file part are not base64"


# What is printed.


async def test_empty_defaults_are_not_printed(bridge: StartBridge) -> None:
    transport = ScriptedTransport(FileProduced("a.png", "image/png", PNG), Completed("x"))
    metadata = {"empty": "", "list": []}
    async with bridge(transport) as b, httpx.AsyncClient(base_url=b.url, headers=V10) as http:
        sent = text_message(metadata=metadata)
        sent["message"]["parts"].append({"data": {"empty": ""}})
        await http.post("/message:send", json=sent)
        over_rpc = await http.post("/", json=rpc("ListTasks", {"includeArtifacts": True}))
        over_rest = await http.get("/tasks", params={"includeArtifacts": "true"})
        nothing = await http.get("/tasks", params={"contextId": "nobody"})
    assert over_rpc.json()["result"] == over_rest.json()
    (task,) = over_rest.json()["tasks"]
    assert task["history"][0]["parts"] == [{"text": "hi"}, {"data": {"empty": ""}}]
    assert task["history"][0]["metadata"] == metadata
    assert "extensions" not in task["history"][0]
    assert [set(part) for part in task["artifacts"][-1]["parts"]] == [{"text"}]
    assert nothing.json()["tasks"] == []
    assert nothing.json()["nextPageToken"] == ""
    assert nothing.json()["totalSize"] == 0


@pytest.mark.parametrize(
    "status", ["completed", "TASK_STATE_DONE", 99, "99", -1, True, [], "x" * 999, "9" * 5000]
)
async def test_an_unknown_status_filter_is_refused(bridge: StartBridge, status: Any) -> None:
    transport = ScriptedTransport(Completed("x"))
    async with bridge(transport) as b, httpx.AsyncClient(base_url=b.url, headers=V10) as http:
        await http.post("/message:send", json=text_message())
        over_rpc = (await http.post("/", json=rpc("ListTasks", {"status": status}))).json()
        over_rest = await http.get("/tasks", params={"status": str(status)})
    assert over_rpc["id"] == 1
    assert over_rpc["error"]["code"] == -32602
    assert over_rest.status_code == 400
    for text in (over_rpc["error"]["message"], over_rest.json()["error"]["message"]):
        assert "unknown status" in text
        assert "TASK_STATE_COMPLETED" in text
        assert len(text) < 500


@pytest.mark.parametrize(
    ("status", "found"),
    [
        (None, 1),
        ("", 1),
        ("TASK_STATE_UNSPECIFIED", 1),
        ("TASK_STATE_COMPLETED", 1),
        (3, 1),
        ("TASK_STATE_FAILED", 0),
    ],
)
async def test_a_known_status_filter_counts(bridge: StartBridge, status: Any, found: int) -> None:
    transport = ScriptedTransport(Completed("x"))
    async with bridge(transport) as b, httpx.AsyncClient(base_url=b.url, headers=V10) as http:
        await http.post("/message:send", json=text_message())
        over_rpc = (await http.post("/", json=rpc("ListTasks", {"status": status}))).json()
        query = {} if status is None else {"status": str(status)}
        over_rest = await http.get("/tasks", params=query)
    assert over_rpc["result"]["totalSize"] == over_rest.json()["totalSize"] == found


# Who speaks.


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_a_message_in_the_agents_role_is_refused(
    bridge: StartBridge, binding: str, version: str, streaming: bool
) -> None:
    transport = ScriptedTransport(Completed("x"))
    request = message("hi")
    request.message.role = Role.ROLE_AGENT
    async with (
        bridge(transport) as b,
        peer(b.url, binding=binding, version=version, streaming=streaming) as client,
    ):
        # The SDK's client of 0.3 over REST shows the status only.
        with pytest.raises(A2AError, match=r"ROLE_USER|HTTP Error 400"):
            await send(client, request)
    assert transport.turns == []


@pytest.mark.parametrize("length", ["many", "1.5", "9" * 5000])
async def test_a_bad_history_length_over_0_3_rest_is_the_peers_mistake(
    bridge: StartBridge, length: str
) -> None:
    async with bridge(ScriptedTransport()) as b, httpx.AsyncClient(base_url=b.url) as http:
        answered = await http.get("/v1/tasks/x", params={"historyLength": length})
    assert answered.status_code == 400
    assert "historyLength" in answered.json()["error"]["message"]


# What the SDK does not offer (docs/conformance.md).


async def test_a_batch_is_refused(bridge: StartBridge) -> None:
    async with bridge(ScriptedTransport()) as b, httpx.AsyncClient(base_url=b.url) as http:
        answered = await http.post("/", json=[rpc("GetTask", {"id": "x"})], headers=V10)
    assert answered.json()["error"]["code"] == -32600
    assert "Batch" in answered.json()["error"]["message"]


async def test_a_webhook_cannot_be_deleted_over_0_3_rest(bridge: StartBridge) -> None:
    path = "/v1/tasks/x/pushNotificationConfigs/y"
    async with bridge(ScriptedTransport()) as b, httpx.AsyncClient(base_url=b.url) as http:
        answered = await http.delete(path)
    assert answered.status_code == 400


@pytest.mark.parametrize(
    ("content", "received"),
    [(b"0123456789abcdef", base64.b64decode("0123456789abcdef")), (b"test", b"test")],
    ids=["base64", "a short word"],
)
async def test_a_0_3_file_that_contains_base64_is_decoded_twice(
    bridge: StartBridge, content: bytes, received: bytes
) -> None:
    transport = ScriptedTransport(Completed("x"))
    file = {"fileWithBytes": base64.b64encode(content).decode(), "mimeType": "application/zip"}
    async with bridge(transport) as b, httpx.AsyncClient(base_url=b.url) as http:
        await http.post("/v1/message:send", json=v03_rest_message({"file": file}))
    assert transport.turns[0].attachments[0].data == received


async def test_the_sdks_0_3_rest_client_cannot_read_files_unless_it_sent_some(
    bridge: StartBridge,
) -> None:
    transport = ScriptedTransport(FileProduced("a.png", "image/png", PNG), Completed("x"))
    async with (
        bridge(transport) as b,
        peer(b.url, binding="HTTP+JSON", version="0.3", streaming=False) as client,
    ):
        with pytest.raises(UnicodeDecodeError):
            await ask(client, "draw")


# Paths, cards and addresses.


@pytest.mark.parametrize(
    "path", ["/nothing", "/nothing/", "/tasks/", "/x/y/z", "/livez/", "/x/tasks/"]
)
async def test_an_unknown_path_is_not_found_at_once(bridge: StartBridge, path: str) -> None:
    async with bridge(ScriptedTransport()) as b, httpx.AsyncClient(base_url=b.url) as http:
        answered = await http.get(path, headers=V10)
    assert answered.status_code == 404
    assert answered.json()["error"]["code"] == 404


@pytest.mark.parametrize("path", ["", "/"])
async def test_json_rpc_is_served_with_and_without_a_trailing_slash(
    bridge: StartBridge, path: str
) -> None:
    async with bridge(
        ScriptedTransport(Completed("x")), PUBLIC_URL="https://agents.example/hermes"
    ) as b:
        for prefix in ("", "/hermes"):
            async with httpx.AsyncClient() as http:
                url = f"{b.local_url}{prefix}{path}"
                answered = await http.post(
                    url, json=rpc("SendMessage", text_message()), headers=V10
                )
            assert "result" in answered.json()


async def test_the_card_can_be_cached(bridge: StartBridge) -> None:
    async with bridge(ScriptedTransport()) as b, httpx.AsyncClient(base_url=b.url) as http:
        served = await http.get(CARD)
        again = await http.get(CARD, headers={"If-None-Match": served.headers["ETag"]})
        head = await http.head(CARD)
    for answered in (served, again, head):
        assert answered.headers["Cache-Control"] == "public, max-age=300"
        assert parsedate_to_datetime(answered.headers["Last-Modified"])
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("host", ["::1", "[::1]"])
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_an_ipv6_address_works_end_to_end(
    bridge: StartBridge, host: str, binding: str
) -> None:
    async with bridge(ScriptedTransport(Completed("x")), HOST=host) as b:
        assert b.url.startswith("http://[::1]:")
        async with httpx.AsyncClient() as http:
            card = (await http.get(b.url + CARD)).json()
            assert (await http.get(b.url + "/readyz")).status_code == 200
        assert {i["url"] for i in card["supportedInterfaces"]} == {b.url}
        async with peer(b.url, binding=binding) as client:
            assert (await ask(client, "hi")).states[-1] == "COMPLETED"


async def test_a_0_3_rest_stream_that_cannot_begin_has_an_error_body(bridge: StartBridge) -> None:
    async with bridge(ScriptedTransport()) as b, httpx.AsyncClient(base_url=b.url) as http:
        answered = await http.post("/v1/message:stream", json={"message": {"messageId": "m"}})
    assert answered.status_code == 400
    assert answered.json()["error"]["message"]


def test_the_documentation_names_tests_that_exist() -> None:
    root = Path(__file__).parents[2]
    named = re.findall(
        r"`((?:tests/[^`]*::)?test_\w+)`", (root / "docs/conformance.md").read_text()
    )
    assert len(named) > 20
    for name in named:
        file, _, test = name.rpartition("::")
        source = (root / (file or "tests/server/test_conformance.py")).read_text()
        assert f"def {test}(" in source, name
