"""The composition root: one lifetime that opens and closes everything."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Self
from urllib.parse import urlsplit

from a2a.server.agent_execution import RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.types import AgentCard, TaskState
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from molecule_hermes.config import Settings
from molecule_hermes.executor import HermesAgentProxyExecutor
from molecule_hermes.net.addresses import PublicOnly
from molecule_hermes.net.ports import cannot_listen
from molecule_hermes.protocol.card import build_card
from molecule_hermes.protocol.recovery import InterruptedTasks
from molecule_hermes.protocol.request_handler import BridgeRequestHandler
from molecule_hermes.protocol.task_log import TaskLog
from molecule_hermes.protocol.task_registry import TaskRegistry
from molecule_hermes.protocol.webhooks import PushConfigs, PushSender
from molecule_hermes.server.assembly import executor_options
from molecule_hermes.server.bodies import BodyGuard
from molecule_hermes.server.connections import ConnectionTable, default_limit, open_files_limit
from molecule_hermes.server.error_responses import ErrorGuard, require_v03_message, shorten_sdk_logs
from molecule_hermes.server.health import Check, Health, probe_routes
from molecule_hermes.server.http import HttpServer, Listener
from molecule_hermes.server.json_scan import JsonLimits
from molecule_hermes.server.middleware import (
    HostGuard,
    LineGuard,
    OpenRoutes,
    PeerTokens,
    is_local,
    refuse_overload,
    refuse_peer,
)
from molecule_hermes.storage.opening import Store, open_store
from molecule_hermes.storage.quota import StorageQuota
from molecule_hermes.telemetry.metrics import CONTENT_TYPE, CountResponses, Metrics
from molecule_hermes.text import is_loopback
from molecule_hermes.transports.base import Transport
from molecule_hermes.turns.idempotency import IdempotencyIndex
from molecule_hermes.turns.scheduler import Scheduler

__all__ = ["Bridge"]

logger = logging.getLogger(__name__)


class Bridge:
    """The A2A server with its executor: `async with Bridge(settings, transport) as bridge`.

    Inside, `bridge.url` answers; on exit running turns are drained.
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
        self.hasten = asyncio.Event()
        """Set to cut the drain short."""
        self.url = ""
        """Where peers reach it, as the card says."""
        self.local_url = ""
        self._idempotency = IdempotencyIndex(settings.retry_window)
        self._stopping: set[asyncio.Task[None]] = set()
        """Turns whose tasks could not be stored."""
        self._peer_tokens = PeerTokens(settings.peer_tokens)
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with self._stack:
            listener = self._stack.enter_context(_listen(self._settings))
            self.local_url = _url(self._settings.host, listener.getsockname()[1])
            self.url = self._settings.public_url or self._reachable_url()
            interrupted = InterruptedTasks()
            store = await self._stack.enter_async_context(
                open_store(self._settings, interrupted.end)
            )
            for sent in store.messages:
                age = max(0.0, time.time() - sent.at)
                self._idempotency.recall(*sent[:4], age)
            await self._stack.enter_async_context(self._transport)
            push = PushSender(
                PushConfigs(store.push_configs), PublicOnly(self._settings.push_hosts)
            )
            await self._stack.enter_async_context(push)
            tasks = await self._stack.enter_async_context(self._registry(store, push))
            self.health.add("store", tasks.check)
            await self._stack.enter_async_context(self._http_server(tasks, push, listener))
            push.announce(interrupted.events)
            self._stack.push_async_callback(self._drain)
            self._stack = self._stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    @property
    def turns(self) -> int:
        """Turns that have not ended."""
        return self._executor.turns

    def _reachable_url(self) -> str:
        """An address that means "all of them" is none that a peer could call."""
        if self._settings.host.strip("[]") not in ("0.0.0.0", "::"):  # noqa: S104 - compared only
            return self.local_url
        url = _url(socket.gethostname(), urlsplit(self.local_url).port or 0)
        logger.warning(
            "the agent card says %s; set MOLECULE_HERMES_PUBLIC_URL if peers reach it by another "
            "name",
            url,
        )
        return url

    def _registry(self, store: Store, push: PushSender) -> TaskRegistry:
        self.metrics.watch("stored_bytes", "Bytes of stored tasks", lambda: store.stored.total)
        return TaskRegistry(
            store.tasks,
            push.send_notification,
            store.stored,
            checkpoint=self._settings.checkpoint,
            check=store.check,
            on_end=self._task_ended,
        )

    def _http_server(self, tasks: TaskRegistry, push: PushSender, listener: Listener) -> HttpServer:
        settings = self._settings
        limit = settings.max_connections or default_limit()
        if limit >= open_files_limit():
            logger.warning(
                "MOLECULE_HERMES_MAX_CONNECTIONS=%d is more than the files that this process may "
                "open (%d); raise that limit (ulimit -n)",
                limit,
                open_files_limit(),
            )
        of_address = settings.max_connections_of_address or max(1, limit // 2)
        table = ConnectionTable[Any](limit, of_address)
        self.metrics.watch("open_connections", "Connections that are open", lambda: len(table))
        card, handler = self._agent(tasks, push)
        probes = probe_routes(self.health, self._warnings, self._knows)
        open_routes = [*create_agent_card_routes(card), *probes]
        return HttpServer(
            self._outermost(OpenRoutes(open_routes, self._authenticated(handler))),
            self._outermost(OpenRoutes(probes, refuse_overload)),
            listener,
            table,
            self.metrics.connection_closed,
            # What the kernel queues is accepted in one go, before anything can be closed for it.
            backlog=min(2048, max(16, limit // 4)),
        )

    def _agent(
        self, tasks: TaskRegistry, push: PushSender
    ) -> tuple[AgentCard, BridgeRequestHandler]:
        settings = self._settings
        shorten_sdk_logs()
        options = executor_options(settings, self._transport)
        quota = StorageQuota(tasks.stored, settings.max_stored_bytes_of_peer, settings.keep_days)
        self._executor = HermesAgentProxyExecutor(
            self._transport, **options, metrics=self.metrics, admit=quota.admit
        )
        features = self._transport.features
        card = build_card(settings, self.url, features, demo=self._demo, warnings=self._warnings)
        handler = BridgeRequestHandler(
            self._executor,
            tasks,
            card,
            push,
            idempotency=self._idempotency,
            quota=quota,
            max_events=settings.max_events,
            metrics=self.metrics,
        )
        self._watch(options["scheduler"], push, handler)
        self._stack.push_async_callback(handler.aclose)
        return card, handler

    def _authenticated(self, handler: BridgeRequestHandler) -> ASGIApp:
        """Everything that takes a peer's token, if there are tokens."""
        settings = self._settings
        rpc_paths = _rpc_paths(self.url)
        routes: list[BaseRoute] = [Route("/metrics", self._figures)]
        for path in rpc_paths:
            (route,) = create_jsonrpc_routes(handler, path, enable_v0_3_compat=settings.compat_v03)
            routes.append(Route(path, _Endpoint(route.endpoint), methods=["POST"]))
        for prefix in sorted({path.rstrip("/") for path in rpc_paths}, reverse=True):
            routes += create_rest_routes(
                handler, enable_v0_3_compat=settings.compat_v03, path_prefix=prefix
            )
        # Not in a Starlette, which would catch what is caught here and in uvicorn, in six frames
        # and closures more for as long as a turn runs.
        app: ASGIApp = Router(routes)
        app = BodyGuard(
            app,
            limit=settings.max_body,
            rpc_paths=frozenset(rpc_paths),
            json_limits=JsonLimits(settings.max_values, settings.max_parts),
            check=require_v03_message if settings.compat_v03 else None,
        )
        return AuthenticationMiddleware(
            LineGuard(ErrorGuard(app)), backend=self._peer_tokens, on_error=refuse_peer
        )

    def _outermost(self, app: ASGIApp) -> ASGIApp:
        settings = self._settings
        if not settings.peer_tokens and is_loopback(settings.host):
            hosts = {"localhost", "127.0.0.1", "::1", settings.host.strip("[]")}
            hosts |= {urlsplit(self.url).hostname or ""}
            app = HostGuard(app, frozenset(hosts))
        return CountResponses(app, self.metrics)

    def _knows(self, conn: HTTPConnection) -> bool:
        """Whether a caller may read internal addresses and paths."""
        return self._peer_tokens.peer_of(conn) is not None or is_local(conn)

    def _task_ended(self, log: TaskLog) -> None:
        """A message that was REJECTED never ran, and one whose task could not be stored may be
        sent again, too: nobody hears its turn any more, so it is stopped."""
        task = log.task
        if log.lost is None and task.status.state == TaskState.TASK_STATE_REJECTED:
            for message in task.history:
                self._idempotency.rejected(log.owner, task.context_id, message.message_id, task.id)
        if log.lost is not None:
            self._idempotency.release(task.id)
            context = RequestContext(ServerCallContext(), task_id=log.task.id)
            stop = asyncio.create_task(self._executor.cancel(context, log))
            self._stopping.add(stop)
            stop.add_done_callback(self._stopping.discard)

    async def _figures(self, request: Request) -> Response:
        return Response(self.metrics.text(), media_type=CONTENT_TYPE)

    def _watch(self, line: Scheduler, push: PushSender, handler: BridgeRequestHandler) -> None:
        executor, transport = self._executor, self._transport
        watch = self.metrics.watch
        watch("running_turns", "Turns that run", lambda: line.running)
        watch("waiting_turns", "Turns that wait for their turn", lambda: line.waiting)
        watch("waiting_bytes", "Text and files of turns that wait", lambda: line.waiting_bytes)
        watch("active_tasks", "Tasks that run, or are followed", lambda: handler.active)
        watch("open_questions", "Questions to peers without an answer", lambda: executor.questions)
        watch("pending_replies", "Turns that Hermes has not ended", lambda: transport.pending)
        watch("waiting_pushes", "Push notifications on their way", lambda: push.waiting)
        watch("failed_pushes", "Push notifications given up so far", lambda: push.failed)

    async def _drain(self) -> None:
        self.health.draining = True
        draining = asyncio.create_task(self._executor.drain(self._settings.drain_timeout))
        hastened = asyncio.create_task(self.hasten.wait())
        await asyncio.wait({draining, hastened}, return_when=asyncio.FIRST_COMPLETED)
        hastened.cancel()
        if not draining.done():
            draining.cancel()
            await asyncio.gather(draining, return_exceptions=True)
            await self._executor.drain(0)
        await asyncio.gather(*self._stopping, return_exceptions=True)


def _listen(settings: Settings) -> Listener:
    """Binds before anything else starts, so that a clash of ports is told by name."""
    host = settings.host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = Listener(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, settings.port))
    except OSError as error:
        listener.close()
        raise cannot_listen(error, host, settings.port, "MOLECULE_HERMES_PORT", "8001") from error
    return listener


def _url(host: str, port: int) -> str:
    host = host.strip("[]")
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _rpc_paths(url: str) -> list[str]:
    """JSON-RPC at the root and, behind a proxy that keeps it, at the path of the public URL."""
    prefix = urlsplit(url).path.rstrip("/")
    return ["/", prefix, f"{prefix}/"] if prefix else ["/"]


class _Endpoint:
    """A function that answers requests, as an application. Starlette would do the same with six
    frames more, which a turn holds for as long as it runs."""

    def __init__(self, answer: Callable[[Request], Awaitable[Response]]) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._answer(Request(scope, receive, send))
        await response(scope, receive, send)
