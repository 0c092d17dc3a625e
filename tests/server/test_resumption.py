"""A bridge goes on with the turns of the bridge before it, with the plugin's real endpoints.

Only the gateway behind the plugin is played: the test decides what the agent does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from a2a.client import Client
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Part,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
)
from aiohttp import web

from molecule_hermes.client.connection import message
from molecule_hermes.config import Settings
from molecule_hermes.plugin.dispatcher import Dispatcher
from molecule_hermes.plugin.endpoints import application
from molecule_hermes.plugin.ledger import Ledger
from molecule_hermes.plugin.outbox import Outbox
from molecule_hermes.plugin.turn import Question
from molecule_hermes.plugin.turn import Turn as PluginTurn
from molecule_hermes.server.bridge import Bridge
from molecule_hermes.transports.plugin.transport import PluginTransport
from molecule_hermes.wire import ATTACH_PATH, SECRET_HEADER, TURNS_PATH, Delta, Tool
from tests.plugin.test_dispatcher import FakeGateway
from tests.support.peers import Turn, ask, failure, peer, reply_text, send, state
from tests.support.serving import free_port
from tests.support.waiting import until

SECRET = "shared-secret-0123456789"


class Plugin:
    """The plugin inside a gateway that does what the test says."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._stack = contextlib.AsyncExitStack()

    async def start(self) -> None:
        self.gateway = FakeGateway()
        ledger = Ledger()
        outbox = await self._stack.enter_async_context(Outbox(ledger.journals, secret=SECRET))
        self.dispatcher = Dispatcher(self.gateway, ledger, outbox)
        self._stack.push_async_callback(self.dispatcher.close)
        app = application(self.dispatcher, secret=SECRET, max_body=10_000_000)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", self.port).start()

    async def stop(self) -> None:
        stack, self._stack = self._stack, contextlib.AsyncExitStack()
        await stack.aclose()

    async def started(self) -> PluginTurn:
        return await asyncio.wait_for(self.gateway.started.get(), 20)

    def say(self, turn: PluginTurn, text: str) -> None:
        self.dispatcher.emit(turn, turn.callback(Delta(), text))

    def ask(self, turn: PluginTurn) -> None:
        shown = ("rm", "dangerous command")
        self.gateway.waiting.append(shown)
        question = Question("q", "s", ("once", "deny"), True, command="rm", shown=shown)
        self.dispatcher.questions.ask(turn, question, "may I?")

    def end(self, turn: PluginTurn, answer: str) -> None:
        turn.answered(answer, written=True)
        self.dispatcher.finish(turn)
        self.gateway.working.discard(turn.chat_id)

    async def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        async with httpx.AsyncClient(headers={SECRET_HEADER: SECRET}) as http:
            return await http.post(self.url + path, json=body)


@pytest.fixture
async def plugin() -> AsyncIterator[Plugin]:
    made = Plugin()
    await made.start()
    yield made
    await made.stop()


Start = Callable[..., contextlib.AbstractAsyncContextManager[tuple[Bridge, Client]]]


@pytest.fixture
def start(settings: Callable[..., Settings], plugin: Plugin) -> Start:
    """Starts a bridge that leaves its turns to the next one."""

    @contextlib.asynccontextmanager
    async def run(
        ready: bool = True, attach_for: float = 30.0, secret: str = SECRET, **variables: Any
    ) -> AsyncIterator[tuple[Bridge, Client]]:
        given = {"DRAIN_TIMEOUT": 0, "KEEP_WORKER": "true", "CHECKPOINT": 0.05} | variables
        transport = PluginTransport(plugin.url, secret=secret, attach_for=attach_for)
        async with (
            asyncio.timeout(60),
            Bridge(settings(**given), transport) as bridge,
            peer(bridge.url) as client,
        ):
            if ready:
                await until(lambda: is_ready(bridge))
            yield bridge, client

    return run


async def is_ready(bridge: Bridge) -> bool:
    return (await bridge.health.ready()).ready


async def begin(client: Client, request: SendMessageRequest) -> Turn:
    """Sends a message and returns at once."""
    request.configuration.return_immediately = True
    turn = Turn()
    async for event in client.send_message(request):
        copy = StreamResponse()
        copy.CopyFrom(event)
        turn.add(copy)
        break
    return turn


async def get(client: Client, turn: Turn) -> Task:
    return await client.get_task(GetTaskRequest(id=turn.task_id))


async def follow(client: Client, task_id: str) -> Turn:
    seen = Turn()
    async for event in client.subscribe(SubscribeToTaskRequest(id=task_id)):
        seen.add(event)
    return seen


async def text_of(client: Client, turn: Turn, text: str) -> None:
    async def arrived() -> bool:
        return reply_text(await get(client, turn)) == text

    await until(arrived)


