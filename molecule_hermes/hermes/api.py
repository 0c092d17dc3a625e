"""The few calls to Hermes's own API that are not turns."""

from __future__ import annotations

import asyncio
import functools
import json
import ssl
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import httpx
import psutil

from molecule_hermes.errors import Unreachable
from molecule_hermes.plugin.settings import PLATFORM
from molecule_hermes.wire import JOBS_PATH, SECRET_HEADER

__all__ = ["FirstSession", "count_jobs", "newest_session", "platform_in", "platform_state"]


_LIMIT = 10.0
_MAX_BODY = 32 * 2**20
"""Bytes; a session's messages can be many."""


async def platform_state(api_base: str, api_key: str) -> Mapping[str, Any] | None:
    """The state of our platform as Hermes reports it.

    Returns {} if Hermes does not know the platform, and None if Hermes cannot be asked.
    """
    try:
        async with _client(api_base, api_key) as http:
            return platform_in(await _get(http, "/health/detailed"))
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError):
        return None


def platform_in(report: Any) -> Mapping[str, Any] | None:
    """The state of our platform in a health report of Hermes.

    The report's `status` stays "ok" whatever happens to a platform, so only `platforms` counts.
    It also holds entries of earlier processes, which are ignored.
    """
    if report["gateway_state"] != "running":
        return None
    state = report["platforms"].get(PLATFORM, {})
    if state and _is_stale(state["updated_at"], report["pid"]):
        return {}
    return state if isinstance(state, Mapping) else {}


def _is_stale(updated_at: str, pid: int) -> bool:
    """Whether the entry is older than the gateway's process."""
    try:
        started = psutil.Process(pid).create_time()
    except psutil.Error:
        return False
    return datetime.fromisoformat(updated_at).timestamp() < started - 1.0


async def count_jobs(platform_url: str, secret: str) -> int:
    """The turns, background jobs and cron jobs that live in a Hermes, as its plugin counts them.

    Raises `Unreachable`.
    """
    headers = {SECRET_HEADER: secret}
    try:
        async with httpx.AsyncClient(
            base_url=platform_url,
            headers=headers,
            timeout=4.0,
            trust_env=False,
            verify=_certificates(),
        ) as http:
            body = await _get(http, JOBS_PATH)
        counts = body["active"], body["jobs"]
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise Unreachable(f"the plugin does not say whether Hermes works: {error!r}") from error
    if not all(isinstance(count, int) for count in counts):
        raise Unreachable("the plugin does not say whether Hermes works")
    return sum(counts)


class FirstSession:
    """Creates a session in a Hermes that has none.

    Hermes appends a note for newcomers to the very first message, which would be a peer's.
    """

    def __init__(self, api_base: str, api_key: str, *, needed: bool = True) -> None:
        self._api_base = api_base
        self._api_key = api_key
        self._needed = needed

    async def check(self) -> None:
        """Creates the session on the first call that reaches Hermes. Raises `Unreachable` until
        then."""
        if not self._needed:
            return
        try:
            async with _client(self._api_base, self._api_key) as http:
                if not (await _get(http, "/api/sessions", {"limit": "1"})).get("data"):
                    (await http.post("/api/sessions", json={})).raise_for_status()
        except (httpx.HTTPError, ValueError, TypeError) as error:
            raise Unreachable("Hermes has no session yet, and its API does not respond") from error
        self._needed = False


async def newest_session(
    api_base: str, api_key: str, source: str
) -> tuple[str, list[Mapping[str, Any]]]:
    """The id and the messages of the session of that source that was active last.

    Returns "" and nothing if there is none, or if Hermes cannot be asked.
    """
    try:
        async with _client(api_base, api_key) as http:
            newest = {"source": source, "limit": "1"}
            sessions = (await _get(http, "/api/sessions", newest))["data"]
            if not sessions:
                return "", []
            session = str(sessions[0]["id"])
            messages = (await _get(http, f"/api/sessions/{session}/messages"))["data"]
            return session, [message for message in messages if isinstance(message, dict)]
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError):
        return "", []


async def _get(
    http: httpx.AsyncClient, path: str, params: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The JSON object at the path. A tool may have taken Hermes's port: the body and the time are
    bounded. Raises httpx's errors, `ValueError` and `TypeError`."""
    body = bytearray()
    headers = {"Accept-Encoding": "identity"}
    try:
        async with (
            asyncio.timeout(_LIMIT),
            http.stream("GET", path, params=params, headers=headers) as response,
        ):
            async for piece in response.aiter_raw():
                body += piece
                if len(body) > _MAX_BODY:
                    raise ValueError("the body is too large for an answer of Hermes")
        found = json.loads(body)
    except (TimeoutError, RecursionError) as error:
        raise ValueError("no sound answer of Hermes") from error
    if not isinstance(found, dict):
        raise TypeError("not an object")
    return found


def _client(api_base: str, api_key: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=api_base.removesuffix("/v1"),
        headers={"Authorization": f"Bearer {api_key}"},
        timeout=5.0,
        trust_env=False,
        verify=_certificates(),
    )


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Loaded once: it takes 20 ms of CPU, and a starting Hermes is asked many times."""
    return httpx.create_ssl_context(trust_env=False)
