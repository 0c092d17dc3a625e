"""The HTTP client for other agents. What they send is bounded, and no redirect is followed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import cast

import httpx

from molecule_hermes import __version__

__all__ = ["MAX_CARD", "MAX_RESPONSE", "create_client"]

MAX_RESPONSE = 32 * 2**20
"""Bytes of a response, also of one that streams. Twenty megabytes of files in base64 fit."""
MAX_CARD = 2**20
_CONNECTIONS = 100
_CONNECT = 5.0


class _Bounded(httpx.AsyncBaseTransport):
    """Ends responses that are longer than they may be, before they are in memory."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._inner.handle_async_request(request)
        if response.headers.get("Content-Encoding", "identity") != "identity":
            await response.aclose()
            # A few compressed bytes can become gigabytes.
            raise httpx.ReadError("the response is compressed, which was not asked for")
        limit = int(request.extensions.get("max_bytes", MAX_RESPONSE))
        return httpx.Response(
            response.status_code,
            headers=response.headers,
            stream=_BoundedStream(cast(httpx.AsyncByteStream, response.stream), limit),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        await self._inner.aclose()


class _BoundedStream(httpx.AsyncByteStream):
    def __init__(self, inner: httpx.AsyncByteStream, limit: int) -> None:
        self._inner = inner
        self._limit = limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._inner:
            size += len(piece)
            if size > self._limit:
                raise httpx.ReadError(f"the response has more than {self._limit} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()


def create_client(timeout: float) -> httpx.AsyncClient:
    """One for the process: a new one costs 40 ms of CPU. `timeout` is for silence."""
    limits = httpx.Limits(max_connections=_CONNECTIONS)
    return httpx.AsyncClient(
        transport=_Bounded(httpx.AsyncHTTPTransport(limits=limits, retries=0)),
        # Cookies know no ports: one agent's would go to another on the same host.
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        headers={"User-Agent": f"molecule-hermes/{__version__}", "Accept-Encoding": "identity"},
        timeout=httpx.Timeout(timeout, connect=_CONNECT),
        follow_redirects=False,
        trust_env=False,
    )
