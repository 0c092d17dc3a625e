"""The agents of a bridge: how each is reached, and what handles its requests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Self

from a2a.types import AgentCard

from molecule_hermes.config import AgentConfig
from molecule_hermes.executor import HermesAgentProxyExecutor
from molecule_hermes.protocol.request_handler import BridgeRequestHandler
from molecule_hermes.transports.base import Transport

__all__ = ["Agent", "BuildAgent", "OpenTransport", "Roster"]

logger = logging.getLogger(__name__)


class Agent:
    """An agent with an open transport."""

    def __init__(
        self,
        config: AgentConfig,
        transport: Transport,
        executor: HermesAgentProxyExecutor,
        handler: BridgeRequestHandler,
    ) -> None:
        self.config = config
        self.transport = transport
        self.executor = executor
        self.handler = handler
        self.closing = False
        self.closed = asyncio.Event()
        self._users = 0
        self._free = asyncio.Event()
        self._free.set()

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def card(self) -> AgentCard:
        return self.handler.card

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Within it, the agent stays open."""
        self._users += 1
        self._free.clear()
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._free.set()

    async def unused(self) -> None:
        """Returns when nobody uses the agent and no turn of it is left."""
        while self._users or self.executor.turns:
            await self._free.wait()
            await self.executor.idle()

    async def aclose(self) -> None:
        self.closing = True
        try:
            await self.handler.aclose()
        finally:
            try:
                await self.transport.__aexit__(None, None, None)
            finally:
                self.closed.set()


OpenTransport = Callable[[AgentConfig], Transport]
"""Makes the transport of an agent. The roster enters it, and leaves it after the last turn."""
BuildAgent = Callable[[AgentConfig, Transport], Agent]


class Roster:
    """An async context manager. On exit, it closes all agents; their turns have ended by then."""

    def __init__(self, open_transport: OpenTransport, build: BuildAgent) -> None:
        self._open_transport = open_transport
        self._build = build
        self._agents: Mapping[str, Agent] = {}
        self._leaving: dict[str, Agent] = {}
        """Agents that are no longer configured, but whose turns have not all ended."""
        self._retiring: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        agents = self.all
        self._agents, self._leaving = {}, {}
        async with contextlib.AsyncExitStack() as stack:
            for agent in agents:
                stack.push_async_callback(agent.closed.wait if agent.closing else agent.aclose)
        for task in self._retiring:
            task.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)

    def __getitem__(self, name: str) -> Agent:
        return self._agents[name]

    @property
    def agents(self) -> Mapping[str, Agent]:
        """Those that are configured."""
        return self._agents

    @property
    def all(self) -> Sequence[Agent]:
        """Also those whose last turns are ending."""
        return [*self._agents.values(), *self._leaving.values()]

    @property
    def turns(self) -> int:
        return sum(agent.executor.turns for agent in self.all)

    def executor_of(self, name: str) -> HermesAgentProxyExecutor | None:
        agent = self._agents.get(name) or self._leaving.get(name)
        return agent.executor if agent is not None else None

    async def drain(self, timeout: float, *, leave: bool = False) -> None:
        """Drains the executors of all agents at once."""
        drains = (agent.executor.drain(timeout, leave=leave) for agent in self.all)
        await asyncio.gather(*drains)

    async def change(self, configs: Mapping[str, AgentConfig]) -> None:
        """Makes these the agents. Opens those that are new; the others keep what they have. An
        agent that is not among them ends its turns, and is closed then.

        If an agent cannot be opened, nothing changes, and the error is raised.
        """
        agents: dict[str, Agent] = {}
        async with contextlib.AsyncExitStack() as opened:
            with contextlib.ExitStack() as held:
                for name, config in configs.items():
                    agents[name] = await self._kept_or_opened(config, opened, held)
                opened.pop_all()
                self._switch(agents, configs)

    async def _kept_or_opened(
        self,
        config: AgentConfig,
        opened: contextlib.AsyncExitStack,
        held: contextlib.ExitStack,
    ) -> Agent:
        if agent := self._agents.get(config.name):
            return agent
        leaving = self._leaving.get(config.name)
        if leaving is not None and not leaving.closing:
            # There must not be a second executor for the tasks of the turns that are still running.
            held.enter_context(leaving.in_use())
            return leaving
        if leaving is not None:
            await leaving.closed.wait()
        transport = self._open_transport(config)
        await transport.__aenter__()
        try:
            agent = self._build(config, transport)
        except BaseException:
            await transport.__aexit__(None, None, None)
            raise
        opened.push_async_callback(agent.aclose)
        return agent

    def _switch(self, agents: Mapping[str, Agent], configs: Mapping[str, AgentConfig]) -> None:
        """Does not wait for anything, so that no request sees a part of the change."""
        gone = [agent for name, agent in self._agents.items() if name not in agents]
        self._agents = agents
        for name, agent in agents.items():
            if self._leaving.get(name) is agent:
                del self._leaving[name]
            if agent.config.hermes != configs[name].hermes:
                logger.warning(
                    "agent %s still uses the Hermes that it was started with; restart the bridge "
                    "to change that",
                    name,
                )
            agent.config = configs[name]
        for agent in gone:
            self._leaving[agent.name] = agent
            task = asyncio.create_task(self._retire(agent), name=f"retire:{agent.name}")
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    async def _retire(self, agent: Agent) -> None:
        await agent.unused()
        if self._leaving.get(agent.name) is not agent or agent.closing:
            return  # it is configured again
        try:
            await agent.aclose()
        except Exception:
            logger.exception("agent %s could not be closed", agent.name)
        finally:
            if self._leaving.get(agent.name) is agent:
                del self._leaving[agent.name]
        logger.info("agent %s is closed", agent.name)
