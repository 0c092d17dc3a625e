"""The plugin's HTTP endpoints, without Hermes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from molecule_hermes.plugin.dispatcher import Dispatcher
from molecule_hermes.plugin.endpoints import application
from molecule_hermes.plugin.ledger import Ledger
from molecule_hermes.wire import CHECK_PATH, HEALTH_PATH, INBOUND_PATH, SECRET_HEADER, Inbound
from tests.plugin.test_dispatcher import FakeGateway, FakeOutbox


class Door:
    def __init__(self, secret: str = "s3cret") -> None:
        self.gateway = FakeGateway()
        self.dispatcher = Dispatcher(self.gateway, Ledger(max_waiting=2), FakeOutbox())
        app = application(self.dispatcher, secret=secret, max_body=2000)
        self.client = TestClient(TestServer(app))

    async def inbound(self, message_id: str) -> tuple[int, dict[str, Any], str | None]:
        body = Inbound("c", "p", message_id, "http://127.0.0.1:1/", "hi").to_json()
        headers = {SECRET_HEADER: "s3cret"}
        async with self.client.post(INBOUND_PATH, json=body, headers=headers) as response:
            return response.status, await response.json(), response.headers.get("Retry-After")


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    made = Door()
    async with made.client:
        yield made
    await made.dispatcher.close()


@pytest.mark.parametrize("state", ["starting", "draining"])
async def test_a_gateway_that_is_not_ready_says_when_to_retry(door: Door, state: Any) -> None:
    door.gateway.phase = state
    status, body, retry_after = await door.inbound("1")
    assert (status, body["kind"], retry_after) == (503, "draining", "1")
    assert state in body["error"]
    async with door.client.get(HEALTH_PATH) as response:
        health = await response.json()
        assert health.pop("instance")
        assert health == {"ok": True, "ready": False, "active": 0, "warm": True}


async def test_a_full_queue_is_reported_as_busy(door: Door) -> None:
    taken = [(await door.inbound(name))[0] for name in "1234"]
    assert taken == [202, 202, 202, 429]
    assert (await door.inbound("5"))[2] == "1"
    async with door.client.get(HEALTH_PATH) as response:
        assert (await response.json())["active"] == 3


async def test_a_large_body_is_refused_before_it_is_parsed(door: Door) -> None:
    headers = {SECRET_HEADER: "s3cret"}
    async with door.client.post(INBOUND_PATH, data=b"x" * 3000, headers=headers) as response:
        assert response.status == 413
        assert (await response.json())["kind"] == "too_large"


async def test_a_request_from_a_browser_is_refused(door: Door) -> None:
    headers = {SECRET_HEADER: "s3cret", "Origin": "http://evil.example"}
    async with door.client.post(INBOUND_PATH, json={}, headers=headers) as response:
        assert response.status == 403


async def test_an_unknown_path_or_method_is_refused_in_json(door: Door) -> None:
    headers = {SECRET_HEADER: "s3cret"}
    async with door.client.get(INBOUND_PATH, headers=headers) as response:
        assert (response.status, (await response.json())["ok"]) == (405, False)


async def test_a_secret_that_only_the_bridge_has_is_refused() -> None:
    """Else the bridge would refuse every callback, and each turn hang until its timeout."""
    door = Door(secret="")
    async with door.client:
        assert (await door.inbound("1"))[0] == 401
    await door.dispatcher.close()


async def test_a_check_says_whether_the_bridge_takes_deliveries_from_now_on(door: Door) -> None:
    receiver = door.dispatcher.deliveries.receiver
    body = {"callback_url": "http://127.0.0.1:1/", "bridge": "b", "deliveries": True}
    headers = {SECRET_HEADER: "s3cret"}
    async with door.client.post(CHECK_PATH, json=body, headers=headers) as response:
        assert (await response.json())["deliveries"] is True
    assert (receiver.url, receiver.bridge) == ("http://127.0.0.1:1/", "b")
    # An address that is not allowed, or a wrong secret, changes nothing.
    elsewhere = {**body, "callback_url": "http://192.0.2.1:1/"}
    async with door.client.post(CHECK_PATH, json=elsewhere, headers=headers) as response:
        assert (response.status, (await response.json())["kind"]) == (403, "callback_refused")
    async with door.client.post(CHECK_PATH, json={**body, "bridge": "c"}) as response:
        assert response.status == 401
    assert (receiver.url, receiver.bridge) == ("http://127.0.0.1:1/", "b")
    async with door.client.post(
        CHECK_PATH, json={**body, "deliveries": False}, headers=headers
    ) as response:
        assert "deliveries" not in await response.json()
    assert not receiver.takes
