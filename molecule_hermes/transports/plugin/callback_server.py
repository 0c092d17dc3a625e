"""The endpoint for the plugin's callbacks: authenticates, parses and passes them on."""

from __future__ import annotations

import hmac
import secrets
from typing import Self

from aiohttp import web

from molecule_hermes.net.ports import cannot_listen
from molecule_hermes.net.urls import base_url
from molecule_hermes.transports.plugin.replies import Replies
from molecule_hermes.wire import (
    MAX_BODY_BYTES,
    OUTBOUND_PATH,
    REPLY_PATH,
    SECRET_HEADER,
    Callback,
    PeerCall,
    WireError,
)

__all__ = ["ReplyServer"]

_TO = "to"


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
    ) -> None:
        self._replies = replies
        self._host = host
        self._port = port
        self._secret = secret.encode()
        self._max_body = max_body
        self._runner: web.AppRunner | None = None
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
        try:
            await web.TCPSite(runner, self._host, self._port).start()
        except OSError as error:
            await runner.cleanup()
            variable = "MOLECULE_A2A_CALLBACK_PORT"
            example = str(self._port + 1000)
            raise cannot_listen(error, self._host, self._port, variable, example) from error
        self._runner = runner
        port = runner.addresses[0][1]
        self.url = f"{base_url(self._host, port)}{REPLY_PATH}?{_TO}={self._name}"
        return self

    async def __aexit__(self, *error: object) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _reply(self, request: web.Request) -> web.Response:
        if not self._is_ours(request):
            return _refused(401, f"the header {SECRET_HEADER} is wrong or missing")
        try:
            callbacks = Callback.parse_batch(await request.read())
        except WireError as error:
            return _refused(400, str(error))
        except web.HTTPRequestEntityTooLarge:
            return _refused(413, f"the body is larger than {self._max_body} bytes")
        if request.query.get(_TO, self._name) != self._name:
            ids = dict.fromkeys(callback.reply_to for callback in callbacks)
            return web.json_response({"ok": True, "stale": True, "unknown": list(ids)})
        outcomes = {self._replies.take(callback) for callback in callbacks}
        answer: dict[str, object] = {"ok": True}
        if len(outcomes) == 1:
            (outcome,) = outcomes
            answer |= {} if outcome == "taken" else {outcome: True}
        if "stale" in outcomes:
            # The plugin keeps what this bridge does not know, until one attaches.
            ids = dict.fromkeys(callback.reply_to for callback in callbacks)
            answer["unknown"] = [name for name in ids if not self._replies.knows(name)]
        return web.json_response(answer)

    async def _outbound(self, request: web.Request) -> web.Response:
        """What the agent asks of another agent. Without a secret, any process could ask."""
        if not self._secret or not self._is_ours(request):
            return _refused(401, f"the header {SECRET_HEADER} is wrong or missing")
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


def _refused(status: int, message: str) -> web.Response:
    return web.json_response({"ok": False, "error": message}, status=status)
