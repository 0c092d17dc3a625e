"""The other agents that this bridge's agents may ask, and the lifetime of what they ask."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import httpx
from a2a.types import Message

from molecule_hermes.agents.outbound.http import create_client, create_public_client
from molecule_hermes.agents.outbound.registry import Registry
from molecule_hermes.agents.outbound.remote import Remote
from molecule_hermes.agents.outbound.remote_task import RemoteTask
from molecule_hermes.agents.outbound.turn_calls import Context, OutboundTurn
from molecule_hermes.config import AgentConfig, Configuration, PeerConfig, Settings
from molecule_hermes.errors import Busy, Forbidden, TurnFailure, TurnTimeout
from molecule_hermes.net.addresses import PublicOnly
from molecule_hermes.net.resolver import SeparateResolver
from molecule_hermes.protocol.chain import Chain, Loops, agent_id
from molecule_hermes.protocol.policy import Reach
from molecule_hermes.telemetry.metrics import Metrics
from molecule_hermes.turns.outbound import Outbound, Progress, TurnCalls

__all__ = ["OutboundCalls"]

logger = logging.getLogger(__name__)

MAX_RUNNING = 64
MAX_RUNNING_OF_PEER = 16
_GIVE_UP = 10.0
"""Seconds for canceling a task that nobody waits for any more."""
_TAKEN_WITHIN = 30.0
"""Seconds for an agent to take a message that nobody waits for."""


class OutboundCalls:
    """Inside `async with`, with one HTTP client for agents of the configuration, and another one
    for those of the registry. `identity` is a secret of this bridge that outlives it."""

    def __init__(
        self,
        settings: Settings,
        identity: bytes,
        *,
        name: str = "",
        metrics: Metrics | None = None,
    ) -> None:
        """`name` is what this bridge is called in chains; without it, the identity decides."""
        self.settings = settings
        self.metrics = metrics or Metrics()
        self._key = hmac.digest(identity, b"tasks of other agents", "sha256")
        self._name = name or hmac.digest(identity, b"chain", "sha256").hex()
        self._remotes: Mapping[str, Remote] = {}
        self._configuration = Configuration()
        self._registry: Registry | None = None
        self._registry_task: asyncio.Task[None] | None = None
        self._http: httpx.AsyncClient | None = None
        self._public_http: httpx.AsyncClient | None = None
        self._left: set[asyncio.Task[Any]] = set()
        self._running = 0

    async def __aenter__(self) -> Self:
        settings = self.settings
        self._http = create_client(settings.call_timeout)
        if settings.registry:
            addresses = PublicOnly(settings.registry_hosts, SeparateResolver())
            self._public_http = create_public_client(settings.call_timeout, addresses)
            self._registry = Registry(settings, self._http, self._merge)
            self._registry_task = asyncio.create_task(self._registry.run(), name="registry")
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._registry_task is not None:
            self._registry_task.cancel()
            await asyncio.gather(self._registry_task, return_exceptions=True)
        if self._left:
            await asyncio.wait(self._left, timeout=_GIVE_UP / 2)
        for task in self._left:
            task.cancel()
        await asyncio.gather(*self._left, return_exceptions=True)
        for http in (self._http, self._public_http):
            if http is not None:
                await http.aclose()

    @property
    def running(self) -> int:
        """Calls that wait for other agents."""
        return self._running

    def configure(self, configuration: Configuration) -> None:
        """Takes the peers of a configuration. What is known of those that stay is kept."""
        if self._http is None:
            raise RuntimeError("the calls are not open")
        self._configuration = configuration
        if self._registry and not any(agent.calls for agent in configuration.agents.values()):
            logger.warning(
                "no agent may ask those of MOLECULE_HERMES_REGISTRY: name them in its `calls`"
            )
        self._merge()

    def _merge(self) -> None:
        """The peers that can be called. The configuration decides what its names mean."""
        peers = self._configuration.peers
        found = [peer for peer in peers.values() if peer.url]
        if self._registry is not None:
            own = {name.casefold() for name in (*peers, *self.settings.peer_tokens)}
            listed = self._registry.agents.values()
            found += [agent for agent in listed if agent.name.casefold() not in own]
        self._remotes = {peer.name: self._remote_of(peer) for peer in found}

    def _remote_of(self, peer: PeerConfig) -> Remote:
        known = self._remotes.get(peer.name)
        if known is not None and known.config == peer:
            return known
        http = self._public_http if peer.from_registry else self._http
        if http is None:
            raise RuntimeError("the calls are not open")
        return Remote(peer, http)

    def loops(self, agent: str) -> Loops:
        """What the agent refuses, so that agents do not call each other without end."""
        return Loops(agent_id(self._name, agent), self.settings.max_hops)

    def reach(self, agent: AgentConfig, caller: str) -> Reach:
        """The agents that the agent may ask in turns for the peer `caller`."""
        return _Reach(self, agent, caller)

    def serves(self, peer: str) -> bool:
        """Whether messages of the agent's own can be sent to the peer."""
        remote = self._remotes.get(peer)
        return remote is not None and not remote.config.from_registry

    async def send(self, peer: str, message: Message, *, agent: str) -> None:
        """Sends a message of the agent's own to a peer's URL; returns when that has taken it. The
        message may have the chain of what it comes from.

        Raises a `TurnFailure`. Whoever repeats the message has to keep its id.
        """
        remote = self._remotes.get(peer)
        if remote is None or remote.config.from_registry:
            raise Forbidden(f"peers.{peer} has no url", hint="name the agent's url there")
        chain = Chain.of(message).followed_by(self.loops(agent).agent)
        Loops(max_hops=self.settings.max_hops).refuse(chain)
        chain.mark(message)
        try:
            async with asyncio.timeout(_TAKEN_WITHIN):
                await self._sent(remote, message)
        except TimeoutError:
            raise TurnTimeout(f"the agent {peer!r} did not take the message in time") from None

    async def _sent(self, remote: Remote, message: Message) -> None:
        task = RemoteTask()
        events = remote.send(message, immediately=True)
        async with contextlib.aclosing(events):
            async for event in events:
                task.add(event)
                if task.known.is_set():
                    return

    # For the turns.

    def remote(self, peer: str) -> Remote | None:
        return self._remotes.get(peer)

    def callable_by(self, agent: AgentConfig, caller: str) -> list[Remote]:
        remotes = self._remotes.values()
        return [remote for remote in remotes if agent.may_call(remote.config, caller)]

    @contextlib.contextmanager
    def place(self, remote: Remote) -> Iterator[None]:
        """Counts a call that waits for the agent. Raises `Busy` if there are too many."""
        if remote.running >= MAX_RUNNING_OF_PEER or self.running >= MAX_RUNNING:
            raise Busy("too many calls to other agents wait at once")
        remote.running += 1
        self._running += 1
        try:
            yield
        finally:
            remote.running -= 1
            self._running -= 1

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Work that this object waits for at its end."""
        task = asyncio.create_task(work, name=name)
        self._left.add(task)
        task.add_done_callback(self._left.discard)
        return task

    def abandon(self, remote: Remote, task: RemoteTask, following: asyncio.Task[Any]) -> None:
        """Cancels the task of another agent, as soon as its id is known."""
        self.spawn(self._abandon(remote, task, following), "abandon")

    async def _abandon(
        self, remote: Remote, task: RemoteTask, following: asyncio.Task[Any]
    ) -> None:
        try:
            async with asyncio.timeout(_GIVE_UP):
                knowing = asyncio.ensure_future(task.known.wait())
                await asyncio.wait({knowing, following}, return_when=asyncio.FIRST_COMPLETED)
                knowing.cancel()
                if task.task_id and not task.ended:
                    await remote.cancel(task.task_id)
        except (TurnFailure, TimeoutError) as error:
            logger.info("a task of %s could not be canceled: %s", remote.name, error)
        finally:
            following.cancel()

    def handle(self, conversation: str, remote: Remote, task_id: str) -> str:
        """The task's name for the model. Only this conversation can use it, also after a restart
        of the bridge: agents that share a bridge share its credentials."""
        return f"{remote.name}:{task_id}:{self._seal(conversation, remote.name, task_id, remote)}"

    def opened(self, conversation: str, handle: str) -> tuple[str, str] | None:
        """The peer and the task that a handle names; None if it is not one of this
        conversation."""
        peer, _, rest = handle.partition(":")
        task_id, _, seal = rest.rpartition(":")
        expected = self._seal(conversation, peer, task_id, self._remotes.get(peer))
        return (peer, task_id) if hmac.compare_digest(seal.encode(), expected.encode()) else None

    def _seal(self, conversation: str, peer: str, task_id: str, remote: Remote | None) -> str:
        names = [conversation, peer, task_id]
        if remote is not None and remote.config.from_registry:
            # If the registry moves the name, the agent that is there now has not this task.
            names.append(remote.config.url)
        material = "".join(f"{len(name)}:{name}" for name in names)
        data = material.encode("utf-8", "surrogatepass")
        return hmac.new(self._key, data, hashlib.sha256).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class _Reach:
    calls: OutboundCalls
    agent: AgentConfig
    caller: str

    def after(self, chain: Chain) -> Outbound | None:
        has_peers = bool(self.calls.callable_by(self.agent, self.caller))
        return _Asking(self, chain) if has_peers else None


@dataclass(frozen=True, slots=True)
class _Asking:
    reach: _Reach
    chain: Chain

    def begin(self, conversation: str, progress: Progress) -> TurnCalls:
        calls, agent, caller = self.reach.calls, self.reach.agent, self.reach.caller
        context = Context(agent, caller, self.chain, calls.loops(agent.name), conversation)
        return OutboundTurn(calls, context, progress)
