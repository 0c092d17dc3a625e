"""`GET /deliveries`: what a client gets, also when it comes and goes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from a2a.client import Client
from a2a.types import (
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
)
from aiohttp import web
from google.protobuf import json_format
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import SecretStr

from molecule_hermes.client.connection import message
from molecule_hermes.config import AgentConfig, Configuration, PeerConfig, Settings, Webhook
from molecule_hermes.protocol.caller import Caller
from molecule_hermes.protocol.chain import CHAIN_URI
from molecule_hermes.protocol.channels import Channel
from molecule_hermes.protocol.extensions import DELIVERIES
from molecule_hermes.protocol.task_registry import TaskRegistry
from molecule_hermes.server.bridge import Bridge
from molecule_hermes.server.deliveries import DeliveryFeed, Wake
from molecule_hermes.storage.base import Store
from molecule_hermes.storage.memory import MemoryTaskStore
from molecule_hermes.transports.plugin.transport import PluginTransport
from tests.storage.test_contract import delivery
from tests.support.fakes import ScriptedTransport
from tests.support.peers import ask, card_of, peer, send
from tests.support.pushing_plugin import SECRET, PushingPlugin, pushing_plugin
from tests.support.sdk_agent import TOKEN, sdk_agent
from tests.support.serving import free_port, serve
from tests.support.tasks import context
from tests.support.waiting import until

ANN, BOB = "ann-token-0123456789", "bob-token-0123456789"


@pytest.fixture
async def plugin() -> AsyncIterator[PushingPlugin]:
    async with pushing_plugin() as plugin:
        yield plugin


Start = Callable[..., contextlib.AbstractAsyncContextManager[Bridge]]


@pytest.fixture
def start(settings: Callable[..., Settings], plugin: PushingPlugin) -> Start:
    @contextlib.asynccontextmanager
    async def run(
        configuration: Configuration | None = None,
        channel: Channel | None = None,
        **variables: Any,
    ) -> AsyncIterator[Bridge]:
        plugin.callback_url = ""
        transport = PluginTransport(plugin.url, secret=SECRET, tell_every=0.05)
        given = {"DRAIN_TIMEOUT": 0, **variables}
        bridge = Bridge(settings(**given), transport, configuration=configuration)
        bridge.channels |= {"slow": channel} if channel is not None else {}
        async with asyncio.timeout(60), bridge:
            await until(lambda: plugin.takes)
            yield bridge

    return run


class Follower:
    """A client of the feed."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.cursor = ""

    def ended(self) -> list[str]:
        return [data["task"]["id"] for kind, data in self.events if kind == "ended"]

    def texts(self) -> list[str]:
        ended = [data["task"] for kind, data in self.events if kind == "ended"]
        return [task["artifacts"][0]["parts"][0]["text"] for task in ended]


