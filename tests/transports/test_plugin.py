"""The plugin transport and its reply server, against a stand-in for the plugin."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from aiohttp import web

from molecule_hermes.errors import (
    AuthFailure,
    BadRequest,
    Draining,
    StartError,
    TurnFailure,
    Unreachable,
)
from molecule_hermes.transports.base import QuestionGoneError
from molecule_hermes.transports.plugin import client as plugin_client
from molecule_hermes.transports.plugin.callback_server import ReplyServer
from molecule_hermes.transports.plugin.client import CallbackRefused
from molecule_hermes.transports.plugin.replies import Replies
from molecule_hermes.transports.plugin.transport import PluginTransport
from molecule_hermes.turns.model import (
    Attachment,
    Canceled,
    Completed,
    Failed,
    Notice,
    Question,
    TextDelta,
    Turn,
    TurnEvent,
)
from molecule_hermes.wire import SECRET_HEADER, Inbound, Steered
from tests.support.serving import TLS, free_port, serve
from tests.support.waiting import until

SECRET = "shared-secret-0123456789"

Script = Callable[["FakePlugin", dict[str, Any]], Awaitable[None]]


class FakePlugin:
    """Takes messages and calls back as a script says."""

    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []
        self.canceled: list[str] = []
        self.answers: list[dict[str, Any]] = []
        self.answer_status = 200
        self.steers: list[dict[str, Any]] = []
        self.steered: tuple[int, Any] = (200, {"ok": True, "accepted": True})
        self.statuses: list[int] = []
        self.instance = "one"
        self.ready = True
        self.script: Script = answers("pong")
        self.before_202 = False
        self.hang = False
        self.knows_cancel = True
        self.knows_check = True
        self.knows_ready = True
        self.sick = 0
        """Health checks that fail after the first message, as do all before it."""
        self.accepts_with = 202
        self.refuses_callback = False
        # The bridge drops connections that come all at once. A plugin needs few.
        few = httpx.Limits(max_connections=8)
        self.http = httpx.AsyncClient(timeout=60, verify=TLS, limits=few)
        self.responses: list[dict[str, Any]] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.url = ""

    async def health(self, request: web.Request) -> web.Response:
        if self.sick:
            self.sick -= bool(self.received)
            raise web.HTTPInternalServerError
        if not self.knows_ready:
            return web.json_response({"ok": True})
        return web.json_response(
            {"ok": True, "ready": self.ready, "active": 0, "instance": self.instance}
        )

    async def inbound(self, request: web.Request) -> web.Response:
        if request.headers.get(SECRET_HEADER) != SECRET:
            return web.json_response({"ok": False}, status=401)
        body = await request.json()
        known = any(b["message_id"] == body["message_id"] for b in self.received)
        self.received.append(body)
        if self.statuses and (status := self.statuses.pop(0)) != 202:
            self.received.pop()
            return web.json_response({"ok": False, "error": "no"}, status=status)
        if not known:
            task = asyncio.create_task(self.script(self, body))  # type: ignore[arg-type]
            self.tasks.add(task)
            if self.before_202:
                await task
            if self.hang:
                await asyncio.Event().wait()
        extra = {"duplicate": True} if known else {}
        return web.json_response(
            {"ok": True, "instance": self.instance, **extra}, status=self.accepts_with
        )

    async def cancel(self, request: web.Request) -> web.Response:
        if request.headers.get(SECRET_HEADER) != SECRET:
            return web.json_response({"ok": False}, status=401)
        message_id = (await request.json())["message_id"]
        self.canceled.append(message_id)
        body = next((b for b in self.received if b["message_id"] == message_id), None)
        if body is None or not self.knows_cancel:
            return web.json_response({"ok": False}, status=404)
        await self.call(body, "", type="final", status="canceled")
        return web.json_response({"ok": True})

    async def check(self, request: web.Request) -> web.Response:
        if request.headers.get(SECRET_HEADER) != SECRET:
            return web.json_response({"ok": False}, status=401)
        if not self.knows_check:
            raise web.HTTPNotFound
        refused = {"ok": False, "kind": "callback_refused"}
        return web.json_response(refused, status=403) if self.refuses_callback else web.Response()

    async def steer(self, request: web.Request) -> web.Response:
        self.steers.append(await request.json())
        status, body = self.steered
        return web.json_response(body, status=status)

    async def answer(self, request: web.Request) -> web.Response:
        self.answers.append(await request.json())
        return web.json_response({"ok": self.answer_status == 200}, status=self.answer_status)

    async def call(self, body: dict[str, Any], content: str, **metadata: Any) -> dict[str, Any]:
        reply = {
            "chat_id": body["chat_id"],
            "content": content,
            "reply_to": body["message_id"],
            "metadata": metadata,
        }
        answered = await self.http.post(
            body["callback_url"], json=reply, headers={SECRET_HEADER: SECRET}
        )
        self.responses.append(answered.json())
        return self.responses[-1]


def answers(*texts: str) -> Script:
    async def script(plugin: FakePlugin, body: dict[str, Any]) -> None:
        for seq, text in enumerate(texts):
            await plugin.call(body, text, type="delta", seq=seq)
        whole = "".join(texts)
        await plugin.call(body, whole, type="final", status="completed", seq=len(texts))

    return script


async def nothing(plugin: FakePlugin, body: dict[str, Any]) -> None:
    """A callback that is lost."""


@asynccontextmanager
async def serving(plugin: FakePlugin, port: int = 0) -> AsyncIterator[FakePlugin]:
    app = web.Application(client_max_size=2**26)
    app.router.add_get("/a2a/health", plugin.health)
    app.router.add_post("/a2a/inbound", plugin.inbound)
    app.router.add_post("/a2a/cancel", plugin.cancel)
    app.router.add_post("/a2a/answer", plugin.answer)
    app.router.add_post("/a2a/steer", plugin.steer)
    app.router.add_post("/a2a/check", plugin.check)
    async with serve(app, port) as url:
        plugin.url = url
        yield plugin


@pytest.fixture
async def plugin() -> AsyncIterator[FakePlugin]:
    plugin = FakePlugin()
    async with serving(plugin):
        yield plugin
    for task in plugin.tasks:
        task.cancel()
    await asyncio.gather(*plugin.tasks, return_exceptions=True)
    await plugin.http.aclose()


@pytest.fixture
async def transport(plugin: FakePlugin) -> AsyncIterator[PluginTransport]:
    async with PluginTransport(plugin.url, secret=SECRET, watch_every=0.05) as transport:
        yield transport


def turn(name: str = "m-1", text: str = "ping") -> Turn:
    return Turn(name, "alice", "ctx", f"task-{name}", text, a2a_message_id=f"peer's {name}")


async def run(transport: PluginTransport, turn_: Turn | None = None) -> list[TurnEvent]:
    async with asyncio.timeout(20):
        return [event async for event in transport.run(turn_ or turn())]


def failure(events: list[TurnEvent]) -> str:
    assert isinstance(events[-1], Failed), events
    return events[-1].failure.kind


async def test_a_turn_is_sent_and_called_back(
    plugin: FakePlugin, transport: PluginTransport
) -> None:
    plugin.script = answers("po", "ng")
    assert await run(transport) == [TextDelta("po"), TextDelta("ng"), Completed("pong")]
    (body,) = plugin.received
    assert body["chat_id"] == turn().conversation
    assert (body["peer_id"], body["content"]) == ("alice", "ping")
    assert body["metadata"] == {
        "a2a_message_id": "peer's m-1",
        "a2a_task_id": "task-m-1",
        "a2a_context_id": "ctx",
    }
    assert plugin.canceled == []


async def test_the_model_and_the_form_of_the_answer_are_sent_with_the_message(
    transport: PluginTransport, plugin: FakePlugin
) -> None:
    form = {"type": "json_object"}
    await run(transport, replace(turn("m-1"), model="large", response_format=form))
    await run(transport, turn("m-2"))
    sent = [(body.get("model"), body.get("response_format")) for body in plugin.received]
    assert sent == [("large", form), (None, None)]


async def test_a_system_prompt_is_sent_with_the_message(
    plugin: FakePlugin, transport: PluginTransport
) -> None:
    await run(transport, replace(turn("m-1"), system_prompt="Be brief."))
    await run(transport, turn("m-2"))
    assert [body.get("system_prompt") for body in plugin.received] == ["Be brief.", None]


async def test_the_plugin_is_told_what_the_peer_asked_for(
    plugin: FakePlugin, transport: PluginTransport
) -> None:
    await run(transport, replace(turn("m-1"), extensions=frozenset({"tool_detail", "reasoning"})))
    await run(transport, turn("m-2"))
    always = ["subagent", "usage"]
    wanted = [body["wants"] for body in plugin.received]
    assert wanted == [[*always, "reasoning", "tool_detail"], always]


async def test_files_are_sent_with_the_message(
    plugin: FakePlugin, transport: PluginTransport
) -> None:
    files = (Attachment("a.bin", "application/pdf", bytes(2**23)), Attachment("b", "a/b", b"x"))
    sent = replace(turn(), attachments=files)
    async with asyncio.timeout(20):
        assert [event async for event in transport.run(sent)][-1] == Completed("pong")
    received = Inbound.parse(plugin.received[0]).attachments
    assert [(f.name, f.media_type, f.data) for f in received] == [
        (f.name, f.media_type, f.data) for f in files
    ]


async def test_a_callback_may_come_before_the_post_is_answered(
    plugin: FakePlugin, transport: PluginTransport
) -> None:
    plugin.before_202 = True
    assert (await run(transport))[-1] == Completed("pong")


async def test_repeated_foreign_and_late_callbacks_do_no_harm(
    plugin: FakePlugin, transport: PluginTransport
) -> None:
    async def script(plugin: FakePlugin, body: dict[str, Any]) -> None:
        await plugin.call(body | {"message_id": "foreign"}, "not yours", type="final")
        await plugin.call(body, "a", type="delta", seq=0)
        await plugin.call(body, "b", type="delta", seq=1)
        await plugin.call(body, "a", type="delta", seq=0)
        await plugin.call(body, "ab", type="final", seq=2)
        await plugin.call(body, "ab", type="final", seq=2)

    plugin.script = script
    assert await run(transport) == [TextDelta("a"), TextDelta("b"), Completed("ab")]
    await asyncio.gather(*plugin.tasks)
    assert plugin.responses[0] == {"ok": True, "stale": True, "unknown": ["foreign"]}
    assert plugin.responses[3] == {"ok": True, "duplicate": True}
    assert plugin.responses[5] == {"ok": True, "stale": True, "unknown": []}


async def test_a_lost_callback_does_not_delay_the_end(
    plugin: FakePlugin, transport: PluginTransport
) -> None:
    async def script(plugin: FakePlugin, body: dict[str, Any]) -> None:
        await plugin.call(body, "a", type="delta", seq=0)
        await plugin.call(body, "abc", type="final", seq=2)

    plugin.script = script
    assert await run(transport) == [TextDelta("a"), Completed("abc")]


async def test_a_busy_plugin_is_retried(plugin: FakePlugin, transport: PluginTransport) -> None:
    plugin.statuses = [503, 429, 202]
    events = await run(transport)
    assert [type(e) for e in events[:2]] == [Notice, Notice]
    assert events[-1] == Completed("pong")


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "bad_request"), (401, "auth"), (413, "too_large"), (500, "internal")],
)
async def test_a_refusal_names_its_reason(
    plugin: FakePlugin, transport: PluginTransport, status: int, kind: str
) -> None:
    plugin.statuses = [status]
    assert failure(await run(transport)) == kind


async def test_a_message_without_an_answer_is_sent_again_and_runs_once(
    plugin: FakePlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(plugin: FakePlugin, body: dict[str, Any]) -> None:
        await until(lambda: len(plugin.received) > 1)
        await answers("once")(plugin, body)

    plugin.script = slow
    plugin.hang = True
    monkeypatch.setattr(plugin_client, "_TIMEOUT", 0.3)
    async with PluginTransport(plugin.url, secret=SECRET) as transport:
        assert (await run(transport))[-1] == Completed("once")
    assert len(plugin.received) >= 2
    assert len({b["message_id"] for b in plugin.received}) == 1
    assert len(plugin.tasks) == 1


async def test_a_hermes_that_does_not_run_is_unreachable_at_the_check_and_in_a_turn() -> None:
    async with PluginTransport(f"http://127.0.0.1:{free_port()}", secret=SECRET) as transport:
        with pytest.raises(Unreachable, match="plugin"):
            await transport.check()
        assert failure(await run(transport)) == "unreachable"


async def test_a_turn_waits_for_a_hermes_that_is_being_restarted(plugin: FakePlugin) -> None:
    port = free_port()
    patient = PluginTransport(f"http://127.0.0.1:{port}", secret=SECRET, patient=True)
    async with asyncio.timeout(20), patient as transport, aclosing(transport.run(turn())) as events:
        assert await anext(events) == Notice(
            "Hermes is not running; trying again in 0.5 s", kind="retrying"
        )
        async with serving(plugin, port):
            assert [event async for event in events][-1] == Completed("pong")


@asynccontextmanager
async def impatient(plugin: FakePlugin) -> AsyncIterator[PluginTransport]:
    """Gives up a Hermes that answers no health check for half a second."""
    plugin.sick = 1_000_000
    async with PluginTransport(
        plugin.url, secret=SECRET, watch_every=0.01, silent_for=0.5
    ) as transport:
        yield transport


async def test_the_turns_of_a_hermes_without_any_sign_of_life_are_interrupted(
    plugin: FakePlugin,
) -> None:
    plugin.script = nothing
    async with impatient(plugin) as transport:
        assert failure(await run(transport)) == "interrupted"


async def test_a_hermes_that_is_too_busy_to_answer_but_still_calls_back_is_alive(
    plugin: FakePlugin,
) -> None:
    async def script(plugin: FakePlugin, body: dict[str, Any]) -> None:
        for seq in range(12):
            await plugin.call(body, "x", type="delta", seq=seq)
            await asyncio.sleep(0.1)
        await plugin.call(body, "x" * 12, type="final", status="completed", seq=12)

    plugin.script = script
    async with impatient(plugin) as transport:
        assert (await run(transport))[-1] == Completed("x" * 12)


async def test_a_slow_health_check_after_a_restart_does_not_interrupt_the_next_turn(
    plugin: FakePlugin,
) -> None:
    """Refused connections count against the Hermes that died, not against its successor."""
    go = asyncio.Event()

    async def script(plugin: FakePlugin, body: dict[str, Any]) -> None:
        await go.wait()
        await answers("pong")(plugin, body)

    plugin.script, plugin.sick = script, 3
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    patient = PluginTransport(url, secret=SECRET, patient=True, watch_every=0.05)
    async with asyncio.timeout(20), patient as transport, aclosing(transport.run(turn())) as events:
        for _ in range(2):
            assert isinstance(await anext(events), Notice)
        async with serving(plugin, port):
            await until(lambda: not plugin.sick)
            go.set()
            assert [event async for event in events][-1] == Completed("pong")


async def test_a_message_that_may_have_reached_a_dead_hermes_is_not_sent_to_the_next(
    plugin: FakePlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin_client, "_TIMEOUT", 0.3)
    port = free_port()
    patient = PluginTransport(f"http://127.0.0.1:{port}", secret=SECRET, patient=True)
    plugin.hang, plugin.script = True, nothing
    async with patient as transport:
        async with serving(plugin, port):
            running = asyncio.create_task(run(transport))
            await until(lambda: plugin.received)
        assert failure(await running) == "interrupted"


async def test_the_check_distinguishes_ready_starting_and_a_wrong_secret(
    plugin: FakePlugin, transport: PluginTransport
) -> None:
    await transport.check()
    plugin.ready = False
    with pytest.raises(Draining):
        await transport.check()
    async with PluginTransport(plugin.url, secret="wrong") as other:
        with pytest.raises(AuthFailure, match="secret"):
            await other.check()
        assert failure(await run(other)) == "auth"


async def test_the_check_reports_a_callback_address_that_the_plugin_refuses(
    plugin: FakePlugin, transport: PluginTransport
) -> None:
    plugin.refuses_callback = True
    with pytest.raises(CallbackRefused) as refused:
        await transport.check()
    assert "MOLECULE_A2A_PLATFORM_CALLBACKS" in refused.value.hint


async def test_an_older_plugin_that_reports_only_ok_is_ready_and_its_200_accepts_a_message(
    plugin: FakePlugin, transport: PluginTransport
) -> None:
    plugin.knows_check = plugin.knows_ready = False
    plugin.accepts_with, plugin.instance = 200, ""
    await transport.check()
    assert (await run(transport))[-1] == Completed("pong")
    assert len(plugin.received) == 1


async def test_an_older_plugin_without_the_check_is_ready(
    plugin: FakePlugin, transport: PluginTransport
) -> None:
    plugin.knows_check = False
    await transport.check()


async def test_the_check_reports_a_missing_secret(plugin: FakePlugin) -> None:
    async with PluginTransport(plugin.url) as transport:
        with pytest.raises(AuthFailure):
            await transport.check()


@pytest.mark.parametrize("instance", ["one", ""])
async def test_a_turn_is_interrupted_when_hermes_dies(instance: str) -> None:
    """Also one whose plugin is older and does not name its instance."""
    plugin = FakePlugin()
    plugin.instance = instance
    plugin.script = nothing
    port = free_port()
    async with PluginTransport(
        f"http://127.0.0.1:{port}", secret=SECRET, watch_every=0.05
    ) as transport:
        async with serving(plugin, port):
            running = asyncio.create_task(run(transport))
            await until(lambda: transport.accepted)
        assert failure(await running) == "interrupted"
    await plugin.http.aclose()


async def test_a_turn_is_interrupted_when_hermes_was_restarted(
    plugin: FakePlugin, transport: PluginTransport
) -> None:
    plugin.script = nothing
    running = asyncio.create_task(run(transport))
    await until(lambda: transport.accepted)
    plugin.instance = "two"
    assert failure(await running) == "interrupted"


async def test_cancel_waits_for_hermes_to_stop(
    plugin: FakePlugin, transport: PluginTransport
) -> None:
    plugin.script = nothing
    running = asyncio.create_task(run(transport))
    await until(lambda: transport.accepted)
    await transport.cancel(turn())
    assert await running == [Canceled()]
    assert plugin.canceled == ["m-1"]


async def test_cancel_ends_a_turn_that_hermes_does_not_know(
    plugin: FakePlugin, transport: PluginTransport
) -> None:
    plugin.script = nothing
    plugin.knows_cancel = False
    running = asyncio.create_task(run(transport))
    await until(lambda: transport.accepted)
    await transport.cancel(turn())
    assert await running == [Canceled()]


async def test_cancel_ends_a_turn_that_is_still_being_sent(
    plugin: FakePlugin, transport: PluginTransport
) -> None:
    plugin.statuses = [503] * 50
    running = asyncio.create_task(run(transport))
    await until(lambda: transport.pending)
    await transport.cancel(turn())
    assert (await running)[-1] == Canceled()


async def test_closing_a_turn_early_cancels_it_in_hermes(
    plugin: FakePlugin, transport: PluginTransport
) -> None:
    async def script(plugin: FakePlugin, body: dict[str, Any]) -> None:
        await plugin.call(body, "a", type="delta", seq=0)

    plugin.script = script
    async with aclosing(transport.run(turn())) as events:
        assert await anext(events) == TextDelta("a")
    assert plugin.canceled == ["m-1"]
    assert transport.pending == transport.accepted == 0


async def test_a_turn_that_is_canceled_twice_leaves_nothing_behind(
    plugin: FakePlugin, transport: PluginTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopping = asyncio.Event()

    async def never(turn: Turn) -> bool:
        stopping.set()
        await asyncio.Event().wait()
        return True

    plugin.script = nothing
    monkeypatch.setattr(transport, "_post_cancel", never)
    running = asyncio.create_task(run(transport))
    async with asyncio.timeout(20):
        await until(lambda: transport.accepted)
        running.cancel()
        await stopping.wait()
        running.cancel()
        await asyncio.wait({running})
    assert transport.pending == transport.accepted == 0


async def test_a_context_may_have_any_name(plugin: FakePlugin, transport: PluginTransport) -> None:
    await run(transport, Turn("m-1", "alice", "a\tb\n" + "c" * 300, "task", "ping"))
    (body,) = plugin.received
    assert Inbound.parse(body).metadata.a2a_context_id.startswith("a b c")


async def test_an_answer_reaches_the_plugin_and_the_turn_goes_on(
    plugin: FakePlugin, transport: PluginTransport
) -> None:
    async def script(plugin: FakePlugin, body: dict[str, Any]) -> None:
        await plugin.call(body, "rm x?", type="approval", question_id="q", choices=["once"], seq=0)
        await until(lambda: plugin.answers)
        await plugin.call(body, "gone", type="notice", withdraws="q", seq=1)
        await plugin.call(body, "went on", type="final", seq=2)

    plugin.script = script
    events = []
    async with asyncio.timeout(20):
        async for event in transport.run(asked := turn()):
            events.append(event)
            if isinstance(event, Question):
                await transport.answer(asked, event.question_id, "once")
    assert events == [
        Question("q", "approval", "rm x?", ("once",)),
        Notice("gone", withdraws="q"),
        Completed("went on"),
    ]
    (answer,) = plugin.answers
    assert answer.pop("bridge") == plugin.received[0]["bridge"] != ""
    assert answer == {"message_id": asked.message_id, "question_id": "q", "answer": "once"}


@pytest.mark.parametrize(("status", "error"), [(404, QuestionGoneError), (400, BadRequest)])
async def test_an_answer_that_the_plugin_refuses_raises(
    plugin: FakePlugin, transport: PluginTransport, status: int, error: type[Exception]
) -> None:
    plugin.answer_status = status
    with pytest.raises(error):
        await transport.answer(turn(), "q", "once")


async def test_closing_the_transport_ends_its_turns_as_draining(plugin: FakePlugin) -> None:
    plugin.script = nothing
    transport = PluginTransport(plugin.url, secret=SECRET)
    async with transport:
        running = asyncio.create_task(run(transport))
        await until(lambda: transport.accepted)
    assert failure(await running) == "draining"


async def test_a_hundred_concurrent_turns_get_their_own_answers(
    plugin: FakePlugin, transport: PluginTransport
) -> None:
    async def script(plugin: FakePlugin, body: dict[str, Any]) -> None:
        await answers("you said ", body["content"])(plugin, body)

    plugin.script = script
    turns = [turn(f"m{i}", f"text {i}") for i in range(100)]
    ended = await asyncio.gather(*(run(transport, t) for t in turns))
    assert [events[-1] for events in ended] == [Completed(f"you said text {i}") for i in range(100)]


async def test_no_repr_shows_the_secret(transport: PluginTransport) -> None:
    assert SECRET not in repr(transport)


@pytest.fixture
async def server() -> AsyncIterator[tuple[ReplyServer, Replies]]:
    replies = Replies()
    async with ReplyServer(replies, "127.0.0.1", 0, SECRET, max_body=2048) as server:
        yield server, replies


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b"\xff", 400),
        (b'{"content": "x"}', 400),
        (b'{"reply_to": "m"}', 400),
        (b'{"reply_to": "m", "content": 5}', 400),
        (b'{"batch": []}', 400),
        (b'{"batch": {}}', 400),
        (b'{"reply_to": "m", "content": "x", "metadata": {"type": "dance"}}', 400),
        (b'{"reply_to": "m", "content": "' + b"x" * 4096 + b'"}', 413),
        (b'{"reply_to": "nobody", "content": "x"}', 200),
    ],
)
async def test_the_callback_server_refuses_malformed_bodies(
    server: tuple[ReplyServer, Replies], body: bytes, status: int
) -> None:
    async with httpx.AsyncClient() as http:
        url, headers = server[0].url, {SECRET_HEADER: SECRET}
        answered = await http.post(url, content=body, headers=headers)
        assert answered.status_code == status
        assert answered.json()["ok"] is (status == 200)


async def _post_batch(server: ReplyServer, *callbacks: dict[str, Any]) -> httpx.Response:
    async with httpx.AsyncClient() as http:
        headers = {SECRET_HEADER: SECRET}
        return await http.post(server.url, json={"batch": callbacks}, headers=headers)


def _callback(content: str, kind: str, seq: int, to: str = "m") -> dict[str, Any]:
    return {"reply_to": to, "content": content, "metadata": {"type": kind, "seq": seq}}


async def test_a_batch_of_callbacks_is_taken_in_order(
    server: tuple[ReplyServer, Replies],
) -> None:
    listening, replies = server
    batch = [
        _callback("a", "delta", 0),
        _callback("not ours", "delta", 0, "nobody"),
        _callback("b", "delta", 1),
        _callback("ab", "final", 2),
    ]
    with replies.register("m") as reply:
        answered = await _post_batch(listening, *batch)
        assert answered.json() == {"ok": True, "unknown": ["nobody"]}
        assert [await reply.next() for _ in range(3)] == [
            TextDelta("a"),
            TextDelta("b"),
            Completed("ab"),
        ]
    assert (await _post_batch(listening, *batch)).json() == {
        "ok": True,
        "stale": True,
        "unknown": ["nobody"],
    }


@pytest.mark.parametrize("bad", [{}, {"reply_to": "m"}, [], "x", None, {"batch": []}])
async def test_a_batch_with_a_malformed_callback_is_refused_as_a_whole(
    server: tuple[ReplyServer, Replies], bad: Any
) -> None:
    listening, replies = server
    with replies.register("m") as reply:
        answered = await _post_batch(listening, _callback("ab", "final", 0), bad)
        assert answered.status_code == 400
        assert not reply.ended


@pytest.mark.parametrize("headers", [{}, {SECRET_HEADER: "wrong"}, {SECRET_HEADER: "é".encode()}])
async def test_a_wrong_secret_changes_nothing(
    server: tuple[ReplyServer, Replies], headers: dict[str, str]
) -> None:
    listening, replies = server
    with replies.register("m") as reply:
        async with httpx.AsyncClient() as http:
            body = {"reply_to": "m", "content": "forged"}
            answered = await http.post(listening.url, json=body, headers=headers)
        assert answered.status_code == 401
        assert not reply.ended


async def test_a_callback_port_in_use_is_reported_with_its_setting() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=rf"port {port}.*MOLECULE_A2A_CALLBACK_PORT"):
            async with ReplyServer(Replies(), "127.0.0.1", port):
                pass


async def until_steered(plugin: FakePlugin, body: dict[str, Any]) -> None:
    """Streams, and ends when it was steered."""
    await plugin.call(body, "working", type="delta", seq=0)
    await until(lambda: plugin.steers)
    await plugin.call(body, "first", type="notice", interim=True, seq=1)
    await plugin.call(body, "late", type="notice", unheard=True, seq=2)
    await plugin.call(body, "second", type="final", seq=3)


async def test_a_text_reaches_the_plugin_and_the_turn_goes_on(
    plugin: FakePlugin, transport: PluginTransport
) -> None:
    plugin.script = until_steered
    events = []
    async with asyncio.timeout(20):
        async for event in transport.run(turn()):
            events.append(event)
            if isinstance(event, TextDelta):
                assert await transport.steer(turn(), "use blue") == Steered(True)
    assert events[1:] == [
        Notice("first", kind="interim"),
        Notice("late", kind="unheard"),
        Completed("second"),
    ]
    (steer,) = plugin.steers
    assert steer.pop("bridge") == plugin.received[0]["bridge"] != ""
    assert steer == {"message_id": "m-1", "text": "use blue"}


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ((200, {"ok": True, "accepted": False, "reason": "not now"}), "not now"),
        ((200, {"ok": True}), "does not take"),
        ((200, ["junk"]), "does not take"),
        ((404, {"ok": False, "kind": "not_found"}), "has just ended"),
        ((404, {"ok": False, "kind": "bad_request"}), "too old"),
        ((404, "Not Found"), "too old"),
    ],
)
async def test_a_text_that_the_plugin_does_not_take_has_a_reason(
    plugin: FakePlugin, transport: PluginTransport, response: tuple[int, Any], reason: str
) -> None:
    plugin.script, plugin.steered = until_steered, response
    running = asyncio.create_task(run(transport))
    outcome = await until_accepted(transport, "use blue")
    assert not outcome.accepted
    assert reason in outcome.reason
    assert (await running)[-1] == Completed("second")


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        ((401, {}), "auth"),
        ((500, {}), "internal"),
        ((200, {"accepted": "perhaps"}), "internal"),
    ],
)
async def test_a_text_that_fails_at_the_plugin_fails_alone(
    plugin: FakePlugin, transport: PluginTransport, response: tuple[int, Any], kind: str
) -> None:
    plugin.script, plugin.steered = until_steered, response
    running = asyncio.create_task(run(transport))
    with pytest.raises(TurnFailure) as raised:
        await until_accepted(transport, "use blue")
    assert raised.value.kind == kind
    assert (await running)[-1] == Completed("second")


async def until_accepted(transport: PluginTransport, text: str) -> Steered:
    """Steers the turn at once; the transport itself waits for the plugin."""
    await until(lambda: transport.pending)
    return await transport.steer(turn(), text)


async def test_a_text_for_a_turn_that_does_not_run_is_refused(transport: PluginTransport) -> None:
    outcome = await transport.steer(turn(), "use blue")
    assert not outcome.accepted
    assert "does not have the task" in outcome.reason


@pytest.mark.parametrize("body", ["[" * 100_000, '{"ok": true, "x": "' + "x" * 2**21 + '"}', "[1]"])
async def test_whatever_answers_at_the_plugins_port_is_read_within_bounds(body: str) -> None:
    """A tool may have taken the port while Hermes was away."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=body, content_type="application/json")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with serve(app) as url, PluginTransport(url, secret=SECRET) as transport:
        with pytest.raises(Unreachable):
            await transport.check()
