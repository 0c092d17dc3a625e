"""Push notifications to a real webhook: they come in order, and hold nobody up."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from a2a.client import Client
from a2a.compat.v0_3 import types as v03_types
from a2a.server.context import ServerCallContext
from a2a.types import (
    AuthenticationInfo,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    Task,
    TaskPushNotificationConfig,
    TaskStatusUpdateEvent,
)
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError
from aiohttp import web

from molecule_hermes.client.connection import message
from molecule_hermes.net.addresses import PublicOnly
from molecule_hermes.protocol.webhooks import MAX_CONFIGS, PushConfigs, PushSender
from molecule_hermes.storage.memory import MemoryTaskStore
from molecule_hermes.turns.model import Completed, TextDelta, Usage
from tests.conftest import StartBridge
from tests.support.bridge_process import bridge_process
from tests.support.fakes import ScriptedTransport
from tests.support.peers import ask, peer, send
from tests.support.serving import serve
from tests.support.waiting import until


class Webhook:
    def __init__(self) -> None:
        self.taken: list[dict[str, Any]] = []
        self.headers: list[Any] = []
        self.refuse: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = 0
        self.url = ""

    @property
    def host(self) -> str:
        return self.url.split("/")[2]

    async def handle(self, request: web.Request) -> web.Response:
        self.asked += 1
        await self.gate.wait()
        if self.refuse:
            return web.Response(status=self.refuse.pop(0), headers={"Location": self.url})
        self.headers.append(request.headers)
        self.taken.append(await request.json())
        return web.Response()

    @property
    def states(self) -> list[str]:
        found = [e.get("statusUpdate", e.get("task", {})).get("status", {}) for e in self.taken]
        return [s["state"].removeprefix("TASK_STATE_") for s in found if s]


@asynccontextmanager
async def webhook() -> AsyncIterator[Webhook]:
    hook = Webhook()
    app = web.Application()
    app.router.add_post("/hook", hook.handle)
    async with serve(app) as url:
        hook.url = f"{url}/hook"
        try:
            yield hook
        finally:
            hook.gate.set()


def pushed(text: str, url: str, context_id: str = "") -> Any:
    request = message(text, context_id)
    request.configuration.task_push_notification_config.CopyFrom(
        TaskPushNotificationConfig(
            url=url,
            token="the-peers-token",
            authentication=AuthenticationInfo(scheme="Bearer", credentials="the-credentials"),
        )
    )
    return request


async def test_a_webhook_gets_every_event_in_order_with_its_token(bridge: StartBridge) -> None:
    transport = ScriptedTransport(TextDelta("a"), 0.1, TextDelta("b"), Completed("ab"))
    async with (
        webhook() as hook,
        bridge(transport, PUSH_HOSTS=hook.host) as b,
        peer(b.url) as client,
    ):
        turn = await send(client, pushed("go", hook.url))
        await until(lambda: hook.states[-1:] == ["COMPLETED"])
    assert turn.states[-1] == "COMPLETED"
    assert hook.states == ["SUBMITTED", "WORKING", "COMPLETED"]
    updates = [e["artifactUpdate"] for e in hook.taken if "artifactUpdate" in e]
    assert [u["artifact"]["parts"][0]["text"] for u in updates] == ["a", "b", "ab"]
    assert [u.get("append", False) for u in updates] == [False, True, False]
    assert hook.headers[0]["X-A2A-Notification-Token"] == "the-peers-token"
    assert hook.headers[0]["Authorization"] == "Bearer the-credentials"


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_a_webhook_of_a_0_3_client_gets_the_task_of_0_3(
    bridge: StartBridge, binding: str
) -> None:
    usage = Usage(1, 2, 3, "m")
    transport = ScriptedTransport(TextDelta("a"), 0.1, TextDelta("b"), Completed("ab", usage))
    async with (
        webhook() as hook,
        webhook() as newer,
        bridge(transport, PUSH_HOSTS=f"{hook.host},{newer.host}") as b,
        peer(b.url, version="0.3", binding=binding) as client,
        peer(b.url) as other,
    ):
        await send(client, pushed("go", hook.url))
        await send(other, pushed("go", newer.url))
        await until(lambda: newer.states[-1:] == ["COMPLETED"])
        await until(lambda: len(hook.taken) == 3)
    tasks = [v03_types.Task.model_validate(body) for body in hook.taken]
    assert [task.status.state.value for task in tasks] == ["submitted", "working", "completed"]
    assert {body["kind"] for body in hook.taken} == {"task"}
    assert tasks[-1].artifacts is not None
    part = tasks[-1].artifacts[0].parts[0].root
    assert isinstance(part, v03_types.TextPart)
    assert part.text == "ab"
    assert str(hook.taken[-1]["metadata"]["usage"]["totalTokens"]) == "3"
    assert hook.headers[0]["X-A2A-Notification-Token"] == "the-peers-token"


async def test_a_webhook_that_a_0_3_client_registers_later_gets_the_task_of_0_3(
    bridge: StartBridge,
) -> None:
    go = asyncio.Event()
    async with (
        webhook() as hook,
        bridge(ScriptedTransport(go, Completed("done")), PUSH_HOSTS=hook.host) as b,
        peer(b.url, version="0.3") as client,
    ):
        running = client.send_message(message("go"))
        task_id = (await anext(running)).task.id
        config = TaskPushNotificationConfig(task_id=task_id, url=hook.url, id="mine")
        registered = await client.create_task_push_notification_config(config)
        assert (registered.url, registered.id) == (hook.url, "mine")
        go.set()
        await until(lambda: hook.taken and hook.taken[-1]["status"]["state"] == "completed")
    assert {body["kind"] for body in hook.taken} == {"task"}


async def test_a_webhook_that_fails_is_tried_again(bridge: StartBridge) -> None:
    async with (
        webhook() as hook,
        bridge(ScriptedTransport(Completed("done")), PUSH_HOSTS=hook.host) as b,
        peer(b.url) as client,
    ):
        hook.refuse = [503, 500, 429]
        await send(client, pushed("go", hook.url))
        await until(lambda: hook.states[-1:] == ["COMPLETED"])
    assert hook.states == ["SUBMITTED", "WORKING", "COMPLETED"]


@pytest.mark.parametrize("status", [404, 302])
async def test_what_is_refused_for_good_is_not_sent_again(bridge: StartBridge, status: int) -> None:
    async with (
        webhook() as hook,
        bridge(ScriptedTransport(Completed("done")), PUSH_HOSTS=hook.host) as b,
        peer(b.url) as client,
    ):
        hook.refuse = [status]
        await send(client, pushed("go", hook.url))
        await until(lambda: hook.states[-1:] == ["COMPLETED"])
        assert hook.states == ["WORKING", "COMPLETED"]
        assert b"molecule_hermes_failed_pushes 1.0" in b.metrics.text()


async def test_a_webhook_that_hangs_holds_up_no_turn(bridge: StartBridge) -> None:
    transport = ScriptedTransport(TextDelta("a"), Completed("a"))
    async with (
        webhook() as hook,
        bridge(transport, PUSH_HOSTS=hook.host, DRAIN_TIMEOUT=1) as b,
        peer(b.url) as client,
    ):
        hook.gate.clear()
        turns = [await send(client, pushed(f"go {i}", hook.url)) for i in range(5)]
        assert [turn.states[-1] for turn in turns] == ["COMPLETED"] * 5
        assert hook.taken == []
        hook.gate.set()
        await until(lambda: hook.states.count("COMPLETED") == 5)


async def test_a_lane_that_falls_behind_loses_text_and_never_the_end(bridge: StartBridge) -> None:
    texts = [TextDelta("x" * 3000) for _ in range(400)]
    transport = ScriptedTransport(*texts, Completed("x" * 3000 * 400))
    async with (
        webhook() as hook,
        bridge(transport, PUSH_HOSTS=hook.host) as b,
        peer(b.url) as client,
    ):
        hook.gate.clear()
        await send(client, pushed("go", hook.url))
        hook.gate.set()
        await until(lambda: hook.states[-1:] == ["COMPLETED"])
        assert hook.states == ["SUBMITTED", "WORKING", "COMPLETED"]
        assert len(hook.taken) < 270


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:9/x", "http://localhost/x", "http://10.1.2.3/", "ftp://a.example/", "x"],
)
async def test_an_address_that_is_not_public_is_refused(bridge: StartBridge, url: str) -> None:
    transport = ScriptedTransport(Completed("done"))
    async with bridge(transport) as b, peer(b.url) as client:
        with pytest.raises(InvalidParamsError):
            await send(client, pushed("go", url))
        turn = await ask(client, "go")
        with pytest.raises(InvalidParamsError):
            await client.create_task_push_notification_config(
                TaskPushNotificationConfig(task_id=turn.task_id, url=url)
            )
    assert len(transport.turns) == 1


async def _configs(client: Client, task_id: str) -> list[str]:
    request = ListTaskPushNotificationConfigsRequest(task_id=task_id)
    found = await client.list_task_push_notification_configs(request)
    return sorted(config.id for config in found.configs)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_configurations_are_created_read_listed_and_deleted(
    bridge: StartBridge, store: str
) -> None:
    tokens = "alice:alice-token-012345,bob:bob-token-01234567"
    settings = {"PUSH_HOSTS": "hooks.internal,127.0.0.1", "PEER_TOKENS": tokens, "STORE": store}
    async with (
        bridge(ScriptedTransport(Completed("done")), **settings) as b,
        peer(b.url, token="alice-token-012345") as alice,
        peer(b.url, token="bob-token-01234567") as bob,
    ):
        task_id = (await ask(alice, "go")).task_id
        for name in "ab":
            await alice.create_task_push_notification_config(
                TaskPushNotificationConfig(task_id=task_id, id=name, url="http://127.0.0.1:9/x")
            )
        assert await _configs(alice, task_id) == ["a", "b"]
        one = await alice.get_task_push_notification_config(
            GetTaskPushNotificationConfigRequest(task_id=task_id, id="a")
        )
        assert one.url == "http://127.0.0.1:9/x"
        with pytest.raises(TaskNotFoundError):
            await _configs(bob, task_id)
        await alice.delete_task_push_notification_config(
            DeleteTaskPushNotificationConfigRequest(task_id=task_id, id="a")
        )
        assert await _configs(alice, task_id) == ["b"]
        for number in range(7):
            await alice.create_task_push_notification_config(
                TaskPushNotificationConfig(
                    task_id=task_id, id=str(number), url="http://127.0.0.1:9/x"
                )
            )
        with pytest.raises(InvalidParamsError, match="more than 8"):
            await alice.create_task_push_notification_config(
                TaskPushNotificationConfig(task_id=task_id, id="9th", url="http://127.0.0.1:9/x")
            )


async def test_a_webhook_is_notified_of_a_task_that_a_crash_interrupted(
    bridge: StartBridge, tmp_path: Path
) -> None:
    async with webhook() as hook:
        variables = {"PUSH_HOSTS": hook.host, "STORE": "sqlite"}
        async with bridge_process(tmp_path, **variables) as crashed, peer(crashed.url) as client:
            stream = client.send_message(pushed("hang", hook.url))
            task_id = (await anext(stream)).task.id
            await until(lambda: "WORKING" in hook.states)
            await stream.aclose()
            await crashed.kill()
        hook.taken.clear()
        async with bridge(ScriptedTransport(), **variables):
            await until(lambda: "FAILED" in hook.states)
    assert hook.states == ["WORKING", "FAILED"]
    whole, end = hook.taken
    assert whole["task"]["id"] == end["statusUpdate"]["taskId"] == task_id
    assert whole["task"]["metadata"]["version"] < end["statusUpdate"]["metadata"]["version"]
    message = end["statusUpdate"]["status"]["message"]
    assert message["metadata"]["failure"]["kind"] == "interrupted"


async def test_a_webhook_learns_of_an_end_that_it_missed_because_of_a_crash(
    bridge: StartBridge, tmp_path: Path
) -> None:
    async with webhook() as hook:
        variables = {"PUSH_HOSTS": hook.host, "STORE": "sqlite"}
        hook.refuse = [503] * 10
        async with bridge_process(tmp_path, **variables) as crashed, peer(crashed.url) as client:
            turn = await send(client, pushed("say done", hook.url))
            assert turn.states[-1] == "COMPLETED"
            await crashed.kill()
        hook.refuse = []
        hook.taken.clear()
        async with bridge(ScriptedTransport(), **variables):
            await until(lambda: hook.states)
        assert hook.states == ["COMPLETED"]
        assert hook.taken[0]["task"]["id"] == turn.task_id
        async with bridge(ScriptedTransport(), **variables) as b:
            assert not b.turns
        assert hook.states == ["COMPLETED"], "it is told once"


@pytest.mark.parametrize("token", ["a\r\nX-Other: b", "a\x00"])
async def test_a_token_that_is_no_header_is_refused(bridge: StartBridge, token: str) -> None:
    transport = ScriptedTransport(Completed("done"))
    async with (
        webhook() as hook,
        bridge(transport, PUSH_HOSTS=hook.host) as b,
        peer(b.url) as client,
    ):
        request = pushed("go", hook.url)
        request.configuration.task_push_notification_config.token = token
        with pytest.raises(InvalidParamsError, match="control characters"):
            await send(client, request)
    assert transport.turns == []


async def test_webhooks_that_hang_hold_up_no_other() -> None:
    configs = PushConfigs(MemoryTaskStore().push_configs)
    async with webhook() as hung, webhook() as hook:
        hung.gate.clear()
        addresses = PublicOnly({hung.host, hook.host})
        async with PushSender(configs, addresses, timeout=60, flush_for=0.1) as push:
            for url in [hung.url] * 300 + [hook.url]:
                event = TaskStatusUpdateEvent(task_id=uuid.uuid4().hex)
                config = TaskPushNotificationConfig(url=url)
                await configs.set_info(event.task_id, config, ServerCallContext())
                await push.notify(Task(id=event.task_id), event)
            await until(lambda: hook.taken)
        hung.gate.set()


async def test_webhooks_registered_at_once_stay_within_the_limit(bridge: StartBridge) -> None:
    transport = ScriptedTransport(Completed("pong"))
    async with (
        webhook() as hook,
        bridge(transport, PUSH_HOSTS=hook.host) as b,
        peer(b.url) as client,
    ):
        task_id = (await ask(client, "ping")).task_id
        configs = [
            TaskPushNotificationConfig(task_id=task_id, id=f"{number}", url=hook.url)
            for number in range(3 * MAX_CONFIGS)
        ]
        created = await asyncio.gather(
            *map(client.create_task_push_notification_config, configs), return_exceptions=True
        )
    refused = [error for error in created if isinstance(error, InvalidParamsError)]
    assert len(created) - len(refused) == MAX_CONFIGS