@contextlib.asynccontextmanager
async def following(
    url: str, path: str = "/deliveries", token: str = "", **headers: str
) -> AsyncIterator[Follower]:
    """Follows the feed in the background."""
    follower, begun = Follower(), asyncio.Event()
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    given |= {"Authorization": f"Bearer {token}"} if token else {}

    async def follow() -> None:
        async with (
            httpx.AsyncClient(timeout=30, headers=given) as http,
            http.stream("GET", url + path) as response,
        ):
            assert response.status_code == 200, await response.aread()
            kind = ""
            async for line in response.aiter_lines():
                name, _, value = line.partition(": ")
                if name == "id":
                    follower.cursor = value
                    begun.set()
                elif name == "event":
                    kind = value
                elif name == "data":
                    follower.events.append((kind, json.loads(value)))

    task = asyncio.create_task(follow())
    waiting = asyncio.create_task(begun.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    try:
        yield follower
    finally:
        task.cancel()
        waiting.cancel()
        await asyncio.gather(task, waiting, return_exceptions=True)


async def say(bridge: Bridge, token: str = "") -> str:
    """Has a turn, and returns its context."""
    async with peer(bridge.url, token=token) as client:
        return (await ask(client, "ping")).context_id


async def test_a_client_sees_each_delivery_begin_and_end(
    plugin: PushingPlugin, start: Start
) -> None:
    async with start() as bridge:
        await say(bridge)
        async with following(bridge.url) as follower:
            await plugin.deliver("p1", "done", job="make")
            await until(lambda: len(follower.events) == 2)
    assert [kind for kind, _ in follower.events] == ["created", "ended"]
    assert follower.texts() == ["done"]
    for _, data in follower.events:
        assert data["agent"] == "main"
        assert data["task"]["metadata"]["cause"] == "background"


async def test_a_client_that_comes_back_gets_what_it_missed_also_from_the_next_bridge(
    plugin: PushingPlugin, start: Start
) -> None:
    async with start() as bridge:
        await say(bridge)
        async with following(bridge.url) as follower:
            await plugin.deliver("p1", "one")
            await until(follower.ended)
        await plugin.deliver("p2", "two")
        async with following(bridge.url, Last_Event_ID=follower.cursor) as again:
            await until(again.ended)
        assert again.texts() == ["two"]
        await plugin.deliver("p3", "three")

        async def stored() -> bool:
            async with peer(bridge.url) as client:
                return await count_ended(client) == 3

        await until(stored)
    async with start() as bridge:
        path = f"/deliveries?after={again.cursor}"
        async with following(bridge.url, path) as last:
            await until(last.ended)
            assert last.texts() == ["three"]
        async with following(bridge.url, "/deliveries?after=0") as whole:
            await until(lambda: len(whole.ended()) == 3)
            assert whole.texts() == ["one", "two", "three"]
        async with following(bridge.url, "/deliveries?since=2020-01-01T00:00:00Z") as since:
            await until(lambda: len(since.ended()) == 3)


async def count_ended(client: Client) -> int:
    tasks = (await client.list_tasks(ListTasksRequest(page_size=100))).tasks
    return sum(
        "initiatedBy" in t.metadata and t.status.state == TaskState.TASK_STATE_COMPLETED
        for t in tasks
    )


async def test_a_peer_sees_only_its_own_deliveries(plugin: PushingPlugin, start: Start) -> None:
    async with start(PEER_TOKENS=f"ann:{ANN},bob:{BOB}") as bridge:
        await say(bridge, ANN)
        anns = plugin.chat
        await say(bridge, BOB)
        async with (
            following(bridge.url, token=ANN) as ann,
            following(bridge.url, "/agents/main/deliveries", token=BOB) as bob,
        ):
            await plugin.deliver("p1", "for ann", anns)
            await plugin.deliver("p2", "for bob")
            await until(lambda: ann.ended() and bob.ended())
            assert (ann.texts(), bob.texts()) == (["for ann"], ["for bob"])
        async with httpx.AsyncClient() as http:
            assert (await http.get(f"{bridge.url}/deliveries")).status_code == 401


@pytest.mark.parametrize(
    "given", ["?after=x", "?after=-1", "?after=99999999999999999999", "?since=yesterday"]
)
async def test_a_bad_cursor_is_an_error(start: Start, given: str) -> None:
    async with start() as bridge, httpx.AsyncClient() as http:
        answer = await http.get(f"{bridge.url}/deliveries{given}")
        assert answer.status_code == 400


async def test_a_caller_cannot_follow_too_often(plugin: PushingPlugin, start: Start) -> None:
    async with start() as bridge, contextlib.AsyncExitStack() as stack:
        for _ in range(8):
            await stack.enter_async_context(following(bridge.url))
        async with httpx.AsyncClient() as http:
            answer = await http.get(f"{bridge.url}/deliveries")
            assert answer.status_code == 429
            await stack.aclose()

            async def free() -> bool:
                async with http.stream("GET", f"{bridge.url}/deliveries") as response:
                    return response.status_code == 200

            await until(free)


async def test_the_streams_end_when_the_bridge_does(plugin: PushingPlugin, start: Start) -> None:
    async with start() as bridge, contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(following(bridge.url))
        async with asyncio.timeout(10):
            await bridge.__aexit__()


async def test_an_agent_that_makes_no_deliveries_says_so(
    settings: Callable[..., Settings], plugin: PushingPlugin
) -> None:
    transport = ScriptedTransport()
    async with Bridge(settings(DELIVERIES="off"), transport) as bridge:
        async with httpx.AsyncClient() as http:
            assert (await http.get(f"{bridge.url}/deliveries")).status_code == 404
        card = await card_of(bridge.url)
        assert DELIVERIES not in [each.uri for each in card.capabilities.extensions]


async def test_the_card_names_deliveries_where_there_are_any(start: Start) -> None:
    async with start() as bridge:
        card = await card_of(bridge.url)
        assert DELIVERIES in [each.uri for each in card.capabilities.extensions]


# Webhooks.


@contextlib.asynccontextmanager
async def webhook(status: int = 200) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    got: list[dict[str, Any]] = []

    async def take(request: web.Request) -> web.Response:
        got.append({"auth": request.headers.get("Authorization"), **(await request.json())})
        return web.Response(status=status)

    app = web.Application()
    app.router.add_post("/hook", take)
    async with serve(app) as url:
        yield f"{url}/hook", got


def ends(got: list[dict[str, Any]]) -> list[str]:
    updates = [each["statusUpdate"] for each in got if "statusUpdate" in each]
    return [u["taskId"] for u in updates if u["status"]["state"] == "TASK_STATE_COMPLETED"]


async def test_the_origins_webhooks_are_told_of_the_delivery(
    plugin: PushingPlugin, start: Start
) -> None:
    async with (
        webhook() as (url, got),
        start(PUSH_HOSTS="127.0.0.1") as bridge,
        peer(bridge.url) as client,
    ):
        request = message("ping")
        config = TaskPushNotificationConfig(url=url, token="t")
        request.configuration.task_push_notification_config.CopyFrom(config)
        turn = await send(client, request)
        await plugin.deliver("p1", "done", origin={"a2a_task_id": turn.task_id})
        await until(lambda: len(ends(got)) == 2)
    first, second = ends(got)
    assert first == turn.task_id != second


async def test_deliveries_are_posted_to_the_webhook_that_the_operator_names_for_the_peer(
    plugin: PushingPlugin, start: Start
) -> None:
    async with webhook() as (url, got):
        hook = Webhook(url, SecretStr("hook-token"))
        configuration = Configuration(
            agents={"main": AgentConfig()}, peers={"ann": PeerConfig("ann", webhook=hook)}
        )
        async with start(configuration, PEER_TOKENS=f"ann:{ANN},bob:{BOB}") as bridge:
            await say(bridge, BOB)
            await plugin.deliver("p0", "for bob")
            await say(bridge, ANN)
            await plugin.deliver("p1", "for ann")
            await until(lambda: ends(got))
            async with peer(bridge.url, token=ANN) as client:
                params = ListTaskPushNotificationConfigsRequest(task_id=ends(got)[0])
                configs = await client.list_task_push_notification_configs(params)
                assert not configs.configs, "a peer must not see what its operator configured"
    assert {each["auth"] for each in got} == {"Bearer hook-token"}
    assert "for bob" not in json.dumps(got)
    assert "for ann" in json.dumps(got)


async def test_a_peer_with_an_agent_of_its_own_gets_deliveries_as_messages(
    plugin: PushingPlugin, start: Start
) -> None:
    async with sdk_agent() as other:
        ann = PeerConfig("ann", url=other.url, bearer=SecretStr(TOKEN))
        configuration = Configuration(agents={"main": AgentConfig()}, peers={"ann": ann})
        async with start(configuration, PEER_TOKENS=f"ann:{ANN},bob:{BOB}") as bridge:
            await say(bridge, BOB)
            await plugin.deliver("p0", "for bob")
            context_id = await say(bridge, ANN)
            await plugin.deliver("p1", "for ann")
            await plugin.deliver("p1", "for ann")
            await until(lambda: other.messages)
            async with following(bridge.url, "/deliveries?after=0", ANN) as follower:
                await until(follower.ended)
    (got,) = other.messages
    assert [part.text for part in got.parts] == ["for ann"]
    assert got.context_id == context_id
    about = json_format.MessageToDict(got.metadata)
    assert about[DELIVERIES] == {"taskId": follower.ended()[0], "cause": "background"}
    assert about[CHAIN_URI]["hops"] == 1


async def test_a_peers_agent_that_is_away_gets_the_message_once_it_is_back(
    plugin: PushingPlugin, start: Start
) -> None:
    port = free_port()
    ann = PeerConfig("ann", url=f"http://127.0.0.1:{port}", bearer=SecretStr(TOKEN))
    configuration = Configuration(agents={"main": AgentConfig()}, peers={"ann": ann})
    async with start(configuration, PEER_TOKENS=f"ann:{ANN}") as bridge:
        await say(bridge, ANN)
        async with following(bridge.url, token=ANN) as follower:
            await plugin.deliver("p1", "for ann")
            await until(follower.ended)
        async with sdk_agent(port=port) as other:
            await until(lambda: other.messages, timeout=30)
    assert [message.parts[0].text for message in other.messages] == ["for ann"]


async def test_a_channel_that_was_not_told_of_the_end_is_told_by_the_next_bridge(
    plugin: PushingPlugin, start: Start
) -> None:
    class Slow:
        """Accepts nothing as long as it is told to."""

        def __init__(self) -> None:
            self.works = False
            self.ended: list[Task] = []

        def serves(self, peer: str) -> bool:
            return True

        async def send(self, to: Caller, body: dict[str, Any], ended: Task | None) -> int:
            if not self.works:
                await asyncio.Event().wait()
            self.ended += [ended] if ended is not None else []
            return 200

    slow = Slow()
    async with start(channel=slow) as bridge:
        await say(bridge)
        async with following(bridge.url) as follower:
            await plugin.deliver("p1", "done")
            await until(follower.ended)
    slow.works = True
    async with start(channel=slow):
        await until(lambda: slow.ended)
    assert [task.id for task in slow.ended] == follower.ended()


# Nothing is missed, and nothing repeated.


@hypothesis_settings(deadline=None, max_examples=30)
@given(
    steps=st.lists(st.sampled_from(["begin", "end", "drop", "read"]), max_size=40),
)
def test_whatever_happens_a_client_gets_every_event_once(steps: list[str]) -> None:
    async def play() -> None:
        store: Store = MemoryTaskStore()

        async def listener(task: Task, event: Any) -> None:
            pass

        tasks = TaskRegistry(store, listener)
        feed = DeliveryFeed(tasks, keepalive=0.01)
        seen: list[tuple[str, str]] = []
        expected: list[tuple[str, str]] = []
        cursor, open_ones = "0", []
        events: Any = None

        async def read() -> None:
            nonlocal cursor
            async for text in events:
                lines = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
                cursor = lines.get("id", cursor)
                if "data" in lines:
                    seen.append((lines["event"], json.loads(lines["data"])["task"]["id"]))
                elif text.startswith(":"):
                    return  # there is nothing left

        for number, step in enumerate([*steps, "read"]):
            if step == "begin":
                await store.save(delivery(f"d{number}"), context("alice"))
                open_ones.append(f"d{number}")
                expected.append(("created", f"d{number}"))
            elif step == "end" and open_ones:
                name = open_ones.pop(0)
                await store.save(delivery(name, "COMPLETED"), context("alice"))
                expected.append(("ended", name))
            elif step == "drop":
                events = None
            elif step == "read":
                wake = Wake()
                events = feed.events(["alice"], int(cursor), wake)
                async with contextlib.aclosing(events):
                    await read()
        assert seen == expected

    asyncio.run(play())
