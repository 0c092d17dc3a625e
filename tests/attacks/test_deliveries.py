"""A Hermes, or a peer, that abuses deliveries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial

import httpx
import pytest
from a2a.client import Client
from a2a.types import ListTasksRequest, Task, TaskPushNotificationConfig, TaskState
from a2a.utils.errors import A2AError
from pydantic import SecretStr

from molecule_hermes.agents.outbound.channel import message_of
from molecule_hermes.client.connection import message
from molecule_hermes.config import AgentConfig, Configuration, PeerConfig, Settings
from molecule_hermes.protocol.chain import Chain
from molecule_hermes.server.bridge import Bridge
from molecule_hermes.transports.plugin.transport import PluginTransport
from tests.support.peers import ask, peer, send
from tests.support.pushing_plugin import SECRET, PushingPlugin, pushing_plugin
from tests.support.waiting import until


@pytest.fixture
async def plugin() -> AsyncIterator[PushingPlugin]:
    async with pushing_plugin() as plugin:
        yield plugin


@pytest.fixture
async def bridge(settings: Callable[..., Settings], plugin: PushingPlugin) -> AsyncIterator[Bridge]:
    transport = PluginTransport(plugin.url, secret=SECRET, tell_every=0.05)
    given = settings(DRAIN_TIMEOUT=0, PUSH_HOSTS="127.0.0.1")
    async with asyncio.timeout(60), Bridge(given, transport) as bridge:
        await until(lambda: plugin.takes)
        yield bridge


async def test_a_flood_of_openings_leaves_no_more_tasks_than_allowed(
    plugin: PushingPlugin, bridge: Bridge
) -> None:
    async with peer(bridge.url) as client:
        await ask(client, "ping")
        batches = [[plugin.opening(f"p{n}-{i}") for i in range(100)] for n in range(5)]
        answers = await asyncio.gather(*(plugin.send(*batch) for batch in batches))
        refused = [push for answer in answers for push in answer["refused"]]
        assert len(refused) == 500 - 16
        assert bridge.turns == 16
        assert (await ask(client, "ping")).text == "pong"


@pytest.mark.parametrize("wrong", ["", "x" * 24])
async def test_nobody_without_the_secret_makes_a_delivery(
    plugin: PushingPlugin, bridge: Bridge, wrong: str
) -> None:
    async with peer(bridge.url) as client:
        await ask(client, "ping")
    async with httpx.AsyncClient(headers={"X-Molecule-A2A-Secret": wrong}) as http:
        answer = await http.post(plugin.callback_url, json=plugin.opening("p1"))
    assert answer.status_code == 401
    assert bridge.turns == 0


async def test_a_peer_cannot_pose_as_a_webhook_of_the_operator(
    plugin: PushingPlugin, bridge: Bridge
) -> None:
    async with peer(bridge.url) as client:
        turn = await ask(client, "ping")
        config = TaskPushNotificationConfig(
            task_id=turn.task_id, id="channel:webhook", url="http://127.0.0.1:9/"
        )
        with pytest.raises(A2AError, match="reserved"):
            await client.create_task_push_notification_config(config)


async def test_agents_that_deliver_to_each_other_do_so_only_so_often(
    plugin: PushingPlugin, bridge: Bridge
) -> None:
    """Each message begins a job, whose end is a message to the other one's url."""
    hops = []
    async with peer(bridge.url) as client:
        request = message("ping", "ctx")
        for number in range(10):
            chain = Chain.of(request.message).followed_by(f"other {number}")
            hops.append(chain.hops)
            Chain(hops=chain.hops).mark(request.message)
            turn = await send(client, request)
            if turn.states[-1].endswith("REJECTED"):
                break
            origin = {"a2a_task_id": turn.task_id}
            await plugin.deliver(f"p{number}", "it has ended", origin=origin)
            task = await until(partial(_delivered, client, number + 1))
            said = message_of(task)
            assert said is not None
            request = message("ping", "ctx")
            request.message.metadata.CopyFrom(said.metadata)
            request.message.message_id = said.message_id
    assert hops == [1, 2, 3, 4, 5, 6]


async def _delivered(client: Client, count: int) -> Task | None:
    """The last of so many deliveries, once it has ended."""
    tasks = (await client.list_tasks(ListTasksRequest(include_artifacts=True))).tasks
    late = [task for task in tasks if "initiatedBy" in task.metadata.fields]
    done = [task for task in late if task.status.state == TaskState.TASK_STATE_COMPLETED]
    return done[0] if len(done) == count else None


async def test_a_peer_that_is_removed_follows_nothing_any_more(
    settings: Callable[..., Settings], plugin: PushingPlugin
) -> None:
    def configured(*names: str) -> Configuration:
        tokens = {name: SecretStr(f"{name}-token-of-the-tests") for name in names}
        peers = {name: PeerConfig(name, token=token) for name, token in tokens.items()}
        return Configuration(agents={"main": AgentConfig()}, peers=peers)

    transport = PluginTransport(plugin.url, secret=SECRET, tell_every=0.05)
    given = settings(DRAIN_TIMEOUT=0)
    async with (
        asyncio.timeout(60),
        Bridge(given, transport, configuration=configured("ann", "bob")) as bridge,
        httpx.AsyncClient(headers={"Authorization": "Bearer ann-token-of-the-tests"}) as http,
    ):
        await until(lambda: plugin.takes)
        async with http.stream("GET", f"{bridge.url}/deliveries") as response:
            assert response.status_code == 200
            await bridge.reload(configured("bob"))
            async for _ in response.aiter_lines():
                pass
        assert (await http.get(f"{bridge.url}/deliveries")).status_code == 401
