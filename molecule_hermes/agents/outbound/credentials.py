"""What the bridge authenticates with at other agents. It is sent to the configured URL only."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from typing import Protocol
from urllib.parse import quote

import httpx

from molecule_hermes.config import OAuthClient, PeerConfig
from molecule_hermes.errors import AuthFailure

__all__ = ["Credentials", "credentials_of"]

_TOKEN = re.compile(r"[!-~]{1,16384}")
_MAX_ANSWER = 2**16
_TIMEOUT = 15.0
_EARLY = 30.0
"""Seconds before its end that a token is no longer used."""
_LIFETIME = 300.0
"""Of a token that does not say its own."""
_LONGEST = 86_400.0


class Credentials(Protocol):
    async def headers(self) -> Mapping[str, str]:
        """Raises a `TurnFailure` if there are none at present."""

    def refused(self) -> bool:
        """The agent has refused them. Returns whether others may be had."""


class _Bearer:
    def __init__(self, token: str) -> None:
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def headers(self) -> Mapping[str, str]:
        return self._headers

    def refused(self) -> bool:
        return False


class _ClientCredentials:
    """OAuth 2.0 client credentials: a token is kept until it is about to expire."""

    def __init__(
        self,
        peer: str,
        config: OAuthClient,
        http: httpx.AsyncClient,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._peer = peer
        self._config = config
        self._http = http
        self._clock = clock
        self._token = ""
        self._until = 0.0
        self._fetching = asyncio.Lock()

    async def headers(self) -> Mapping[str, str]:
        async with self._fetching:
            if self._clock() >= self._until:
                self._token, lifetime = await self._fetch()
                self._until = self._clock() + lifetime
        return {"Authorization": f"Bearer {self._token}"}

    def refused(self) -> bool:
        known, self._until = self._until > self._clock(), 0.0
        return known

    async def _fetch(self) -> tuple[str, float]:
        config = self._config
        form = {"grant_type": "client_credentials"} | (
            {"scope": config.scope} if config.scope else {}
        )
        # RFC 6749, 2.3.1: both are form-encoded first.
        user, password = (
            quote(each, safe="")
            for each in (config.client_id, config.client_secret.get_secret_value())
        )
        try:
            async with asyncio.timeout(_TIMEOUT):
                response = await self._http.post(
                    config.token_url,
                    data=form,
                    auth=httpx.BasicAuth(user, password),
                    headers={"Accept": "application/json"},
                    extensions={"max_bytes": _MAX_ANSWER, "timeout": _SECONDS},
                )
        except (httpx.HTTPError, TimeoutError) as error:
            raise self._failure("its token endpoint does not answer") from error
        if response.status_code != 200:
            raise self._failure(f"its token endpoint answered with status {response.status_code}")
        try:
            found = response.json()
            token, lifetime = found["access_token"], found.get("expires_in", _LIFETIME)
            seconds = min(float(lifetime), _LONGEST) - _EARLY
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise self._failure("its token endpoint gave no token") from None
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise self._failure("its token endpoint gave no token")
        return token, max(1.0, seconds)

    def _failure(self, why: str) -> AuthFailure:
        return AuthFailure(
            f"there is no token for the agent {self._peer!r}: {why}",
            hint=f"go on without it; the operator must check oauth of peers.{self._peer}",
        )


_SECONDS = httpx.Timeout(_TIMEOUT, connect=5.0).as_dict()


def credentials_of(peer: PeerConfig, http: httpx.AsyncClient) -> Credentials:
    if peer.oauth is not None:
        return _ClientCredentials(peer.name, peer.oauth, http)
    return _Bearer(peer.bearer.get_secret_value() if peer.bearer is not None else "")
