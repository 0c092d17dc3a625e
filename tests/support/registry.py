"""A registry of agents, and bridges' calls that use it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from molecule_hermes.agents.outbound import OutboundCalls
from molecule_hermes.backoff import Backoff
from molecule_hermes.config import AgentConfig, Configuration, PeerConfig, Settings
from molecule_hermes.protocol.chain import Chain
from tests.support.outbound import IDENTITY, Asking, begin
from tests.support.serving import serve
from tests.support.waiting import until

ASKS_ALL = AgentConfig(calls=("*",))


@dataclass
class RegistryServer:
    """Answers what it is given to answer, to everybody."""

    items: list[Any] = field(default_factory=list)
    url: str = ""
    body: bytes | None = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    requests: list[dict[str, str]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append(dict(request.headers))
        body = json.dumps({"agents": self.items}).encode() if self.body is None else self.body
        return web.Response(body=body, status=self.status, headers=self.headers)

    async def read_again(self) -> None:
        """Returns when an answer that was given after this call has been read."""
        before = len(self.requests)
        await until(lambda: len(self.requests) >= before + 2)


def read_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("molecule_hermes.agents.outbound.registry.REFRESH", 0.02)
    retries = Backoff(first=0.02, longest=0.02)
    monkeypatch.setattr("molecule_hermes.agents.outbound.registry._RETRIES", retries)


@asynccontextmanager
async def registry(*items: Any) -> AsyncIterator[RegistryServer]:
    server = RegistryServer(list(items))
    app = web.Application()
    app.router.add_get("/agents", server.answer)
    async with serve(app) as url:
        server.url = f"{url}/agents?limit=100"
        yield server


@asynccontextmanager
async def calls_with(
    url: str, *peers: PeerConfig, agent: AgentConfig = ASKS_ALL, **variables: Any
) -> AsyncIterator[OutboundCalls]:
    environ = {f"MOLECULE_HERMES_{name}": str(value) for name, value in variables.items()}
    environ["MOLECULE_HERMES_REGISTRY"] = url
    async with OutboundCalls(Settings.from_env(environ), IDENTITY) as calls:
        peers_by_name = {peer.name: peer for peer in peers}
        calls.configure(Configuration(agents={agent.name: agent}, peers=peers_by_name))
        yield calls


@asynccontextmanager
async def asking_with(
    server: RegistryServer, *peers: PeerConfig, **variables: Any
) -> AsyncIterator[Asking]:
    """A turn of an agent that may ask everybody, once the registry has answered."""
    async with contextlib.AsyncExitStack() as stack:
        calls = await stack.enter_async_context(calls_with(server.url, *peers, **variables))
        reach = calls.reach(ASKS_ALL, "alice")
        await until(lambda: reach.after(Chain()) is not None and server.requests)
        turn = begin(calls, agent=ASKS_ALL)
        stack.push_async_callback(turn.turn.close, completed=True)
        yield turn
