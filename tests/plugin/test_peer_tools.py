"""The tools with which the agent asks other agents."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from molecule_hermes.plugin.files import FileRefusedError
from molecule_hermes.plugin.journal import Journal
from molecule_hermes.plugin.tools.peers import TOOLSET, PeerTools
from molecule_hermes.plugin.turn import Turn
from molecule_hermes.wire import (
    OUTBOUND,
    OUTBOUND_PATH,
    SECRET_HEADER,
    Attachment,
    Called,
    Inbound,
    PeerCall,
)
from tests.support.gateway import CallbackServer, callback_server, running_hermes
from tests.support.recorded_model import recorded_model
from tests.support.serving import serve
from tests.support.waiting import until

NAMES = {
    "list_peers",
    "delegate_to_peer",
    "delegate_to_peer_async",
    "check_task_status",
    "answer_task",
    "cancel_task",
}
SECRET = "the-secret-of-the-tests"


@dataclass
class Context:
    """In the place of Hermes's plugin context."""

    tools: dict[str, Callable[..., str]] = field(default_factory=dict)
    schemas: dict[str, dict[str, Any]] = field(default_factory=dict)

    def register_tool(
        self, name: str, toolset: str, schema: dict[str, Any], handler: Any, *, is_async: bool
    ) -> None:
        assert (toolset, schema["name"], is_async) == (TOOLSET, name, False)
        self.tools[name], self.schemas[name] = handler, schema


@dataclass
class Bridge:
    """Takes calls in the place of a bridge."""

    url: str = ""
    status: int = 200
    answer: Any = None
    hang: asyncio.Event | None = None
    calls: list[PeerCall] = field(default_factory=list)
    secrets: list[str | None] = field(default_factory=list)

    async def take(self, request: web.Request) -> web.Response:
        call = PeerCall.parse(await request.read())
        self.calls.append(call)
        self.secrets.append(request.headers.get(SECRET_HEADER))
        if self.hang is not None and call.action != "stop":
            await self.hang.wait()
        body = self.answer or Called({"status": "completed", "to": request.query["to"]}).to_json()
        return web.json_response(body, status=self.status)


@dataclass
class Files:
    kept: list[Attachment] = field(default_factory=list)
    size: int = 3

    def read_for_peer(self, turn: Turn, path: str) -> Attachment:
        if path == "secret":
            raise FileRefusedError("the file secret is not available")
        return Attachment(path, "text/plain", b"x" * self.size)

    def keep(self, turn: Turn, files: Sequence[Attachment]) -> Sequence[Path]:
        self.kept += files
        return [Path("/kept", file.name) for file in files]


@dataclass
class Agent:
    """Calls tools as Hermes does, in a thread."""

    context: Context
    bridge: Bridge
    tools: PeerTools
    turn: Turn
    files: Files
    thread: threading.Thread | None = None

    async def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        results: list[str] = []
        self.thread = threading.Thread(
            target=lambda: results.append(self.context.tools[name](arguments, task_id="t"))
        )
        self.thread.start()
        await until(lambda: bool(results), 30)
        found: dict[str, Any] = json.loads(results[0])
        return found


def turn_of(url: str, wants: tuple[str, ...] = (OUTBOUND,)) -> Turn:
    callback = f"{url}/a2a/reply?to=run"
    inbound = Inbound("chat", "alice", "message", callback, wants=wants)
    return Turn(inbound, Journal("message", "chat", callback))


@asynccontextmanager
async def agent(wants: tuple[str, ...] = (OUTBOUND,)) -> AsyncIterator[Agent]:
    bridge, context, files = Bridge(), Context(), Files()
    app = web.Application(client_max_size=64 * 2**20)
    app.router.add_post(OUTBOUND_PATH, bridge.take)
    async with serve(app) as url:
        turn = turn_of(url, wants)
        about: list[Mapping[str, Any]] = []

        def found(given: Mapping[str, Any]) -> Turn:
            about.append(given)
            return turn

        tools = PeerTools(found)
        tools.register(context)
        tools.open(files, SECRET)
        tools.offer(turn_of(url))
        try:
            yield Agent(context, bridge, tools, turn, files)
        finally:
            if bridge.hang is not None:
                bridge.hang.set()
            await tools.close()