async def test_a_turn_goes_on_with_everything_once(start: Start, plugin: Plugin) -> None:
    async with start() as (_, client):
        sent = await begin(client, message("go"))
        turn = await plugin.started()
        plugin.say(turn, "one ")
        plugin.dispatcher.emit(turn, turn.callback(Tool("t", "start", "ls")))
        plugin.say(turn, "two ")
        await text_of(client, sent, "one two ")
    plugin.say(turn, "three ")
    async with start() as (_, client):
        following = asyncio.create_task(follow(client, sent.task_id))
        await text_of(client, sent, "one two three ")
        plugin.say(turn, "four")
        await text_of(client, sent, "one two three four")
        plugin.end(turn, "one two three four")
        seen = await following
        task = await get(client, sent)
    assert (state(task), seen.text) == ("COMPLETED", "one two three four")
    assert [m.metadata["tool"]["preview"] for m in task.history if "tool" in m.metadata] == ["ls"]
    assert task.metadata["durationSeconds"] > task.metadata["firstTextSeconds"] > 0


async def test_a_turn_that_ended_without_a_bridge_has_ended_when_the_next_one_is_ready(
    start: Start, plugin: Plugin
) -> None:
    request = message("go")
    async with start() as (_, client):
        sent = await begin(client, request)
        turn = await plugin.started()
    plugin.end(turn, "done")
    async with start() as (_, client):
        resent = await send(client, request)
        assert (resent.task_id, resent.text) == (sent.task_id, "done")
        assert plugin.gateway.started.empty()
        assert (await client.list_tasks(ListTasksRequest())).total_size == 1


async def test_a_restarted_hermes_does_not_have_the_turn(start: Start, plugin: Plugin) -> None:
    async with start() as (_, client):
        sent = await begin(client, message("go"))
        await plugin.started()
    await plugin.stop()
    await plugin.start()
    async with start() as (_, client):
        task = await get(client, sent)
    assert state(task) == "FAILED"
    assert failure(task.status)["kind"] == "interrupted"


async def test_the_bridge_is_not_ready_until_it_knows_what_became_of_its_turns(
    start: Start, plugin: Plugin
) -> None:
    async with start() as (_, client):
        sent = await begin(client, message("go"))
        await plugin.started()
    await plugin.stop()
    async with start(ready=False) as (bridge, client):
        report = await bridge.health.ready()
        assert not report.parts["turns"]["ok"]
        assert report.parts["turns"]["reason"] == "1 turn is being resumed"
        assert state(await get(client, sent)) == "WORKING"
        await plugin.start()
        await until(lambda: is_ready(bridge))
        assert state(await get(client, sent)) == "FAILED"


async def test_a_hermes_that_stays_away_ends_the_turn(start: Start, plugin: Plugin) -> None:
    async with start() as (_, client):
        sent = await begin(client, message("go"))
        await plugin.started()
    await plugin.stop()
    async with start(ready=False, attach_for=0.2) as (_, client):
        ended = await until(lambda: has_ended(client, sent))
    assert failure(ended.status)["kind"] == "interrupted"


async def has_ended(client: Client, sent: Turn) -> Task | None:
    task = await get(client, sent)
    return task if state(task) == "FAILED" else None


async def test_an_open_question_can_be_answered_after_the_restart(
    start: Start, plugin: Plugin
) -> None:
    async with start() as (_, client):
        sent = await begin(client, message("go"))
        turn = await plugin.started()
        plugin.ask(turn)
        await until(lambda: is_asking(client, sent))
        before = await get(client, sent)
    async with start() as (_, client):
        assert (await get(client, sent)).status == before.status
        answering = asyncio.create_task(ask(client, "yes", task_id=sent.task_id))
        await until(lambda: plugin.gateway.approved == [("rm", "once")])
        plugin.end(turn, "done")
        assert (await answering).states[-1] == "COMPLETED"
        task = await get(client, sent)
    kinds = [next(iter(m.metadata.fields)) for m in task.history if m.metadata.fields]
    assert kinds == ["question", "answered"]


async def is_asking(client: Client, sent: Turn) -> bool:
    return state(await get(client, sent)) == "INPUT_REQUIRED"


async def test_an_answer_that_hermes_got_from_the_bridge_before_is_shown(
    start: Start, plugin: Plugin
) -> None:
    async with start() as (_, client):
        sent = await begin(client, message("go"))
        turn = await plugin.started()
        plugin.ask(turn)
        await until(lambda: is_asking(client, sent))
    body = {"message_id": turn.message_id, "question_id": "q", "answer": "deny"}
    answer = await plugin.post("/a2a/answer", body | {"bridge": turn.inbound.bridge})
    assert answer.status_code == 200
    async with start() as (_, client):
        plugin.end(turn, "done")
        task = await until(lambda: completed(client, sent))
    kinds = [next(iter(m.metadata.fields)) for m in task.history if m.metadata.fields]
    assert kinds == ["question", "answered"]


