"""The A2A server over real sockets: card, bindings, probes, tokens, limits."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.types import CancelTaskRequest, GetTaskRequest, ListTasksRequest, SubscribeToTaskRequest
from a2a.utils.errors import (
    A2AError,
    InternalError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)

from molecule_hermes.client.connection import message
from molecule_hermes.errors import StartError, Unreachable
from molecule_hermes.turns.features import features_of
from molecule_hermes.turns.model import Completed, Question, TextDelta
from tests.conftest import StartBridge
from tests.support.fakes import (
    DONE,
    Answered,
    FakeHermes,
    ScriptedTransport,
    answer,
    chunk,
    streaming,
    tool,
    upstream_error,
)
from tests.support.peers import Turn, ask, peer, reply_text, state
from tests.support.waiting import until

CARD = "/.well-known/agent-card.json"
EXTENSIONS = Path(__file__).parents[2] / "docs" / "extensions.md"
TOKENS = "alice:alice-token-0123456789,bob:bob-token-0123456789"
ALICE, BOB = "alice-token-0123456789", "bob-token-0123456789"


def rpc(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def text_message(text: str = "hi", **more: Any) -> dict[str, Any]:
    message = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": [{"text": text}]}
    return {"message": message | more}


@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
@pytest.mark.parametrize("stream", [True, False])
async def test_every_binding_and_version_answers(
    bridge: StartBridge, hermes: FakeHermes, binding: str, version: str, stream: bool
) -> None:
    async with (
        bridge(hermes) as b,
        peer(b.url, binding=binding, version=version, streaming=stream) as client,
    ):
        turn = await ask(client, "ping", "ctx")
        task = await client.get_task(GetTaskRequest(id=turn.task_id))
    assert turn.states[-1] == "COMPLETED"
    assert turn.text == reply_text(task) == "pong"
    assert task.context_id == "ctx"


async def test_the_card_is_also_served_at_its_older_path(bridge: StartBridge) -> None:
    async with (
        bridge(ScriptedTransport(), PEER_TOKENS="alice:0123456789abcdef") as b,
        httpx.AsyncClient(base_url=b.url) as http,
    ):
        card, older = await http.get(CARD), await http.get("/.well-known/agent.json")
    assert (older.status_code, older.json()) == (200, card.json())
    assert older.headers["Cache-Control"] == card.headers["Cache-Control"]
    assert "max-age" in older.headers["Cache-Control"]


async def test_the_card_says_what_works_and_no_more(bridge: StartBridge) -> None:
    async with (
        bridge(ScriptedTransport(), NAME="Dora", DESCRIPTION="helps") as b,
        httpx.AsyncClient() as http,
    ):
        card = (await http.get(b.url + CARD)).json()
    assert (card["name"], card["description"]) == ("Dora", "helps")
    for extension in card["capabilities"].pop("extensions"):
        assert f"## `{extension['uri']}`" in EXTENSIONS.read_text(encoding="utf-8")
        assert not extension.get("required")
        assert set(extension.get("params", {})) <= {"agentId"}
    assert "application/json" in card["defaultOutputModes"]
    assert card["capabilities"] == {"streaming": True, "pushNotifications": True}
    assert {i["url"] for i in card["supportedInterfaces"]} == {b.url}
    assert card["defaultInputModes"][0] == card["defaultOutputModes"][0] == "text/plain"
    assert all(skill["description"] and skill["examples"] for skill in card["skills"])
    for skill in card["skills"]:
        assert skill["inputModes"] == card["defaultInputModes"]
        assert skill["outputModes"] == card["defaultOutputModes"]
    assert "securitySchemes" not in card


async def test_the_public_url_is_on_the_card_and_its_path_is_served(
    bridge: StartBridge, hermes: FakeHermes
) -> None:
    async with bridge(hermes, PUBLIC_URL="https://agents.example/hermes/") as b:
        assert b.url == "https://agents.example/hermes"
        async with httpx.AsyncClient(base_url=b.local_url) as http:
            card = (await http.get(CARD)).json()
            urls = [interface["url"] for interface in card["supportedInterfaces"][:2]]
            assert urls == ["https://agents.example/hermes/", "https://agents.example/hermes"]
            for path in ("/", "/hermes", "/hermes/"):
                answered = await http.post(
                    path,
                    json=rpc("SendMessage", text_message()),
                    headers={"A2A-Version": "1.0"},
                )
                assert answered.json()["result"]["task"]["status"]["state"].endswith("COMPLETED")
            listed = await http.get("/hermes/tasks", headers={"A2A-Version": "1.0"})
            assert len(listed.json()["tasks"]) == 3


async def test_without_compatibility_only_1_0_is_offered(bridge: StartBridge) -> None:
    async with bridge(ScriptedTransport(), COMPAT_V03="false") as b, httpx.AsyncClient() as http:
        card = (await http.get(b.url + CARD)).json()
        old = rpc("message/send", {"message": {"messageId": "m", "role": "user", "parts": []}})
        refused = (await http.post(b.url, json=old)).json()
    assert {i["protocolVersion"] for i in card["supportedInterfaces"]} == {"1.0"}
    assert refused["error"]["code"] == -32601


async def test_tasks_can_be_listed_and_filtered(bridge: StartBridge) -> None:
    async with bridge(ScriptedTransport(Completed("x"))) as b, peer(b.url) as client:
        for context in ("a", "a", "b"):
            await ask(client, "hi", context)
        everything = await client.list_tasks(ListTasksRequest())
        some = await client.list_tasks(ListTasksRequest(context_id="a", page_size=1))
    assert everything.total_size == 3
    assert (some.total_size, len(some.tasks)) == (2, 1)
    assert some.next_page_token


async def test_a_second_subscriber_gets_the_state_so_far_and_the_rest(bridge: StartBridge) -> None:
    go = asyncio.Event()
    transport = ScriptedTransport(
        TextDelta("first "), go, TextDelta("rest"), Completed("first rest")
    )
    async with bridge(transport) as b, peer(b.url) as one, peer(b.url) as two:
        first, second = Turn(), Turn()
        stream = one.send_message(message("hi"))
        while not first.updates:
            first.add(await anext(stream))
        subscription = two.subscribe(SubscribeToTaskRequest(id=first.task_id))
        second.add(await anext(subscription))
        go.set()
        async for event in subscription:
            second.add(event)
        async for event in stream:
            first.add(event)
    assert reply_text(second.events[0].task) == "first "
    assert first.text == second.text == "first rest"
    assert first.states[-1] == second.states[-1] == "COMPLETED"


async def test_messages_to_an_ended_task_leave_nothing_behind(bridge: StartBridge) -> None:
    async with (
        bridge(ScriptedTransport(Completed("done"))) as b,
        peer(b.url) as client,
        httpx.AsyncClient() as http,
    ):
        ended = await ask(client, "go")
        for _ in range(5):
            with pytest.raises(UnsupportedOperationError, match="terminal state"):
                await ask(client, "more", task_id=ended.task_id)
        assert "\nmolecule_hermes_active_tasks 0.0\n" in (await http.get(b.url + "/metrics")).text


async def test_an_ended_task_cannot_be_canceled_subscribed_to_or_written_to(
    bridge: StartBridge,
) -> None:
    async with bridge(ScriptedTransport(Completed("x"))) as b, peer(b.url) as client:
        turn = await ask(client, "hi")
        with pytest.raises(TaskNotCancelableError):
            await client.cancel_task(CancelTaskRequest(id=turn.task_id))
        with pytest.raises(UnsupportedOperationError):
            await anext(client.subscribe(SubscribeToTaskRequest(id=turn.task_id)))
        with pytest.raises(UnsupportedOperationError):
            await ask(client, "more", task_id=turn.task_id)


async def test_a_message_to_a_task_that_is_being_canceled_is_refused(bridge: StartBridge) -> None:
    question = Question("q1", "approval", "may I?", ("once", "deny"))
    transport = SlowToCancel(question, Answered(), Completed("x"))
    async with bridge(transport) as b, peer(b.url) as client:
        asked = await ask(client, "hi")
        request = CancelTaskRequest(id=asked.task_id)
        canceling = asyncio.create_task(client.cancel_task(request))
        await transport.asked_to_cancel.wait()
        with pytest.raises(UnsupportedOperationError, match="being canceled"):
            await ask(client, "yes", task_id=asked.task_id)
        transport.may_cancel.set()
        assert state(await canceling) == "CANCELED"
    assert transport.answers == []


class SlowToCancel(ScriptedTransport):
    def __init__(self, *script: Any) -> None:
        super().__init__(*script)
        self.asked_to_cancel = asyncio.Event()
        self.may_cancel = asyncio.Event()

    async def cancel(self, turn: Any) -> None:
        self.asked_to_cancel.set()
        await self.may_cancel.wait()
        await super().cancel(turn)


async def test_a_message_to_a_task_that_cannot_be_steered_is_refused_and_not_dropped(
    bridge: StartBridge,
) -> None:
    go = asyncio.Event()
    transport = ScriptedTransport(go, Completed("x"))
    transport.features = features_of("chat")
    async with bridge(transport) as b, peer(b.url) as client:
        stream = client.send_message(message("hi"))
        task_id = (await anext(stream)).task.id
        with pytest.raises(UnsupportedOperationError, match="still working"):
            await ask(client, "more", task_id=task_id)
        go.set()
        assert [e async for e in stream][-1].status_update.status.state
    assert len(transport.turns) == 1


async def test_an_unknown_task_is_not_found(bridge: StartBridge) -> None:
    async with bridge(ScriptedTransport()) as b, peer(b.url) as client:
        with pytest.raises(TaskNotFoundError):
            await client.get_task(GetTaskRequest(id="nobody"))
        with pytest.raises(TaskNotFoundError):
            await ask(client, "hi", task_id="nobody")


async def test_a_context_id_of_any_length_up_to_the_limit_works(bridge: StartBridge) -> None:
    async with bridge(ScriptedTransport(Completed("x"))) as b, peer(b.url) as client:
        assert (await ask(client, "hi", "c" * 256)).states[-1] == "COMPLETED"
        with pytest.raises(A2AError, match="256"):
            await ask(client, "hi", "c" * 257)


async def test_what_the_store_raises_does_not_leak(
    bridge: StartBridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("password=hunter2")

    async with bridge(ScriptedTransport(Completed("x"))) as b, peer(b.url) as client:
        monkeypatch.setattr("molecule_hermes.storage.sqlite.store.SqliteTaskStore.get", broken)
        with pytest.raises(InternalError, match="reference") as caught:
            await client.get_task(GetTaskRequest(id="x"))
        with pytest.raises(A2AError) as streamed:
            await ask(client, "hi", task_id="x")
    assert "hunter2" not in str(caught.value) + str(streamed.value)


async def test_a_body_over_the_limit_gets_413(bridge: StartBridge) -> None:
    big = json.dumps(rpc("SendMessage", text_message("x" * 5000)))

    async def pieces() -> Any:
        for i in range(0, len(big), 512):
            yield big[i : i + 512].encode()

    async with bridge(ScriptedTransport(), MAX_BODY=2048) as b, httpx.AsyncClient() as http:
        headers = {"Content-Type": "application/json"}
        assert (await http.post(b.url, content=big, headers=headers)).status_code == 413
        assert (await http.post(b.url, content=pieces(), headers=headers)).status_code == 413
        rest = await http.post(b.url + "/message:send", content=big, headers=headers)
        assert rest.status_code == 413


async def test_a_wrong_content_type_gets_the_protocols_error(bridge: StartBridge) -> None:
    body = json.dumps(rpc("SendMessage", text_message()))
    async with bridge(ScriptedTransport()) as b, httpx.AsyncClient() as http:
        headers = {"Content-Type": "text/plain", "A2A-Version": "1.0"}
        over_rpc = await http.post(b.url, content=body, headers=headers)
        over_rest = await http.post(b.url + "/message:send", content=body, headers=headers)
    assert over_rpc.json()["error"]["code"] == -32005
    assert over_rest.status_code == 415


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'"x"', b'{"jsonrpc":"2.0"}', b"\xff\xfe", b"[" * 100_000]
)
async def test_an_invalid_body_gets_an_error_without_a_stack_trace(
    bridge: StartBridge, body: bytes
) -> None:
    async with bridge(ScriptedTransport()) as b, httpx.AsyncClient() as http:
        headers = {"Content-Type": "application/json"}
        for path in ("/", "/message:send"):
            answered = await http.post(b.url + path, content=body, headers=headers)
            assert "Traceback" not in answered.text
            assert answered.status_code in (200, 400, 500)
            assert "error" in answered.text.lower()
        assert (await http.get(b.url + "/livez")).status_code == 200


async def until_ready(http: httpx.AsyncClient, status: int) -> None:
    async def answers() -> bool:
        return (await http.get("/readyz")).status_code == status

    await until(answers)


async def test_probes_name_the_part_that_is_not_ready(bridge: StartBridge) -> None:
    transport = ScriptedTransport()
    transport.failure = Unreachable("Hermes does not answer at x")
    async with bridge(transport) as b, httpx.AsyncClient(base_url=b.url) as http:
        assert (await http.get("/livez")).status_code == 200
        for path in ("/readyz", "/healthz", "/startupz"):
            answered = await http.get(path)
            assert answered.status_code == 503
            assert answered.json()["ready"] is False
            assert answered.json()["parts"]["hermes"]["reason"] == "Hermes does not answer at x"
        transport.failure = None
        await until_ready(http, 200)
        assert (await http.get("/startupz")).status_code == 200
        transport.failure = Unreachable()
        await until_ready(http, 503)
        assert (await http.get("/startupz")).status_code == 200
        b.health.draining = True
        assert "shutting down" in (await http.get("/readyz")).text


async def test_every_call_except_card_and_probes_needs_a_token(bridge: StartBridge) -> None:
    async with bridge(ScriptedTransport(Completed("x")), PEER_TOKENS=TOKENS) as b:
        async with httpx.AsyncClient(base_url=b.url) as http:
            card = (await http.get(CARD)).json()
            assert (await http.get("/readyz")).status_code == 200
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": ALICE}):
                for method, path in (("POST", "/"), ("POST", "/message:send"), ("GET", "/tasks")):
                    refused = await http.request(method, path, headers=headers)
                    assert refused.status_code == 401
                    assert refused.headers["WWW-Authenticate"].startswith("Bearer")
            assert card["securitySchemes"]["bearer"]["httpAuthSecurityScheme"]["scheme"] == "bearer"
            assert card["securityRequirements"]
        async with peer(b.url, token=ALICE) as alice:
            assert (await ask(alice, "hi")).states[-1] == "COMPLETED"


async def test_another_peers_task_is_not_found(bridge: StartBridge) -> None:
    go = asyncio.Event()
    transport = ScriptedTransport(go, Completed("x"))
    async with (
        bridge(transport, PEER_TOKENS=TOKENS) as b,
        peer(b.url, token=ALICE) as alice,
        peer(b.url, token=BOB) as bob,
    ):
        stream = alice.send_message(message("hi", "shared"))
        task_id = (await anext(stream)).task.id
        with pytest.raises(TaskNotFoundError):
            await bob.get_task(GetTaskRequest(id=task_id))
        with pytest.raises(TaskNotFoundError):
            await bob.cancel_task(CancelTaskRequest(id=task_id))
        with pytest.raises(TaskNotFoundError):
            await anext(bob.subscribe(SubscribeToTaskRequest(id=task_id)))
        with pytest.raises(TaskNotFoundError):
            await ask(bob, "hi", task_id=task_id)
        assert (await bob.list_tasks(ListTasksRequest())).total_size == 0
        go.set()
        await ask(bob, "hi", "shared")
        async for _ in stream:
            pass
        assert state(await alice.get_task(GetTaskRequest(id=task_id))) == "COMPLETED"
    mine, his = transport.turns
    assert (mine.peer, his.peer) == ("alice", "bob")
    assert mine.context_id == his.context_id
    assert mine.conversation != his.conversation


async def test_a_foreign_host_name_is_refused_on_an_open_loopback_agent(
    bridge: StartBridge,
) -> None:
    async with bridge(ScriptedTransport()) as b, httpx.AsyncClient(base_url=b.url) as http:
        refused = await http.get(CARD, headers={"Host": "evil.example"})
        assert refused.status_code == 403
        for host in ("localhost:1", "127.0.0.1", "[::1]:8000"):
            assert (await http.get(CARD, headers={"Host": host})).status_code == 200


async def test_beyond_loopback_without_tokens_it_refuses_to_start(bridge: StartBridge) -> None:
    with pytest.raises(StartError, match="ALLOW_ANONYMOUS") as caught:
        async with bridge(ScriptedTransport(), HOST="0.0.0.0"):
            pass
    assert "PEER_TOKENS" in str(caught.value)
    async with bridge(ScriptedTransport(), HOST="0.0.0.0", ALLOW_ANONYMOUS="true") as b:
        assert b.url


async def test_a_port_conflict_names_the_port_and_its_setting(bridge: StartBridge) -> None:
    async with bridge(ScriptedTransport()) as b:
        port = b.local_url.rsplit(":", 1)[1]
        with pytest.raises(StartError, match=rf"port {port} .*MOLECULE_HERMES_PORT"):
            async with bridge(ScriptedTransport(), PORT=port):
                pass


async def test_updates_arrive_while_the_turn_runs(bridge: StartBridge) -> None:
    transport = ScriptedTransport(
        TextDelta("a"), 0.2, TextDelta("b"), 0.2, TextDelta("c"), Completed("abc")
    )
    arrivals = []
    async with bridge(transport) as b, peer(b.url) as client:
        async for event in client.send_message(message("hi")):
            if event.HasField("artifact_update"):
                arrivals.append(time.monotonic())
    assert len(arrivals) >= 3
    assert arrivals[2] - arrivals[0] > 0.2


async def test_many_small_pieces_become_few_updates(bridge: StartBridge) -> None:
    pieces = [TextDelta(f"{i} ") for i in range(2000)]
    whole = "".join(p.text for p in pieces)
    async with bridge(ScriptedTransport(*pieces, Completed(whole))) as b, peer(b.url) as client:
        turn = await ask(client, "hi")
    assert turn.text == whole
    assert turn.updates < 100


async def test_replies_reach_the_right_peer_under_load(
    bridge: StartBridge, hermes: FakeHermes
) -> None:
    async def echo(h: FakeHermes, request: Any, body: dict[str, Any]) -> Any:
        await asyncio.sleep(0.01)
        said = body["messages"][-1]["content"]
        return await streaming(*answer("you said ", said))(h, request, body)

    hermes.replies = [echo]
    async with bridge(hermes, MAX_RUNNING=8, MAX_WAITING=1000) as b, peer(b.url) as client:
        turns = await asyncio.gather(*(ask(client, f"m{i}", f"c{i % 30}") for i in range(90)))
    assert [t.text for t in turns] == [f"you said m{i}" for i in range(90)]
    assert hermes.most_running <= 8


async def test_an_incomplete_request_does_not_start_a_turn(bridge: StartBridge) -> None:
    transport = ScriptedTransport(Completed("never"))
    body = json.dumps(rpc("SendMessage", text_message())).encode()
    async with bridge(transport) as b, httpx.AsyncClient(base_url=b.url) as http:
        url = httpx.URL(b.url)
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(
            b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"A2A-Version: 1.0\r\nContent-Length: 9999\r\n\r\n" + body
        )
        await writer.drain()
        writer.write_eof()
        assert await reader.read() == b""
        listed = await http.get("/tasks", headers={"A2A-Version": "1.0"})
        assert listed.json()["tasks"] == []
        writer.close()
    assert transport.turns == []


@pytest.mark.parametrize("path", ["/", "/message:send"])
@pytest.mark.parametrize(
    "body",
    [
        b'{"jsonrpc": "2.0", "id": "\\ud800", "method": "GetTask", "params": {}}',
        b'{"message": {"messageId": "\xff"}}',
        b"[" * 100_000,
        b"9" * 5000,
        b"{",
        '{"message": {}}'.encode("utf-16"),
    ],
    ids=["half a character", "not UTF-8", "deep", "digits", "junk", "UTF-16"],
)
@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_a_body_that_cannot_be_read_is_the_peers_mistake(
    bridge: StartBridge, path: str, body: bytes, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with bridge(ScriptedTransport()) as b, httpx.AsyncClient(base_url=b.url) as http:
        headers = {"Content-Type": "application/json", "A2A-Version": version}
        answered = await http.post(path, content=body, headers=headers)
    error = answered.json()["error"]
    assert (answered.status_code, error["code"]) in [(200, -32700), (400, 400)]
    assert error["message"].startswith("the body cannot be parsed as JSON")
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    ("pieces", "ended"),
    [
        (answer("a \ud83d", "\ude00"), "COMPLETED"),
        ([tool("running", "t\ud800", label="l\ud800"), *answer("ok")], "COMPLETED"),
        ([chunk("ok", "stop", usage={"total_tokens": 10**400}), DONE], "COMPLETED"),
        (upstream_error("HTTP 400: bad \ud800"), "FAILED"),
    ],
    ids=["text", "tool", "usage", "error"],
)
async def test_whatever_hermes_says_the_task_ends_as_it_should(
    bridge: StartBridge, hermes: FakeHermes, pieces: list[bytes], ended: str
) -> None:
    hermes.replies = [streaming(*pieces)]
    async with bridge(hermes) as b, peer(b.url) as client:
        turn = await ask(client, "hi")
    assert turn.states[-1] == ended


@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_line_separators_of_every_kind_reach_the_peer(
    bridge: StartBridge, hermes: FakeHermes, binding: str, version: str
) -> None:
    text = "a\x85b\u2028c\u2029d\x0b\x0c\x1c\r\ne"
    hermes.replies = [streaming(*answer(text))]
    async with bridge(hermes) as b, peer(b.url, binding=binding, version=version) as client:
        assert (await ask(client, text)).text == text


async def test_endless_headers_are_refused(bridge: StartBridge) -> None:
    async with bridge(ScriptedTransport()) as b, httpx.AsyncClient() as http:
        url = httpx.URL(b.url)
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 2**20)
        answered = await asyncio.wait_for(reader.readline(), 10)
        assert answered.startswith(b"HTTP/1.1 400")
        writer.close()
        assert (await http.get(b.url + "/livez")).status_code == 200
