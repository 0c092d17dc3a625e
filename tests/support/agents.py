"""A bridge with several agents, each of which says who it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Self

from pydantic import SecretStr

from molecule_hermes.config import (
    AgentConfig,
    Configuration,
    PeerConfig,
    RouteConfig,
    Settings,
)
from molecule_hermes.server.bridge import Bridge
from molecule_hermes.transports.base import Attached
from molecule_hermes.turns.model import Canceled, Completed, Place, Turn, TurnEvent
from tests.support.fakes import ScriptedTransport

TOKENS = {name: f"{name}-token-0123456789" for name in ("ann", "bob", "eve")}


class SaysItsName(ScriptedTransport):
    """Answers with its name. Turns with the text "wait" wait until `go` is set."""

    def __init__(self, name: str, go: asyncio.Event) -> None:
        super().__init__()
        self.name = name
        self.go = go
        self.opened = 0
        self.closing = False
        self.closed = 0
        self.may_close = asyncio.Event()
        self.may_close.set()
        self.resumed: list[Turn] = []
        self.canceled: list[Turn] = []
        self.fails: Exception | None = None

    async def __aenter__(self) -> Self:
        if self.fails is not None:
            raise self.fails
        self.opened += 1
        return self

    async def __aexit__(self, *error: object) -> None:
        self.closing = True
        await self.may_close.wait()
        self.closed += 1

    async def cancel(self, turn: Turn) -> None:
        self.canceled.append(turn)

    async def attach(self, turn: Turn, place: Place) -> Attached:
        self.resumed.append(turn)
        return Attached(self._answer(turn))

    async def run(self, turn: Turn) -> AsyncGenerator[TurnEvent, None]:
        if self.script:
            async for event in super().run(turn):
                yield event
            return
        self.turns.append(turn)
        async for event in self._answer(turn):
            yield event

    async def _answer(self, turn: Turn) -> AsyncGenerator[TurnEvent, None]:
        while turn.text == "wait" and not self.go.is_set():
            if turn in self.canceled:
                yield Canceled()
                return
            await asyncio.sleep(0.01)
        yield Completed(self.name)


class Agents:
    """The transports of a bridge's agents."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.made: dict[str, SaysItsName] = {}
        self.fails: dict[str, Exception] = {}

    def __getitem__(self, name: str) -> SaysItsName:
        return self.made[name]

    def open(self, config: AgentConfig) -> SaysItsName:
        made = self.made[config.name] = SaysItsName(config.name, self.go)
        made.fails = self.fails.get(config.name)
        return made


def two_agents(**changes: Any) -> Configuration:
    """ann reaches both agents, bob only `research`, and eve only `main`."""
    made = Configuration(
        agents={
            "main": AgentConfig("main"),
            "research": AgentConfig("research", title="Researcher", description="Finds things."),
        },
        routes=(
            RouteConfig("research", skill="dig"),
            RouteConfig("research", context="lab-*"),
            RouteConfig("research", peer="bob"),
            RouteConfig("main", tenant="ops"),
        ),
        peers={
            "ann": peer_config("ann"),
            "bob": peer_config("bob", agents=("research",)),
            "eve": peer_config("eve", agents=("main",)),
        },
    )
    return replace(made, **changes)


def peer_config(name: str, **more: Any) -> PeerConfig:
    return PeerConfig(name, token=SecretStr(TOKENS[name]), **more)


@asynccontextmanager
async def agents_bridge(
    settings: Settings, configuration: Configuration, agents: Agents
) -> AsyncIterator[Bridge]:
    bridge = Bridge(settings, configuration=configuration, open_transport=agents.open)
    async with asyncio.timeout(60), bridge:
        yield bridge


def without(configuration: Configuration, name: str) -> Configuration:
    """The configuration without an agent and its routes."""
    left: Mapping[str, AgentConfig] = {k: v for k, v in configuration.agents.items() if k != name}
    routes = tuple(route for route in configuration.routes if route.agent != name)
    return replace(configuration, agents=left, routes=routes)
