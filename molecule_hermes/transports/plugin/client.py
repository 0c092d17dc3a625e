"""The requests to the plugin inside Hermes, and what its refusals mean."""

from __future__ import annotations

import json
from typing import Any, Self

import aiohttp

from molecule_hermes.errors import (
    AuthFailure,
    BadRequest,
    Draining,
    InternalFailure,
    TooLarge,
    TurnFailure,
    Unreachable,
)
from molecule_hermes.transports.base import as_payload
from molecule_hermes.wire import (
    HEALTH_PATH,
    PROFILE_REFUSED,
    SECRET_HEADER,
    Answer,
    Attach,
    Cancel,
    Check,
    HandOn,
    Inbound,
    Lend,
    Steer,
)

__all__ = ["CONNECTIONS", "CallbackRefused", "PluginClient", "ProfileRefused", "too_old_for"]

CONNECTIONS = 64
"""The plugin answers each POST at once, so a few connections serve any number of turns."""
_TIMEOUT = 10.0
_MAX_ANSWER = 2**20


class CallbackRefused(AuthFailure):
    """The plugin accepts the secret, but not this bridge's callback address."""


class ProfileRefused(BadRequest):
    """The Hermes does not serve the profile."""


def too_old_for(what: str) -> BadRequest:
    return BadRequest(
        f"the plugin inside Hermes is too old for {what}",
        hint="install the bridge's version of molecule-hermes beside that Hermes",
    )


class PluginClient:
    """One HTTP client for the life of the process: `async with` it."""

    def __init__(self, base_url: str, secret: str = "") -> None:
        self.base_url = base_url.rstrip("/")
        self._secret = secret
        self.instance = ""
        """The run of the plugin that answered last."""
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONNECTIONS),
            timeout=aiohttp.ClientTimeout(total=_TIMEOUT, connect=3.0),
            headers={SECRET_HEADER: self._secret} if self._secret else {},
            auto_decompress=False,
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def health(self, timeout: float) -> dict[str, Any]:
        """Raises aiohttp's errors, `TimeoutError`, or `ValueError` if it is not the plugin."""
        health = await self.get(HEALTH_PATH, timeout)
        if not health.get("ok"):
            raise ValueError("not a health report of the plugin")
        self.instance = str(health.get("instance", ""))
        return health

    async def get(self, path: str, timeout: float) -> dict[str, Any]:
        """The JSON object at the path. Raises as `health` does."""
        limit = aiohttp.ClientTimeout(total=timeout)
        url = self.base_url + path
        async with self._open_session().get(url, timeout=limit, allow_redirects=False) as response:
            return await _json(response)

    async def post(
        self,
        path: str,
        message: Inbound | Cancel | Answer | Attach | Steer | Check | Lend | HandOn,
        timeout: float = _TIMEOUT,
    ) -> tuple[int, dict[str, Any]]:
        """The status and the JSON of the response. Raises aiohttp's errors and `TimeoutError`."""
        url = self.base_url + path
        data = as_payload(json.dumps(message.to_json()).encode())
        headers = {"Content-Type": "application/json"}
        limit = aiohttp.ClientTimeout(total=timeout, connect=3.0)
        async with self._open_session().post(
            url, data=data, headers=headers, timeout=limit, allow_redirects=False
        ) as response:
            try:
                return response.status, await _json(response)
            except ValueError:
                return response.status, {}

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise Draining("the transport is closed")
        return self._session

    def unreachable(self) -> Unreachable:
        return Unreachable(
            f"the plugin inside Hermes does not answer at {self.base_url}",
            hint="run `molecule-hermes doctor` to see why",
        )

    def refusal(self, status: int, body: dict[str, Any]) -> TurnFailure:
        """What a status that means no means."""
        if status == 401:
            return AuthFailure(
                "the plugin inside Hermes refused the bridge's secret",
                hint="set MOLECULE_A2A_PLATFORM_SHARED_SECRET to the same value for both; if it is "
                "not set, `up` generates one that no other bridge knows",
            )
        if status == 403 and body.get("kind") == "callback_refused":
            return CallbackRefused(
                "the plugin inside Hermes does not call this bridge back",
                hint="add this bridge to MOLECULE_A2A_PLATFORM_CALLBACKS of that Hermes",
            )
        if status in (404, 409) and body.get("kind") == PROFILE_REFUSED:
            return ProfileRefused(
                str(body.get("error", "")),
                hint="make the profile with `hermes profile create`, and set "
                "gateway.multiplex_profiles: true in that Hermes's config.yaml",
            )
        if status == 413:
            return TooLarge()
        if status == 400:
            return BadRequest(f"the plugin refused the message: {body.get('error', '')}", hint="")
        return InternalFailure(
            f"the plugin answered with status {status}",
            hint="check that MOLECULE_A2A_PLATFORM_PORT is the port of the plugin",
        )


async def _json(response: aiohttp.ClientResponse) -> dict[str, Any]:
    """The body, of which at most a megabyte is read: a tool may have taken Hermes's port.

    Raises `ValueError`.
    """
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > _MAX_ANSWER:
            response.close()
            raise ValueError("the answer is too large for the plugin's")
    try:
        found = json.loads(body)
    except RecursionError:
        raise ValueError("the answer is nested too deeply") from None
    return found if isinstance(found, dict) else {}