async def completed(client: Client, sent: Turn) -> Task | None:
    task = await get(client, sent)
    return task if state(task) == "COMPLETED" else None


async def test_a_question_that_expired_without_a_bridge_is_refused_at_once(
    start: Start, plugin: Plugin
) -> None:
    async with start(QUESTION_TIMEOUT=0.3) as (_, client):
        sent = await begin(client, message("go"))
        turn = await plugin.started()
        plugin.ask(turn)
        await until(lambda: is_asking(client, sent))
    await asyncio.sleep(0.3)
    async with start(QUESTION_TIMEOUT=60) as (_, client):
        await until(lambda: plugin.gateway.approved == [("rm", "deny")])
        plugin.end(turn, "done")
        await until(lambda: completed(client, sent))


async def test_a_resumed_turn_can_be_canceled(start: Start, plugin: Plugin) -> None:
    async with start() as (_, client):
        sent = await begin(client, message("go"))
        turn = await plugin.started()
        plugin.say(turn, "so far")
        await text_of(client, sent, "so far")
    async with start() as (_, client):
        canceling = asyncio.create_task(client.cancel_task(CancelTaskRequest(id=sent.task_id)))
        await until(lambda: plugin.gateway.stopped == [turn.message_id])
        plugin.dispatcher.finish(turn)
        task = await canceling
    assert (state(task), reply_text(task)) == ("CANCELED", "so far")


async def test_queued_turns_come_after_the_running_one_and_once(
    start: Start, plugin: Plugin
) -> None:
    async with start() as (_, client):
        first = await begin(client, message("first", "ctx"))
        turn = await plugin.started()
        second = await begin(client, message("second", "ctx"))
        third = await begin(client, message("third", "ctx"))
    async with start() as (_, client):
        assert plugin.gateway.started.empty()
        plugin.end(turn, "1")
        for text in ("second", "third"):
            turn = await plugin.started()
            assert turn.inbound.content == text
            plugin.end(turn, text)
        await until(lambda: completed(client, third))
        answers = [reply_text(await get(client, sent)) for sent in (first, second, third)]
    assert answers == ["1", "second", "third"]


async def test_a_queued_turn_whose_files_are_gone_is_interrupted(
    start: Start, plugin: Plugin
) -> None:
    async with start() as (_, client):
        await begin(client, message("first", "ctx"))
        turn = await plugin.started()
        large = message("see the file", "ctx")
        large.message.parts.append(Part(raw=b"\xff" * 20_000, filename="data.bin"))
        queued = await begin(client, large)
    async with start() as (_, client):
        plugin.end(turn, "1")
        reason = failure((await until(lambda: has_ended(client, queued))).status)
    assert reason["kind"] == "interrupted"
    assert reason["retryable"]


async def test_only_the_bridge_that_sent_a_message_can_attach_to_it(
    start: Start, plugin: Plugin
) -> None:
    async with start() as (_, client):
        await begin(client, message("go"))
        turn = await plugin.started()
        attach = {"message_id": turn.message_id, "callback_url": "http://127.0.0.1:9/"}
        for bridge in ({}, {"bridge": "another"}):
            assert (await plugin.post(ATTACH_PATH, attach | bridge)).status_code == 403
        unknown = attach | {"message_id": "unknown"}
        assert (await plugin.post(ATTACH_PATH, unknown)).status_code == 404
        elsewhere = attach | {"callback_url": "http://192.0.2.1/", "bridge": turn.inbound.bridge}
        assert (await plugin.post(ATTACH_PATH, elsewhere)).status_code == 403
        async with httpx.AsyncClient() as http:
            assert (await http.get(plugin.url + TURNS_PATH)).status_code == 401
            known = await http.get(plugin.url + TURNS_PATH, headers={SECRET_HEADER: SECRET})
    (listed,) = known.json()["turns"]
    assert (listed["message_id"], listed["state"]) == (turn.message_id, "running")


async def test_a_bridge_with_a_wrong_secret_leaves_the_turn_to_one_with_the_right_one(
    start: Start, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("molecule_hermes.executor._LEAST_SECONDS", 0.1)
    async with start(TURN_TIMEOUT=3) as (_, client):
        sent = await begin(client, message("go"))
        turn = await plugin.started()
    async with start(ready=False, secret="another-secret-01234", KEEP_WORKER="false") as (
        b,
        client,
    ):
        report = await b.health.ready()
        assert not report.parts["turns"]["ok"]
        assert "refused the bridge's secret" in report.parts["hermes"]["reason"]
        await asyncio.sleep(3.2)  # longer than the turn may take: that time does not count
        assert state(await get(client, sent)) == "WORKING"
    async with start() as (_, client):
        plugin.end(turn, "done")
        await until(lambda: completed(client, sent))
