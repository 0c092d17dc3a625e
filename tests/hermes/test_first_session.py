"""Hermes's first session is opened before the bridge is ready."""

from __future__ import annotations

import ssl

import httpx
import pytest
import respx

from molecule_hermes.errors import Unreachable
from molecule_hermes.hermes.api import FirstSession, platform_state

API = "http://127.0.0.1:1/v1"
SESSIONS = "http://127.0.0.1:1/api/sessions"


@respx.mock
async def test_it_is_created_once_in_a_hermes_without_sessions() -> None:
    respx.get(SESSIONS).respond(json={"data": []})
    created = respx.post(SESSIONS).respond(201, json={})
    session = FirstSession(API, "key")
    await session.check()
    await session.check()
    assert created.call_count == 1


@respx.mock
async def test_it_is_not_created_where_there_is_one() -> None:
    respx.get(SESSIONS).respond(json={"data": [{"id": "s"}]})
    await FirstSession(API, "key").check()


@respx.mock
@pytest.mark.parametrize("failure", [httpx.ConnectError("no"), httpx.Response(200, text="?")])
async def test_the_bridge_is_not_ready_before_hermes_can_be_asked(
    failure: httpx.ConnectError | httpx.Response,
) -> None:
    respx.get(SESSIONS).mock(side_effect=[failure, httpx.Response(200, json={"data": [{}]})])
    session = FirstSession(API, "key")
    with pytest.raises(Unreachable, match="no session yet"):
        await session.check()
    await session.check()


async def test_without_an_api_nothing_is_waited_for() -> None:
    await FirstSession(API, "", needed=False).check()


async def test_asking_a_starting_hermes_again_and_again_loads_no_certificates_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert await platform_state(API, "key") is None  # the first time, they are loaded
    loads: list[str] = []
    load = ssl.SSLContext.load_verify_locations

    def counted(context: ssl.SSLContext, *args: str, **given: str) -> None:
        loads.append("loaded")
        load(context, *args, **given)

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", counted)
    for _ in range(3):
        assert await platform_state(API, "key") is None
    assert not loads
    httpx.AsyncClient(trust_env=False)
    assert loads, "else this test sees nothing"
