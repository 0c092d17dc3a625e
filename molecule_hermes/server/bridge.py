"""The composition root: one lifetime that opens and closes everything."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from molecule_hermes.config import Settings
from molecule_hermes.executor import HermesAgentProxyExecutor
from molecule_hermes.net.addresses import PublicOnly
from molecule_hermes.net.ports import bind, socket_family
from molecule_hermes.net.urls import base_url
from molecule_hermes.protocol.card import build_card
from molecule_hermes.protocol.message_handler import MessageRequestHandler
from molecule_hermes.protocol.recovery import Recovery
from molecule_hermes.protocol.request_handler import BridgeRequestHandler
from molecule_hermes.protocol.schema_process import SchemaProcesses
from molecule_hermes.protocol.task_registry import TaskRegistry
from molecule_hermes.protocol.webhooks import PushConfigs, PushSender
from molecule_hermes.server.app import create_app, create_overload_app
from molecule_hermes.server.assembly import executor_options
from molecule_hermes.server.connections import ConnectionTable, default_limit, open_files_limit
from molecule_hermes.server.error_responses import shorten_sdk_logs
from molecule_hermes.server.health import Check, Health, probe_routes
from molecule_hermes.server.http import HttpServer, Listener
from molecule_hermes.server.middleware import PeerTokens, is_local
from molecule_hermes.server.task_endings import TaskEndings
from molecule_hermes.storage.opening import OpenStore, open_store
from molecule_hermes.storage.quota import StorageQuota
from molecule_hermes.telemetry.metrics import Metrics
from molecule_hermes.transports.base import Transport
from molecule_hermes.turns.features import Feature, why_not
from molecule_hermes.turns.idempotency import IdempotencyIndex
from molecule_hermes.turns.scheduler import Scheduler

__all__ = ["Bridge"]

logger = logging.getLogger(__name__)


class Bridge:
    """The A2A server with its executor: `async with Bridge(settings, transport) as bridge`.

    The server accepts requests at `bridge.url` until the block is left; then it drains its turns.
    """

    def __init__(
        self,
        settings: Settings,
        transport: Transport,
        *,
        demo: bool = False,
        checks: Mapping[str, Check] | None = None,
        warnings: Sequence[str] = (),
    ) -> None:
        settings.require_safe_exposure()
        self._settings = settings
        self._transport = transport
        self._demo = demo
        self._warnings = list(warnings)
        self.health = Health({"hermes": transport.check, **(checks or {})})
        self.metrics = Metrics()
        self.metrics.watch("demo_model", "1 if the demo model answers, else 0", lambda: demo)
        self.hasten = asyncio.Event()
        """Set to cut the drain short."""
        self.url = ""
        """The URL that peers call, as on the card."""
        self.local_url = ""
        """The URL of the listening socket."""
        self._idempotency = IdempotencyIndex(settings.retry_window)
        self._schemas = SchemaProcesses()
        self._peer_tokens = PeerTokens(settings.peer_tokens)
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
        await stack.enter_async_context(self._transport)
        configs = PushConfigs(store.tasks.push_configs)
        push = PushSender(configs, PublicOnly(self._settings.push_hosts))
        await stack.enter_async_context(push)
        quota = self._quota(store)
        self._executor = self._create_executor(quota)
        endings = TaskEndings(self._executor, self._idempotency)
        await stack.enter_async_context(endings)
        tasks = self._create_registry(store, push, endings)
        await stack.enter_async_context(tasks)
        self.health.add("store", tasks.check)
        recovery = Recovery(tasks, self._executor, push)
        await recovery.take_over(store.unfinished)
        self.health.add("turns", recovery.check)
        handler = self._create_handler(tasks, push, quota)
        stack.push_async_callback(handler.aclose)
        await stack.enter_async_context(self._create_server(handler, listener))
        stack.push_async_callback(self._drain)

    @property
    def turns(self) -> int:
        """Turns that have not ended."""
        return self._executor.turns

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

    def _quota(self, store: OpenStore) -> StorageQuota:
        settings = self._settings
        self.metrics.watch("stored_bytes", "Bytes of stored tasks", lambda: store.stored.total)
        return StorageQuota(store.stored, settings.max_stored_bytes_of_peer, settings.keep_days)

    def _create_executor(self, quota: StorageQuota) -> HermesAgentProxyExecutor:
        options = executor_options(self._settings, self._transport)
        self._watch_scheduler(options["scheduler"])
        return HermesAgentProxyExecutor(
            self._transport,
            **options,
            metrics=self.metrics,
            admit=quota.admit,
            schemas=self._schemas,
        )

    def _create_registry(
        self, store: OpenStore, push: PushSender, endings: TaskEndings
    ) -> TaskRegistry:
        return TaskRegistry(
            store.tasks,
            push.notify,
            store.stored,
            checkpoint=self._settings.checkpoint,
            check=store.tasks.check,
            on_end=endings.task_ended,
        )

    def _create_handler(
        self, tasks: TaskRegistry, push: PushSender, quota: StorageQuota
    ) -> BridgeRequestHandler:
        settings, features = self._settings, self._transport.features
        card = build_card(settings, self.url, features, demo=self._demo, warnings=self._warnings)
        as_message = settings.reply == "message"
        handler = (MessageRequestHandler if as_message else BridgeRequestHandler)(
            self._executor,
            tasks,
            card,
            push,
            idempotency=self._idempotency,
            quota=quota,
            max_events=settings.max_events,
            no_steering="" if Feature.STEERING in features else why_not(Feature.STEERING, "chat"),
            metrics=self.metrics,
            schemas=self._schemas,
        )
        self._watch_turns(push, handler)
        return handler

    def _create_server(self, handler: BridgeRequestHandler, listener: Listener) -> HttpServer:
        shorten_sdk_logs()
        settings, metrics = self._settings, self.metrics
        table = self._create_connection_table()
        probes = probe_routes(self.health, self._warnings, self._may_see_addresses, demo=self._demo)
        app = create_app(
            settings,
            self.url,
            handler.card,
            handler,
            probes=probes,
            peer_tokens=self._peer_tokens,
            metrics=metrics,
        )
        return HttpServer(
            app,
            create_overload_app(settings, self.url, probes=probes, metrics=metrics),
            listener,
            table,
            metrics.connection_closed,
            # The whole backlog is accepted at once, before any connection can be closed for it.
            backlog=min(2048, max(16, table.limit // 4)),
        )

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

    def _watch_scheduler(self, scheduler: Scheduler) -> None:
        watch = self.metrics.watch
        watch("running_turns", "Turns that run", lambda: scheduler.running)
        watch("waiting_turns", "Turns that wait for their turn", lambda: scheduler.waiting)
        watch("waiting_bytes", "Text and files of waiting turns", lambda: scheduler.waiting_bytes)

    def _watch_turns(self, push: PushSender, handler: BridgeRequestHandler) -> None:
        executor, transport = self._executor, self._transport
        watch = self.metrics.watch
        watch("active_tasks", "Tasks that run, or are followed", lambda: handler.active)
        watch("open_questions", "Questions to peers without an answer", lambda: executor.questions)
        watch("pending_replies", "Turns that Hermes has not ended", lambda: transport.pending)
        watch("waiting_pushes", "Push notifications on their way", lambda: push.waiting)
        watch("failed_pushes", "Push notifications given up so far", lambda: push.failed)

    async def _drain(self) -> None:
        self.health.draining = True
        leave = self._settings.keep_worker
        timeout = self._settings.drain_timeout
        draining = asyncio.create_task(self._executor.drain(timeout, leave=leave))
        hastened = asyncio.create_task(self.hasten.wait())
        await asyncio.wait({draining, hastened}, return_when=asyncio.FIRST_COMPLETED)
        hastened.cancel()
        if not draining.done():
            draining.cancel()
            await asyncio.gather(draining, return_exceptions=True)
            await self._executor.drain(0, leave=leave)


def _listen(settings: Settings) -> Listener:
    """Binds before anything else starts, so that a port conflict is reported first."""
    host = settings.host.strip("[]")
    listener = Listener(socket_family(host), socket.SOCK_STREAM)
    bind(listener, host, settings.port, "MOLECULE_HERMES_PORT", "8001")
    return listener
