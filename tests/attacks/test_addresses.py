"""A long URL that a peer names is refused before it is parsed or stored."""

from __future__ import annotations

import json

import httpx
import pytest
from a2a.types import TaskPushNotificationConfig
from a2a.utils.errors import InvalidParamsError

from molecule_hermes.client.connection import message
from molecule_hermes.net.addresses import MAX_URL
from molecule_hermes.turns.model import Completed
from tests.attacks.test_bodies import V10, rpc
from tests.conftest import StartBridge
from tests.support.event_loop import stall
from tests.support.fakes import ScriptedTransport
from tests.support.peers import ask, peer, send

LONG = "http://127.0.0.1/" + "x" * 12 * 2**20


async def test_a_long_url_of_a_file_or_a_webhook_delays_nobody(bridge: StartBridge) -> None:
    create = {"taskId": "t", "id": "c", "url": LONG}
    request = message("look")
    request.message.parts.add(url=LONG)
    async with (
        bridge(ScriptedTransport(Completed("x"))) as b,
        peer(b.url) as client,
        httpx.AsyncClient(timeout=30) as http,
    ):
        async with stall() as held:
            refused = await http.post(
                b.url,
                content=rpc(json.dumps(create), "CreateTaskPushNotificationConfig"),
                headers=V10,
            )
        rejected = await send(client, request)
    assert "error" in refused.json()
    assert rejected.failure["kind"] == "bad_request"
    assert f"{MAX_URL} characters" in rejected.failure["message"]
    assert held.longest < 5.0


@pytest.mark.parametrize("field", ["url", "token", "credentials"])
async def test_a_webhook_is_kept_only_if_it_is_small(bridge: StartBridge, field: str) -> None:
    """Beside the task, and so outside of its peer's quota."""
    async with (
        bridge(ScriptedTransport(Completed("x")), PUSH_HOSTS="127.0.0.1") as b,
        peer(b.url) as client,
    ):
        done = await ask(client, "hi")
        config = TaskPushNotificationConfig(task_id=done.task_id, url="http://127.0.0.1/")
        config.authentication.scheme = "Bearer"
        await client.create_task_push_notification_config(config)
        holder = config.authentication if field == "credentials" else config
        setattr(holder, field, getattr(holder, field) + "x" * 100_000)
        with pytest.raises(InvalidParamsError):
            await client.create_task_push_notification_config(config)