async def test_the_tools_are_there_from_the_first_message_on_whose_bridge_offers_them() -> None:
    context = Context()
    tools = PeerTools(lambda given: None)
    tools.register(context)
    tools.offer(turn_of("http://bridge", wants=("usage",)))
    assert context.tools == {}
    tools.offer(turn_of("http://bridge"))
    tools.offer(turn_of("http://bridge"))
    assert set(context.tools) == NAMES
    required = {name: schema["parameters"]["required"] for name, schema in context.schemas.items()}
    assert required["delegate_to_peer"] == ["peer", "task"]
    assert required["answer_task"] == ["task_id", "answer"]


async def test_no_tool_has_the_name_or_the_toolset_of_one_of_hermess_own() -> None:
    import model_tools  # noqa: F401 - registers Hermes's tools
    from tools.registry import registry
    from toolsets import TOOLSETS

    own = {
        name
        for name in registry.get_all_tool_names()
        if registry.get_toolset_for_tool(name) != TOOLSET
    }
    assert "delegate_task" in own
    assert not own & NAMES
    assert TOOLSET not in TOOLSETS


async def test_a_call_names_the_turn_and_carries_the_secret_to_its_bridge() -> None:
    async with agent() as asking:
        found = await asking.call(
            "delegate_to_peer", peer="bee", task="add", follows="bee:t:s", files=["a.txt"], x="y"
        )
        assert found == {"status": "completed", "to": "run"}
        (call,) = asking.bridge.calls
        assert call == PeerCall(
            "message",
            call.call_id,
            "delegate",
            "bee",
            "add",
            "bee:t:s",
            (Attachment("a.txt", "text/plain", b"xxx"),),
        )
        assert asking.bridge.secrets == [SECRET]
        for name, arguments, action in (
            ("list_peers", {}, "list"),
            ("delegate_to_peer_async", {"peer": "bee", "task": "t"}, "start"),
            ("check_task_status", {"task_id": "i"}, "check"),
            ("answer_task", {"task_id": "i", "answer": "a"}, "answer"),
            ("cancel_task", {"task_id": "i"}, "cancel"),
        ):
            await asking.call(name, **arguments)
            assert asking.bridge.calls[-1].action == action
        assert len({call.call_id for call in asking.bridge.calls}) == 6


async def test_files_that_come_back_are_kept_and_named() -> None:
    async with agent() as asking:
        file = Attachment("back.txt", "text/plain", b"hi")
        asking.bridge.answer = Called({"status": "completed"}, (file,)).to_json()
        found = await asking.call("check_task_status", task_id="i")
        assert found["files"] == ["/kept/back.txt"]
        assert asking.files.kept == [file]


async def test_a_turn_whose_bridge_does_not_offer_it_asks_nobody() -> None:
    async with agent(wants=()) as asking:
        found = await asking.call("list_peers")
        assert "cannot be asked here" in found["error"]
        asking.turn.inbound = replace(asking.turn.inbound, wants=(OUTBOUND,))
        asking.turn.journal.detach()
        assert "cannot be asked here" in (await asking.call("list_peers"))["error"]
        assert asking.bridge.calls == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"peer": "bee"}, "`task` must be text"),
        ({"peer": 7, "task": "x"}, "`peer` must be text"),
        ({"peer": "x" * 300, "task": "x"}, "`peer` must have"),
        ({"peer": "bee", "task": "x" * 100_001}, "`task` is longer than"),
        ({"peer": "bee", "task": "\ud800"}, "not valid Unicode"),
        ({"peer": "bee", "task": "x", "files": {"a": 1}}, "`files` must be a list"),
        ({"peer": "bee", "task": "x", "files": [7]}, "`files` must be a list"),
        ({"peer": "bee", "task": "x", "files": ["a"] * 17}, "`files` has 17 entries"),
        ({"peer": "bee", "task": "x", "files": ["secret"]}, "secret is not available"),
    ],
)
async def test_a_wrong_argument_is_an_error_text(arguments: dict[str, Any], reason: str) -> None:
    async with agent() as asking:
        found = await asking.call("delegate_to_peer", **arguments)
        assert reason in found["error"]
        assert asking.bridge.calls == []


