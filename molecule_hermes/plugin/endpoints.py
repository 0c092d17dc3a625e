"""The plugin's HTTP endpoints: authenticate, parse, dispatch."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web
from aiohttp.typedefs import Middleware

from molecule_hermes.errors import Busy
from molecule_hermes.plugin import hermes_api
from molecule_hermes.plugin.callbacks import ForbiddenError, require_allowed
from molecule_hermes.plugin.dispatcher import Dispatcher
from molecule_hermes.plugin.profiles import ProfileError, UnknownProfileError
from molecule_hermes.plugin.questions import NotAChoiceError, NotFoundError
from molecule_hermes.text import redact
from molecule_hermes.wire import (
    ANSWER_PATH,
    ATTACH_PATH,
    CANCEL_PATH,
    CHECK_PATH,
    HAND_ON_PATH,
    HEALTH_PATH,
    INBOUND_PATH,
    JOBS_PATH,
    LEND_PATH,
    NOT_CONNECTED,
    NOT_HANDED_ON,
    PROFILE_REFUSED,
    SECRET_HEADER,
    STEER_PATH,
    TURNS_PATH,
    Answer,
    Attach,
    Cancel,
    Check,
    HandOn,
    Inbound,
    Lend,
    Steer,
    WireError,
)

__all__ = ["application"]

log = logging.getLogger(__name__)

_MAX_REASON = 1000

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(
    dispatcher: Dispatcher, *, secret: str, max_body: int, callbacks: Sequence[str] = ()
) -> web.Application:
    app = web.Application(middlewares=[_guard(secret)], client_max_size=max_body)
    endpoints = _Endpoints(dispatcher, callbacks)
    app.router.add_get(HEALTH_PATH, endpoints.health)
    app.router.add_post(INBOUND_PATH, endpoints.inbound)
    app.router.add_post(CANCEL_PATH, endpoints.cancel)
    app.router.add_post(ANSWER_PATH, endpoints.answer)
    app.router.add_post(STEER_PATH, endpoints.steer)
    app.router.add_post(CHECK_PATH, endpoints.check)
    app.router.add_post(ATTACH_PATH, endpoints.attach)
    app.router.add_post(LEND_PATH, endpoints.lend)
    app.router.add_post(HAND_ON_PATH, endpoints.hand_on)
    app.router.add_get(TURNS_PATH, endpoints.turns)
    app.router.add_get(JOBS_PATH, endpoints.jobs)
    return app


class _Endpoints:
    def __init__(self, dispatcher: Dispatcher, callbacks: Sequence[str]) -> None:
        self._dispatcher = dispatcher
        self._callbacks = callbacks

    async def health(self, request: web.Request) -> web.Response:
        ready = self._dispatcher.state() == "ready"
        active, warm = self._dispatcher.active, self._dispatcher.warm()
        health = {"ok": True, "ready": ready, "active": active, "warm": warm}
        return web.json_response({**health, "instance": self._dispatcher.instance})

    async def inbound(self, request: web.Request) -> web.Response:
        inbound = Inbound.parse(await request.read())
        require_allowed(inbound.callback_url, self._callbacks)
        # A known message is acknowledged even while draining: its sender only repeats it.
        if self._dispatcher.knows(inbound.message_id):
            return self._accepted(inbound, duplicate=True)
        if (state := self._dispatcher.state()) != "ready":
            return _refused(503, "draining", f"Hermes is {state}", retry_after=1)
        return self._accepted(inbound, duplicate=not self._dispatcher.accept(inbound))

    def _accepted(self, inbound: Inbound, *, duplicate: bool) -> web.Response:
        body: dict[str, object] = {"ok": True, "instance": self._dispatcher.instance}
        body |= {"profile": inbound.profile} if inbound.profile else {}
        body |= {"toolsets": True} if inbound.toolsets is not None else {}
        body |= {"handoff": True} if inbound.handoff is not None else {}
        return web.json_response(body | ({"duplicate": True} if duplicate else {}), status=202)

    async def cancel(self, request: web.Request) -> web.Response:
        cancel = Cancel.parse(await request.read())
        self._dispatcher.cancel(cancel.message_id, cancel.bridge)
        return web.json_response({"ok": True})

    async def answer(self, request: web.Request) -> web.Response:
        self._dispatcher.answer(Answer.parse(await request.read()))
        return web.json_response({"ok": True})

    async def attach(self, request: web.Request) -> web.Response:
        attach = Attach.parse(await request.read())
        require_allowed(attach.callback_url, self._callbacks)
        turn = self._dispatcher.attach(attach)
        return web.json_response({"ok": True, "instance": self._dispatcher.instance, **turn})

    async def turns(self, request: web.Request) -> web.Response:
        body = {"ok": True, "instance": self._dispatcher.instance}
        return web.json_response({**body, "turns": self._dispatcher.turns()})

    async def jobs(self, request: web.Request) -> web.Response:
        """What lives in this Hermes, so that a bridge does not stop one that is at work."""
        jobs = await asyncio.to_thread(hermes_api.live_jobs)
        return web.json_response({"ok": True, "active": self._dispatcher.active, "jobs": jobs})

    async def steer(self, request: web.Request) -> web.Response:
        steered = await self._dispatcher.steer(Steer.parse(await request.read()))
        return web.json_response(steered.to_json())

    async def lend(self, request: web.Request) -> web.Response:
        if (state := self._dispatcher.state()) != "ready":
            return _refused(503, "draining", f"Hermes is {state}", retry_after=1)
        session_id = await self._dispatcher.lend(Lend.parse(await request.read()))
        return web.json_response({"ok": True, "session_id": session_id})

    async def hand_on(self, request: web.Request) -> web.Response:
        asked = HandOn.parse(await request.read())
        try:
            await self._dispatcher.hand_on(asked)
        except hermes_api.NotConnectedError as error:
            return _refused(409, NOT_CONNECTED, str(error))
        except hermes_api.NotBoundError as error:
            return _refused(409, NOT_HANDED_ON, redact(str(error))[:_MAX_REASON])
        return web.json_response({"ok": True})

    async def check(self, request: web.Request) -> web.Response:
        check = Check.parse(await request.read())
        require_allowed(check.callback_url, self._callbacks)
        self._dispatcher.require_profile(check.profile)
        # What older plugins ignore, so that a bridge that relies on it does not trust them.
        body: dict[str, object] = {"ok": True, "toolsets": True, "handoff": True}
        body |= {"profile": check.profile} if check.profile else {}
        takes = self._dispatcher.deliveries.check(check)
        return web.json_response(body | ({"deliveries": True} if takes else {}))


def _guard(secret: str) -> Middleware:
    """Checks the secret before the body is read, and makes every response JSON."""
    expected = secret.encode()

    @web.middleware
    async def guard(request: web.Request, handler: _Handler) -> web.StreamResponse:
        given = request.headers.get(SECRET_HEADER, "").encode("utf-8", "surrogateescape")
        # An unexpected secret is wrong, too: that bridge would refuse every callback.
        if request.path != HEALTH_PATH and not hmac.compare_digest(given, expected):
            return _refused(401, "auth", f"the header {SECRET_HEADER} is wrong or missing")
        # No bridge sends this header; a web page in a browser is trying to reach the port.
        if "Origin" in request.headers:
            return _refused(403, "auth", "requests from browsers are not allowed")
        return await _respond(request, handler)

    return guard


async def _respond(  # noqa: PLR0911 - one line for each refusal
    request: web.Request, handler: _Handler
) -> web.StreamResponse:
    try:
        return await handler(request)
    except (WireError, NotAChoiceError) as error:
        return _refused(400, "bad_request", str(error))
    except ProfileError as error:
        status = 404 if isinstance(error, UnknownProfileError) else 409
        return _refused(status, PROFILE_REFUSED, str(error))
    except NotFoundError as error:
        return _refused(404, "not_found", str(error))
    except ForbiddenError as error:
        return _refused(403, error.kind, str(error))
    except Busy as error:
        return _refused(429, error.kind, error.message, retry_after=1)
    except web.HTTPRequestEntityTooLarge:
        return _refused(413, "too_large", "the body is too large")
    except web.HTTPException as error:
        return _refused(error.status, "bad_request", error.reason)


def _refused(status: int, kind: str, message: str, retry_after: int | None = None) -> web.Response:
    headers = {"Retry-After": str(retry_after)} if retry_after else None
    body = {"ok": False, "kind": kind, "error": message}
    return web.json_response(body, status=status, headers=headers)
