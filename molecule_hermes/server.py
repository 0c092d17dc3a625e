"""The composition root: one lifetime that opens and closes everything."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Self
from urllib.parse import urlsplit

import uvicorn
from a2a.server.agent_execution import RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from molecule_hermes import __version__, event_flow
from molecule_hermes.addresses import PublicOnly
from molecule_hermes.card import build_card
from molecule_hermes.config import Settings, is_loopback
from molecule_hermes.conversations import Conversations
from molecule_hermes.errors import StartError
from molecule_hermes.executor import HermesAgentProxyExecutor
from molecule_hermes.guards import BodyGuard, HostGuard, LineGuard, PeerTokens, refuse_peer
from molecule_hermes.handler import BridgeRequestHandler, StoredContextBuilder
from molecule_hermes.health import Check, Health
from molecule_hermes.metrics import CONTENT_TYPE, CountResponses, Metrics
from molecule_hermes.parts import executor_parts
from molecule_hermes.ports import cannot_listen
from molecule_hermes.push import PushConfigs, PushSender
from molecule_hermes.retries import Retries
from molecule_hermes.store import Store, open_store
from molecule_hermes.transports.base import Transport

__all__ = ["Bridge"]

logger = logging.getLogger(__name__)

PROBES = ("/livez", "/readyz", "/startupz", "/healthz")
_SHUTDOWN = 5
_KEEP_ALIVE = 75
"""Seconds, more than clients keep a connection (httpx 5, aiohttp 15): who closes it while the other
sends a message on it loses that message."""
_MAX_HEAD = 2**19
"""More than one read from the socket, which may end in the middle of a head."""


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
        self._retries = Retries(settings.retry_window)
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with self._stack:
            listener = self._stack.enter_context(_listen(self._settings))
            self.local_url = _url(self._settings.host, listener.getsockname()[1])
            self.url = self._settings.public_url or self._reachable_url()
            store = await self._stack.enter_async_context(
                open_store(self._settings, on_lost=self._give_up)
            )
            self.health.add("store", store.check)
            for sent in store.messages:
                age = max(0.0, time.time() - sent.at)
                self._retries.recall(*sent[:4], age)
            await self._stack.enter_async_context(self._transport)
            push = PushSender(
                PushConfigs(store.push_configs), PublicOnly(self._settings.push_hosts)
            )
            await self._stack.enter_async_context(push)
            await self._stack.enter_async_context(_Served(self._app(store, push), listener))
            push.announce(store.interrupted)
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

    def _app(self, store: Store, push: PushSender) -> ASGIApp:
        settings = self._settings
        event_flow.install(settings.max_events, self.metrics.subscriber_dropped)
        parts = executor_parts(settings, self._transport)
        self._executor = HermesAgentProxyExecutor(self._transport, **parts, metrics=self.metrics)
        self._watch(parts["conversations"], push)
        features = self._transport.features
        card = build_card(settings, self.url, features, demo=self._demo, warnings=self._warnings)
        handler = BridgeRequestHandler(
            self._executor,
            store.tasks,
            card,
            request_context_builder=StoredContextBuilder(store.tasks, self._retries),
            push_config_store=push.configs,
            push_sender=push,
            push_url_validator=push.accepts,
        )
        self.metrics.watch(
            "active_tasks", "Tasks in memory: they run, or are followed", lambda: handler.active
        )
        self._stack.push_async_callback(handler.aclose)
        rpc_paths = _rpc_paths(self.url)
        routes: list[BaseRoute] = [*create_agent_card_routes(card), *self._probes()]
        routes.append(Route("/metrics", self._figures))
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
        for guard, args, more in reversed(self._guards(rpc_paths)):
            app = guard(app, *args, **more)
        return app

    def _guards(self, rpc_paths: list[str]) -> list[Middleware]:
        settings = self._settings
        guards = [
            Middleware(CountResponses, metrics=self.metrics),
            Middleware(
                AuthenticationMiddleware,
                backend=PeerTokens(settings.peer_tokens, {AGENT_CARD_WELL_KNOWN_PATH, *PROBES}),
                on_error=refuse_peer,
            ),
            Middleware(LineGuard),
            Middleware(BodyGuard, limit=settings.max_body, rpc_paths=frozenset(rpc_paths)),
        ]
        if not settings.peer_tokens and is_loopback(settings.host):
            hosts = {"localhost", "127.0.0.1", "::1", settings.host.strip("[]")}
            hosts |= {urlsplit(self.url).hostname or ""}
            guards.insert(1, Middleware(HostGuard, hosts=frozenset(hosts)))
        return guards

    def _probes(self) -> list[Route]:
        async def live(request: Request) -> JSONResponse:
            return JSONResponse({"live": True, "version": __version__})

        async def ready(request: Request) -> JSONResponse:
            report = await self.health.ready()
            body = report.as_dict() | ({"warnings": self._warnings} if self._warnings else {})
            return JSONResponse(body, 200 if report.ready else 503)

        async def startup(request: Request) -> JSONResponse:
            if not self.health.started:
                return await ready(request)
            return JSONResponse({"started": True})

        endpoints = {"/livez": live, "/readyz": ready, "/startupz": startup, "/healthz": ready}
        return [Route(path, endpoint) for path, endpoint in endpoints.items()]

    async def _give_up(self, task_id: str) -> None:
        """Stops a turn that nobody hears any more, because its task could not be stored."""
        self._retries.release(task_id)
        context = RequestContext(ServerCallContext(), task_id=task_id)
        await self._executor.cancel(context, event_flow.EventFlow())

    async def _figures(self, request: Request) -> Response:
        """Not among the open paths: with peer tokens it takes one."""
        return Response(self.metrics.text(), media_type=CONTENT_TYPE)

    def _watch(self, line: Conversations, push: PushSender) -> None:
        executor, transport = self._executor, self._transport
        watch = self.metrics.watch
        watch("running_turns", "Turns that run", lambda: line.running)
        watch("waiting_turns", "Turns that wait for their turn", lambda: line.waiting)
        watch("waiting_bytes", "Text and files of turns that wait", lambda: line.waiting_bytes)
        watch("open_questions", "Questions to peers without an answer", lambda: executor.questions)
        watch("pending_replies", "Turns that wait for Hermes", lambda: transport.pending)
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


def _listen(settings: Settings) -> socket.socket:
    """Binds before anything else starts, so that a clash of ports is told by name."""
    host = settings.host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
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


class _Served:
    """uvicorn for the life of an `async with`, leaving signals to whoever runs the process."""

    def __init__(self, app: ASGIApp, listener: socket.socket) -> None:
        config = uvicorn.Config(
            app,
            interface="asgi3",
            http=_BoundedHead,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=2 * _SHUTDOWN,
            server_header=False,
        )
        self._server = _QuietServer(config)
        self._listener = listener
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._server.serve([self._listener]), name="uvicorn")
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise StartError("the HTTP server did not start")
            await asyncio.sleep(0.01)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=_SHUTDOWN)
            for connection in list(self._server.server_state.connections):
                # Its peer does not read. uvicorn would cancel the request, with a stack trace.
                connection.transport.abort()
            await self._task


class _BoundedHead(HttpToolsProtocol):
    """Refuses a request whose headers do not end.

    httptools collects them without limit, and ever more slowly: measured, one connection without a
    token stalls all others.
    """

    _head: int | None = None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head is not None:
            self._head += len(data)
            if self._head > _MAX_HEAD and not self.transport.is_closing():
                self.send_400_response("The request's headers are too large.")

    def on_message_begin(self) -> None:
        self._head = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head = None
        super().on_headers_complete()


class _QuietServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
