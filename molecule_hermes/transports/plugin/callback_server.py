"""The endpoint for the plugin's callbacks: authenticates, parses and passes them on."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from aiohttp import web

from molecule_hermes.net.ports import cannot_listen
from molecule_hermes.net.urls import base_url
from molecule_hermes.transports.plugin.openings import Later, Openings, Refused
from molecule_hermes.transports.plugin.replies import Outcome, Replies
from molecule_hermes.turns.model import Place
from molecule_hermes.wire import (
    MAX_BODY_BYTES,
    OUTBOUND_PATH,
    REPLY_PATH,
    SECRET_HEADER,
    Callback,
    PeerCall,
    Problem,
    Push,
    WireError,
)

__all__ = ["ReplyServer"]

_TO = "to"
_MAX_STRANGERS = 64
"""Every process on this machine can connect, also the tools of all agents."""
_MAX_NEW_STRANGERS = 256
_NEW = 1.0
"""Seconds in which a plugin that opens many connections at once has sent a request on each."""


class ReplyServer:
    """Listens for the plugin's callbacks at `url` inside `async with`."""

    def __init__(
        self,
        replies: Replies,
        host: str,
        port: int,
        secret: str = "",
        *,
        max_body: int = MAX_BODY_BYTES,
        openings: Openings | None = None,
    ) -> None:
        """Without `openings`, deliveries are refused."""
        self._replies = replies
        self._openings = openings or Openings(replies, Place)
        self._host = host
        self._port = port
        self._secret = secret.encode()
        self._max_body = max_body
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._strangers: OrderedDict[web.RequestHandler, float] = OrderedDict()
        """Connections that have not shown the secret yet, the oldest first."""
        self._name = secrets.token_urlsafe(8)
        """In the address: callbacks for an earlier bridge with this port are not for this one. They
        begin after what that one had, which can be more than what it stored."""
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=self._max_body)
        app.router.add_post(REPLY_PATH, self._reply)
        app.router.add_post(OUTBOUND_PATH, self._outbound)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(
                lambda: self._accept(runner), self._host, self._port, backlog=128
            )
        except OSError as error:
            await runner.cleanup()
            variable = "MOLECULE_A2A_CALLBACK_PORT"
            example = str(self._port + 1000)
            raise cannot_listen(error, self._host, self._port, variable, example) from error
        self._runner = runner
        port = self._listener.sockets[0].getsockname()[1]
        self.url = f"{base_url(self._host, port)}{REPLY_PATH}?{_TO}={self._name}"
        return self

    async def __aexit__(self, *error: object) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def _accept(self, runner: web.AppRunner) -> web.RequestHandler:
        """Makes room for a connection: those without the secret must not use up the bridge's."""
        if runner.server is None:
            raise RuntimeError("the callback server is not set up")
        handler: web.RequestHandler = runner.server()
        now = asyncio.get_running_loop().time()
        self._strangers[handler] = now
        while len(self._strangers) > _MAX_STRANGERS:
            oldest, since = next(iter(self._strangers.items()))
            if now - since < _NEW and len(self._strangers) <= _MAX_NEW_STRANGERS:
                break
            del self._strangers[oldest]
            oldest.force_close()
        return handler

    async def _reply(self, request: web.Request) -> web.Response:
        if not self._is_ours(request):
            return _refused(401, f"the header {SECRET_HEADER} is wrong or missing")
        self._strangers.pop(request.protocol, None)
        try:
            callbacks = Callback.parse_batch(await request.read())
        except WireError as error:
            return _refused(400, str(error))
        except web.HTTPRequestEntityTooLarge:
            return _refused(413, f"the body is larger than {self._max_body} bytes")
        if request.query.get(_TO, self._name) != self._name:
            ids = dict.fromkeys(callback.reply_to for callback in callbacks)
            return web.json_response({"ok": True, "stale": True, "unknown": list(ids)})
        taken = _Taken()
        for callback in callbacks:
            await self._take(callback, taken)
        if taken.later:
            return _refused(503, taken.later)
        return web.json_response(self._answer(callbacks, taken))

    async def _take(self, callback: Callback, taken: _Taken) -> None:
        name, body = callback.reply_to, callback.body
        if name in taken.refused:
            return
        if not isinstance(body, Push):
            taken.outcomes.add(self._replies.take(callback))
            return
        if not body.push_id:  # of an older plugin: there is no turn that it belongs to
            taken.outcomes.add("taken")
            return
        if body.push_id != name:
            problem = Problem("bad_request", "a push must be sent under its own push_id")
            taken.refused[name] = problem
            return
        match await self._openings.open(callback, body):
            case Refused(problem):
                taken.refused[name] = problem
            case Later(reason):
                taken.later = reason
            case "new":
                taken.outcomes.add("taken")
            case "duplicate":
                self._replies.take(callback)  # an attached turn counts it
                taken.outcomes.add("duplicate")

    def _answer(self, callbacks: Sequence[Callback], taken: _Taken) -> dict[str, object]:
        answer: dict[str, object] = {"ok": True}
        if len(taken.outcomes) == 1:
            (outcome,) = taken.outcomes
            answer |= {} if outcome == "taken" else {outcome: True}
        if taken.refused:
            answer["refused"] = {name: each.to_json() for name, each in taken.refused.items()}
        if "stale" in taken.outcomes:
            # The plugin keeps what this bridge does not know, until one attaches.
            ids = dict.fromkeys(callback.reply_to for callback in callbacks)
            answer["unknown"] = [
                name for name in ids if name not in taken.refused and not self._replies.knows(name)
            ]
        return answer

    async def _outbound(self, request: web.Request) -> web.Response:
        """What the agent asks of another agent. Without a secret, any process could ask."""
        if not self._secret or not self._is_ours(request):
            return _refused(401, f"the header {SECRET_HEADER} is wrong or missing")
        self._strangers.pop(request.protocol, None)
        try:
            call = PeerCall.parse(await request.read())
        except WireError as error:
            return _refused(400, str(error))
        except web.HTTPRequestEntityTooLarge:
            return _refused(413, f"the body is larger than {self._max_body} bytes")
        reply = self._replies.get(call.message_id)
        here = request.query.get(_TO) == self._name
        if not here or reply is None or reply.ended or reply.calls is None:
            return _refused(404, "no turn that may ask other agents runs for this message")
        return web.json_response((await reply.calls.call(call)).to_json())

    def _is_ours(self, request: web.Request) -> bool:
        given = request.headers.get(SECRET_HEADER, "").encode("utf-8", "surrogateescape")
        return not self._secret or hmac.compare_digest(given, self._secret)


@dataclass(slots=True)
class _Taken:
    """What became of a request's callbacks."""

    outcomes: set[Outcome] = field(default_factory=set)
    refused: dict[str, Problem] = field(default_factory=dict)
    """By push_id."""
    later: str = ""
    """Why the request is to come again."""


def _refused(status: int, message: str) -> web.Response:
    return web.json_response({"ok": False, "error": message}, status=status)