async def test_too_many_bytes_of_files_are_refused() -> None:
    async with agent() as asking:
        asking.files.size = 8 * 2**20
        found = await asking.call("delegate_to_peer", peer="b", task="x", files=["a", "b", "c"])
        assert "20,971,520 bytes together" in found["error"]


@pytest.mark.parametrize(
    ("status", "answer", "reason"),
    [
        (404, {}, "the turn is over"),
        (401, {}, "refused the call (status 401)"),
        (413, {}, "too large together"),
        (302, {}, "status 302"),
        (200, [1], "cannot be read"),
        (200, {"result": 7}, "cannot be read"),
        (200, {"result": {"x": "y" * 500_000}}, "cannot be read"),
    ],
)
async def test_a_bridge_that_refuses_is_an_error_text(
    status: int, answer: Any, reason: str
) -> None:
    async with agent() as asking:
        asking.bridge.status, asking.bridge.answer = status, answer
        assert reason in (await asking.call("list_peers"))["error"]


async def test_a_bridge_that_is_gone_is_an_error_text() -> None:
    async with agent() as asking:
        asking.turn.journal.attach("http://127.0.0.1:9/a2a/reply", -1)
        assert "did not answer" in (await asking.call("list_peers"))["error"]
        await asking.tools.close()
        assert "shutting down" in (await asking.call("list_peers"))["error"]


async def test_an_interrupted_call_is_ended_at_the_bridge() -> None:
    from tools.interrupt import set_interrupt

    async with agent() as asking:
        asking.bridge.hang = asyncio.Event()
        calling = asyncio.create_task(asking.call("delegate_to_peer", peer="bee", task="wait"))
        await until(lambda: asking.bridge.calls)
        assert asking.thread is not None
        set_interrupt(True, asking.thread.ident)
        found = await calling
        set_interrupt(False, asking.thread.ident)
        assert "the turn was canceled" in found["error"]
        await until(lambda: len(asking.bridge.calls) == 2)
        first, stop = asking.bridge.calls
        assert (stop.action, stop.call_id) == ("stop", first.call_id)


@pytest.mark.hermes
async def test_the_model_sees_the_tools_only_where_they_are_offered_and_allowed(
    tmp_path: Path,
) -> None:
    bridge = Bridge()
    app = web.Application()
    app.router.add_post(OUTBOUND_PATH, bridge.take)
    async with recorded_model() as model, callback_server() as callbacks:
        app.router.add_post("/a2a/reply", callbacks.handle)
        async with (
            serve(app) as url,
            running_hermes(tmp_path, over={"model": {"base_url": model.url}}) as hermes,
        ):
            both = CallbackServer(f"{url}/a2a/reply?to=run", taken=callbacks.taken)

            async def said(text: str, **more: Any) -> str:
                message = await hermes.say(both, text, **more)
                callback, final = await callbacks.final(message)
                assert final.status == "completed"
                return callback.content

            await said("hello", chat="first")
            assert not model.tools() & NAMES
            model.requests.clear()
            asked = 'demo:call=delegate_to_peer {"peer": "bee", "task": "add"}'
            assert '"to": "run"' in await said(asked, chat="second", wants=(OUTBOUND,))
            assert model.tools() >= NAMES
            assert bridge.calls[0].peer == "bee"
            refused = await said(asked, chat="third", wants=(OUTBOUND,), toolsets=("terminal",))
            assert "is not allowed for this peer" in refused
            assert "cannot be asked here" in await said(asked, chat="fourth")
            assert len(bridge.calls) == 1
