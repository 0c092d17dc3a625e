"""The HTTP client for other agents. What they send is bounded, and no redirect is followed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import cast

import httpx

from molecule_hermes import __version__
from molecule_hermes.net.addresses import PublicOnly

__all__ = ["MAX_CARD", "MAX_RESPONSE", "create_client", "create_public_client"]

MAX_RESPONSE = 32 * 2**20
"""Bytes of a response, also of one that streams. Twenty megabytes of files in base64 fit."""
MAX_CARD = 2**20
_CONNECTIONS = 100
_CONNECT = 5.0
_ADDRESSES = 3
"""How many addresses of a host are tried."""


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


class _PublicOnly(httpx.AsyncBaseTransport):
    """Checks the addresses of a host, and connects to one of those that it has checked.

    The inner transport gets a URL with the address. It must not keep connections: those of one host
    would serve another one at the same address, whose certificate nobody has seen.
    """

    def __init__(self, inner: httpx.AsyncBaseTransport, addresses: PublicOnly) -> None:
        self._inner = inner
        self._addresses = addresses

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        failure = httpx.ConnectError("its host has no address", request=request)
        for address in (await self._resolve(request))[:_ADDRESSES]:
            try:
                return await self._inner.handle_async_request(_at(address, request))
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                failure = httpx.ConnectError(str(error), request=request)
        raise failure

    async def _resolve(self, request: httpx.Request) -> list[str]:
        """Raises `NotPublicError` if one of the addresses is not public."""
        host = request.url.raw_host.decode("ascii")
        port = request.url.port or (443 if request.url.scheme == "https" else 80)
        try:
            async with asyncio.timeout(_CONNECT):
                found = await self._addresses.resolve(host, port, socket.AF_UNSPEC)
        except OSError as error:  # also a `TimeoutError`
            raise httpx.ConnectError("its host cannot be resolved", request=request) from error
        return [each["host"] for each in found]

    async def aclose(self) -> None:
        await self._inner.aclose()
        await self._addresses.close()


def _at(address: str, request: httpx.Request) -> httpx.Request:
    """The request with the address in its URL, and the host in its header and in TLS."""
    host = request.url.raw_host.decode("ascii")
    return httpx.Request(
        request.method,
        request.url.copy_with(host=address),
        headers=request.headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": host},
    )


def create_client(timeout: float) -> httpx.AsyncClient:
    """One for the process: a new one costs 40 ms of CPU. `timeout` is for silence."""
    limits = httpx.Limits(max_connections=_CONNECTIONS)
    return _client(httpx.AsyncHTTPTransport(limits=limits, retries=0), timeout)


def create_public_client(timeout: float, addresses: PublicOnly) -> httpx.AsyncClient:
    """For agents that the operator has not named. Each request has a connection of its own.

    Closing the client closes the `addresses`.
    """
    limits = httpx.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=0)
    inner = httpx.AsyncHTTPTransport(limits=limits, retries=0)
    return _client(_PublicOnly(inner, addresses), timeout)


def _client(transport: httpx.AsyncBaseTransport, timeout: float) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=_Bounded(transport),
        # Cookies know no ports: one agent's would go to another on the same host.
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        headers={"User-Agent": f"molecule-hermes/{__version__}", "Accept-Encoding": "identity"},
        timeout=httpx.Timeout(timeout, connect=_CONNECT),
        follow_redirects=False,
        trust_env=False,
    )
