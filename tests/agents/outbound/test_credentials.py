"""Tokens of client credentials: fetched once, kept, fetched again, and sent nowhere else."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from pydantic import SecretStr

from molecule_hermes.config import OAuthClient, PeerConfig
from tests.support.outbound import asking
from tests.support.sdk_agent import SdkAgent, sdk_agent
from tests.support.serving import serve

SECRET = "client:secret 0123456789/+"


@dataclass
class Login:
    """A token endpoint."""

    url: str = ""
    status: int = 200
    answer: Any = None
    tokens: list[str] = field(default_factory=list)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    async def token(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.requests.append((request.headers.get("Authorization", ""), form))
        if self.answer is not None:
            return web.Response(status=self.status, text=self.answer)
        token = f"token-{len(self.requests)}"
        self.tokens.append(token)
        return web.json_response({"access_token": token, "expires_in": 3600}, status=self.status)

    def peer(self, agent: SdkAgent) -> PeerConfig:
        oauth = OAuthClient(f"{self.url}/token", "us & co", SecretStr(SECRET), "read write")
        return PeerConfig("other", url=agent.url, oauth=oauth)


@asynccontextmanager
async def login() -> AsyncIterator[Login]:
    server = Login()
    app = web.Application()
    app.router.add_post("/token", server.token)
    async with serve(app) as url:
        server.url = url
        yield server


async def test_a_token_is_fetched_once_and_used_until_it_is_refused() -> None:
    async with login() as server, sdk_agent() as agent, asking(server.peer(agent)) as turn:
        agent.tokens = {"token-1"}
        assert (await turn.ask("other", "one"))["status"] == "completed"
        assert (await turn.ask("other", "two"))["status"] == "completed"
        assert len(server.requests) == 1
        agent.tokens = {"token-2"}
        assert (await turn.ask("other", "three"))["status"] == "completed"
        assert len(server.requests) == 2
        agent.tokens = {"another"}
        found = await turn.ask("other", "four")
        assert found["error"]["kind"] == "auth"
        assert "token-" not in json.dumps(found)
    header, form = server.requests[0]
    decoded = base64.b64decode(header.removeprefix("Basic ")).decode()
    assert decoded == "us%20%26%20co:client%3Asecret%200123456789%2F%2B"
    assert form == {"grant_type": "client_credentials", "scope": "read write"}
    assert not any(SECRET in value for sent in agent.headers for value in sent.values())


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (401, "no: client:secret"),
        (302, ""),
        (200, ""),
        (200, "[]"),
        (200, "{}"),
        (200, '{"access_token": 7}'),
        (200, '{"access_token": "a b"}'),
        (200, '{"access_token": "a\\r\\nX: y"}'),
        (200, '{"access_token": "t", "expires_in": "soon"}'),
        (200, "[" * 10_000),
        (200, '{"access_token": "' + "x" * 100_000 + '"}'),
    ],
)
async def test_without_a_token_nothing_is_sent(status: int, answer: str) -> None:
    async with login() as server, sdk_agent() as agent, asking(server.peer(agent)) as turn:
        server.status, server.answer = status, answer
        found = await turn.ask("other", "hello")
        assert found["error"]["kind"] == "auth"
        assert "oauth of peers.other" in found["error"]["hint"]
        assert "client:secret" not in json.dumps(found)
        assert agent.headers == []


async def test_a_token_endpoint_that_is_not_there_is_a_failure() -> None:
    async with sdk_agent() as agent, asking(Login("http://127.0.0.1:9").peer(agent)) as turn:
        assert (await turn.ask("other", "hello"))["error"]["kind"] == "auth"
