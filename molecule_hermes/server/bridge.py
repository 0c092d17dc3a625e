"""The composition root: one lifetime that opens and closes everything."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection
from starlette.routing import Route
from starlette.types import ASGIApp

from molecule_hermes.agents.outbound import PeerAgentChannel
from molecule_hermes.agents.policies import delivery_policy
from molecule_hermes.agents.request_handler import Chooses, RoutingRequestHandler
from molecule_hermes.agents.roster import Agent, OpenTransport, Roster
from molecule_hermes.agents.routes import Routes
from molecule_hermes.config import AgentConfig, Configuration, Settings, with_peers
from molecule_hermes.errors import StartError
from molecule_hermes.net.addresses import PublicOnly
from molecule_hermes.net.ports import bind, socket_family
from molecule_hermes.net.urls import base_url
from molecule_hermes.protocol.channels import Channel, WebhookChannel
from molecule_hermes.protocol.deliveries import Deliveries, DeliveryLimits
from molecule_hermes.protocol.recovery import Recovery
from molecule_hermes.protocol.task_log import TaskLog
from molecule_hermes.protocol.task_registry import TaskRegistry
from molecule_hermes.protocol.webhooks import PushConfigs, PushSender
from molecule_hermes.server.agent_factory import AgentFactory
from molecule_hermes.server.app import CurrentApp, create_app, create_overload_app
from molecule_hermes.server.assembly import create_calls, create_scheduler, running_of_peer
from molecule_hermes.server.connections import ConnectionTable, default_limit, open_files_limit
from molecule_hermes.server.conversations import Conversations
from molecule_hermes.server.deliveries import DeliveryFeed, delivery_endpoint
from molecule_hermes.server.error_responses import shorten_sdk_logs
from molecule_hermes.server.handoffs import create_handoffs
from molecule_hermes.server.health import Check, Health, probe_routes
from molecule_hermes.server.http import HttpServer, Listener
from molecule_hermes.server.middleware import PeerTokens, is_local
from molecule_hermes.server.operator import OperatorAccess
from molecule_hermes.server.resumes import Resumes
from molecule_hermes.server.task_endings import TaskEndings
from molecule_hermes.storage.opening import OpenStore, open_store
from molecule_hermes.storage.quota import StorageQuota
from molecule_hermes.telemetry.metrics import Metrics
from molecule_hermes.transports.base import Transport
from molecule_hermes.turns.features import Feature
from molecule_hermes.turns.idempotency import IdempotencyIndex

__all__ = ["Bridge"]

logger = logging.getLogger(__name__)


class Bridge:
    """The A2A server with its agents: `async with Bridge(settings, transport) as bridge`.

    The server accepts requests at `bridge.url` until the block is left; then it drains its turns.
    """

    def __init__(
        self,
        settings: Settings,
        transport: Transport | None = None,
        *,
        configuration: Configuration | None = None,
        open_transport: OpenTransport | None = None,
        demo: bool = False,
        checks: Mapping[str, Check] | None = None,
        warnings: Sequence[str] = (),
    ) -> None:
        """`transport` is that of the only agent. With several agents in the `configuration`,
        `open_transport` makes one for each, also for those that `reload` adds."""
        self._own_settings = settings
        self._configuration = configuration or Configuration()
        self._settings = with_peers(settings, self._configuration)
        self._settings.require_safe_exposure()
        self._demo = demo
        self._warnings = list(warnings)
        self.health = Health({"hermes": self._check_default, **(checks or {})})
        self.metrics = Metrics()
        self.metrics.watch("demo_model", "1 if the demo model answers, else 0", lambda: demo)
        self.hasten = asyncio.Event()
        """Set to cut the drain short."""
        self.url = ""
        """The URL that peers call, as on the card."""
        self.local_url = ""
        """The URL of the listening socket."""
        self.roster = Roster(open_transport or _only(transport), self._build)
        """The agents."""
        self._idempotency = IdempotencyIndex(settings.retry_window)
        self._peer_tokens = PeerTokens(self._settings.peer_tokens)
        self._scheduler = create_scheduler(self._settings)
        self._peer_webhooks = WebhookChannel()
        self.channels: dict[str, Channel] = {"webhook": self._peer_webhooks}
        """How deliveries reach peers besides the webhooks that these register. Those that are added
        before the bridge opens also get what an earlier bridge could not tell."""
        self._reloading = asyncio.Lock()
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with self._stack as stack:
            listener = stack.enter_context(_listen(self._settings))
            self.local_url = base_url(self._settings.host, listener.getsockname()[1])
            self.url = self._settings.public_url or self._reachable_url()
            await self._open(stack, listener)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def _open(self, stack: contextlib.AsyncExitStack, listener: Listener) -> None:
        """Enters each part after those that it uses; the stack closes them in reverse order."""
        store = await stack.enter_async_context(open_store(self._settings))
        self._recall_messages(store)
        self.calls = create_calls(self._settings, self.metrics)
        await stack.enter_async_context(self.calls)
        self.channels["agent"] = PeerAgentChannel(self.calls)
        configs = PushConfigs(store.tasks.push_configs)
        push = PushSender(configs, PublicOnly(self._settings.push_hosts))
        await stack.enter_async_context(push)
        endings = TaskEndings(self.roster.executor_of, self._idempotency)
        await stack.enter_async_context(endings)
        tasks = self._create_registry(store, push, endings)
        await stack.enter_async_context(tasks)
        self._create_deliveries(store, tasks, push)
        self.health.add("store", tasks.check)
        self._factory = self._create_factory(store, tasks, push)
        await stack.enter_async_context(self.roster)
        await self.roster.change(self._configuration.agents)
        self._handler = RoutingRequestHandler(self.roster, tasks, Routes(self._configuration))
        self._apply(self._settings, self._configuration)
        held = Conversations(self.roster, tasks, self._scheduler, self._known)
        handoffs = create_handoffs(
            self._settings, self.roster, tasks, push, conversations=held, known=self._known
        )
        await handoffs.recall()
        recovery = Recovery(tasks, self.roster.executor_of, push)
        self._take_deliveries()
        await recovery.take_over(store.unfinished)
        await stack.enter_async_context(handoffs)
        handoffs.follow(self._settings.home, self._settings.handoff_to)
        self._deliveries.open()
        self.health.add("turns", recovery.check)
        self._watch(tasks, push)
        self._operator = OperatorAccess(self._settings, handoffs, Resumes(held))
        await stack.enter_async_context(self._create_server(listener))
        stack.enter_context(self._operator.published(self.local_url))
        stack.push_async_callback(self._drain)

    def _known(self) -> tuple[Collection[str], Chooses]:
        """The peers and the routes as they are now."""
        return self._settings.peer_tokens, self._handler.routes

    async def reload(self, configuration: Configuration) -> None:
        """Takes a new configuration. Turns that run keep what they began with.

        If it cannot be taken, the one before stays, and the error is raised.
        """
        async with self._reloading:
            settings = with_peers(self._own_settings, configuration)
            settings.require_safe_exposure()
            await self.roster.change(configuration.agents)
            self._apply(settings, configuration)
            self._take_deliveries()
            self._app.app = self._create_app()
            self._feed.end_all()

    def _apply(self, settings: Settings, configuration: Configuration) -> None:
        """Does not wait for anything, so that no request sees a part of the change."""
        self._settings, self._configuration = settings, configuration
        self._peer_tokens = PeerTokens(settings.peer_tokens)
        self._handler.routes = Routes(configuration)
        self._deliveries.allows = delivery_policy(configuration, settings)
        self._peer_webhooks.webhooks = {
            name: peer.webhook for name, peer in configuration.peers.items() if peer.webhook
        }
        self.calls.configure(configuration)
        self._scheduler.limit(
            {name: agent.limits for name, agent in configuration.agents.items()},
            {name: peer.limits for name, peer in configuration.peers.items()},
            max_running_of_peer=running_of_peer(settings),
        )
        for agent in self.roster.agents.values():
            self._factory.configure(agent, configuration, settings)

    @property
    def turns(self) -> int:
        """Turns that have not ended."""
        return self.roster.turns

    @property
    def known_messages(self) -> int:
        """Messages that are recognized when a peer sends them again."""
        return len(self._idempotency)

    def _reachable_url(self) -> str:
        """The local URL, with the host's name in place of an unspecified address."""
        if self._settings.host.strip("[]") not in ("0.0.0.0", "::"):  # noqa: S104 - compared only
            return self.local_url
        url = base_url(socket.gethostname(), urlsplit(self.local_url).port or 0)
        logger.warning(
            "the agent card says %s; set MOLECULE_HERMES_PUBLIC_URL if peers use another URL", url
        )
        return url

    def _recall_messages(self, store: OpenStore) -> None:
        for sent in store.messages:
            age = max(0.0, time.time() - sent.at)
            ids = (sent.owner, sent.context_id, sent.message_id)
            self._idempotency.recall(*ids, sent.task_id, digest=sent.digest, age=age)

    async def _check_default(self) -> None:
        await self.roster[self._configuration.default].transport.check()

    def _build(self, config: AgentConfig, transport: Transport) -> Agent:
        return self._factory.build(config, transport)

    def _create_factory(
        self, store: OpenStore, tasks: TaskRegistry, push: PushSender
    ) -> AgentFactory:
        settings = self._settings
        return AgentFactory(
            settings,
            self.url,
            tasks,
            push,
            self._create_quota(store),
            self._scheduler,
            self._idempotency,
            self.metrics,
            demo=self._demo,
            warnings=self._warnings,
            calls=self.calls,
        )

    def _create_deliveries(self, store: OpenStore, tasks: TaskRegistry, push: PushSender) -> None:
        settings = self._settings
        self._deliveries = Deliveries(
            tasks,
            self.roster.executor_of,
            push,
            limits=DeliveryLimits(
                settings.max_deliveries,
                settings.max_deliveries_of_peer,
                settings.max_deliveries_per_hour,
            ),
            shares=self._share_hermes,
            quota=self._create_quota(store),
            turn_timeout=settings.turn_timeout,
            metrics=self.metrics,
        )
        self._deliveries.recall(store.unfinished)
        self._feed = DeliveryFeed(tasks)
        tasks.delivery_changed = self._feed.changed
        push.channels = self.channels

    def _take_deliveries(self) -> None:
        """No Hermes may hear that deliveries are refused while the bridge starts."""
        for name, agent in self.roster.agents.items():
            agent.transport.take_deliveries(self._deliveries.of_agent(name))

    def _share_hermes(self, name: str, other: str) -> bool:
        """Whether two agents are profiles of one Hermes."""
        agents = self.roster.agents
        found = [agents[each].config.hermes for each in (name, other) if each in agents]
        urls = [hermes.plugin for hermes in found if hermes is not None]
        return len(urls) == 2 and bool(urls[0]) and urls[0] == urls[1]

    def _create_quota(self, store: OpenStore) -> StorageQuota:
        settings = self._settings
        return StorageQuota(store.stored, settings.max_stored_bytes_of_peer, settings.keep_days)

    def _create_registry(
        self, store: OpenStore, push: PushSender, endings: TaskEndings
    ) -> TaskRegistry:
        def ended(log: TaskLog) -> None:
            endings.task_ended(log)
            self._deliveries.task_ended(log)

        return TaskRegistry(
            store.tasks,
            push.notify,
            store.stored,
            checkpoint=self._settings.checkpoint,
            check=store.tasks.check,
            on_end=ended,
        )

    def _create_server(self, listener: Listener) -> HttpServer:
        shorten_sdk_logs()
        table = self._create_connection_table()
        overload = create_overload_app(
            self._settings, self.url, probes=self._probes(), metrics=self.metrics
        )
        self._app = CurrentApp(self._create_app())
        return HttpServer(
            self._app,
            overload,
            listener,
            table,
            self.metrics.connection_closed,
            # The whole backlog is accepted at once, before any connection can be closed for it.
            backlog=min(2048, max(16, table.limit // 4)),
        )

    def _create_app(self) -> ASGIApp:
        agents = self.roster.agents
        default = agents[self._configuration.default]
        return create_app(
            self._settings,
            self.url,
            self._factory.root_card(default, self._settings),
            self._handler,
            agents={name: agent.card for name, agent in agents.items()},
            probes=self._probes(),
            operator=self._operator.routes,
            peer_tokens=self._peer_tokens,
            metrics=self.metrics,
            deliveries=delivery_endpoint(self._feed, self._handler, self._delivers),
        )

    def _delivers(self, name: str) -> bool:
        """Whether the agent can make deliveries."""
        agent = self.roster.agents.get(name)
        return (
            agent is not None
            and Feature.DELIVERIES in agent.transport.features
            and self._deliveries.allows(name, None)
        )

    def _probes(self) -> list[Route]:
        return probe_routes(self.health, self._warnings, self._may_see_addresses, demo=self._demo)

    def _create_connection_table(self) -> ConnectionTable[Any]:
        limit = self._settings.max_connections or default_limit()
        if limit >= open_files_limit():
            logger.warning(
                "MOLECULE_HERMES_MAX_CONNECTIONS=%d is not below the number of files that this "
                "process may open (%d); raise that number (ulimit -n)",
                limit,
                open_files_limit(),
            )
        of_address = self._settings.max_connections_of_address or max(1, limit // 2)
        table = ConnectionTable[Any](limit, of_address)
        self.metrics.watch("open_connections", "Connections that are open", lambda: len(table))
        return table

    def _may_see_addresses(self, conn: HTTPConnection) -> bool:
        """Whether a caller may read internal addresses and paths."""
        return self._peer_tokens.peer_of(conn) is not None or is_local(conn)

    def _watch(self, tasks: TaskRegistry, push: PushSender) -> None:
        watch, scheduler, roster = self.metrics.watch, self._scheduler, self.roster

        def questions() -> int:
            return sum(agent.executor.questions for agent in roster.all)

        def pending() -> int:
            return sum(agent.transport.pending for agent in roster.all)

        watch("running_turns", "Turns that run", lambda: scheduler.running)
        watch("waiting_turns", "Turns that wait for their turn", lambda: scheduler.waiting)
        watch("waiting_bytes", "Text and files of waiting turns", lambda: scheduler.waiting_bytes)
        watch("stored_bytes", "Bytes of stored tasks", lambda: tasks.stored.total)
        watch("active_tasks", "Tasks that run, or are followed", lambda: len(tasks))
        watch("open_questions", "Questions to peers without an answer", questions)
        watch("pending_replies", "Turns that Hermes has not ended", pending)
        watch("waiting_pushes", "Push notifications on their way", lambda: push.waiting)
        deliveries, feed = self._deliveries, self._feed
        watch("open_deliveries", "Deliveries without an end", lambda: deliveries.unfinished)
        watch("delivery_subscribers", "Clients that follow deliveries", lambda: len(feed))
        watch("waiting_calls", "Calls that wait for other agents", lambda: self.calls.running)
        watch("failed_pushes", "Push notifications given up so far", lambda: push.failed)

    async def _drain(self) -> None:
        self.health.draining = True
        self._deliveries.close()
        self._feed.close()
        leave = self._settings.keep_worker
        timeout = self._settings.drain_timeout
        draining = asyncio.create_task(self.roster.drain(timeout, leave=leave))
        hastened = asyncio.create_task(self.hasten.wait())
        await asyncio.wait({draining, hastened}, return_when=asyncio.FIRST_COMPLETED)
        hastened.cancel()
        if not draining.done():
            draining.cancel()
            await asyncio.gather(draining, return_exceptions=True)
            await self.roster.drain(0, leave=leave)


def _only(transport: Transport | None) -> OpenTransport:
    """For a bridge with one agent."""
    left = [transport] if transport is not None else []

    def take(config: AgentConfig) -> Transport:
        if not left:
            raise StartError(
                f"there is no Hermes for the agent {config.name}",
                "give the bridge open_transport",
            )
        return left.pop()

    return take


def _listen(settings: Settings) -> Listener:
    """Binds before anything else starts, so that a port conflict is reported first."""
    host = settings.host.strip("[]")
    listener = Listener(socket_family(host), socket.SOCK_STREAM)
    bind(listener, host, settings.port, "MOLECULE_HERMES_PORT", "8001")
    return listener
