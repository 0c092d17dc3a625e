"""Addresses that may be called on behalf of a peer: those of the public internet.

A peer that could name any URL would reach what only this machine can reach: services on loopback,
hosts behind the firewall, the cloud's metadata. The check covers addresses rather than names, and
exactly those addresses that are connected to afterwards. DNS rebinding does not get around it.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from molecule_hermes.errors import BridgeError
from molecule_hermes.net.urls import host_in_url

__all__ = ["NotPublicError", "PublicOnly", "is_public"]

MAX_URL = 8192
_GLOBAL_V6 = IPv6Network("2000::/3")
# Addresses that a gateway turns into the IPv4 address in their last 32 bits.
_NAT64 = IPv6Network("64:ff9b::/96")
# Python, or some of its versions, counts these as public. Some clouds serve the machine's metadata
# there.
_METADATA = (IPv4Network("192.0.0.0/24"), IPv4Network("168.63.129.16/32"))


class NotPublicError(BridgeError):
    """The URL must not be called. The message is meant for the peer that sent it."""


class PublicOnly(AbstractResolver):
    """Checks URLs, and resolves names for the connections it makes.

    `allowed` names hosts, or `host:port`, that may be called wherever they are.
    """

    def __init__(
        self, allowed: Collection[str] = (), resolver: AbstractResolver | None = None
    ) -> None:
        self._allowed = frozenset(host.lower() for host in allowed)
        self._resolver = resolver

    def connector(self, limit: int = 100, of_host: int = 0) -> aiohttp.TCPConnector:
        """Connects only to addresses that this object resolves. aiohttp does not resolve literal
        addresses: call `parse` first."""
        return aiohttp.TCPConnector(
            resolver=self, use_dns_cache=False, limit=limit, limit_per_host=of_host
        )

    def parse(self, url: str | URL) -> URL:
        """Parses the URL. Raises `NotPublicError` if it is invalid or names an address that is not
        public."""
        if len(str(url)) > MAX_URL:
            raise NotPublicError(f"a URL has at most {MAX_URL} characters")
        try:
            parsed = URL(url)
        except ValueError as error:
            raise NotPublicError("it is not a URL") from error
        if parsed.scheme not in ("http", "https") or not parsed.raw_host:
            raise NotPublicError("only http and https URLs are called")
        if parsed.user is not None or parsed.password is not None:
            raise NotPublicError("a URL with credentials in it is not called")
        host, port = parsed.raw_host, parsed.port or 0
        if _is_literal(host) and not self._allows(host, port):
            _require_public(host, host)
        return parsed

    async def check(self, url: str | URL) -> URL:
        """Like `parse`, but also requires that the host resolves to public addresses now."""
        parsed = self.parse(url)
        host, port = parsed.raw_host or "", parsed.port or 0
        if not _is_literal(host):
            try:
                await self.resolve(host, port, socket.AF_UNSPEC)
            except OSError as error:
                raise NotPublicError(f"{host} cannot be resolved") from error
        return parsed

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Resolves a host. Raises `NotPublicError` if any of its addresses is not public."""
        resolver = self._resolver or aiohttp.ThreadedResolver()
        try:
            found = await resolver.resolve(host, port, family)
        except UnicodeError as error:  # such as a label of more than 63 characters
            raise OSError(f"{host} is not a host name") from error
        if not self._allows(host, port):
            for result in found:
                _require_public(result["host"], host)
        return found

    async def close(self) -> None:
        if self._resolver is not None:
            await self._resolver.close()

    def _allows(self, host: str, port: int) -> bool:
        shown = host_in_url(host)
        return not self._allowed.isdisjoint({host, shown, f"{shown}:{port}"})


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether the address belongs to the public internet."""
    if isinstance(address, IPv4Address):
        unicast = not (address.is_multicast or address.is_reserved)
        return address.is_global and unicast and not any(address in net for net in _METADATA)
    inner = address.ipv4_mapped or address.sixtofour
    if address in _NAT64:
        inner = IPv4Address(int(address) & 0xFFFF_FFFF)
    if inner is not None:
        return is_public(inner)
    return address in _GLOBAL_V6 and address.is_global and not address.is_multicast


def _is_literal(host: str) -> bool:
    """Whether aiohttp treats the host as an address; it passes all others to `resolve`."""
    return ":" in host or host.replace(".", "").isdigit()


def _require_public(address: str, host: str) -> None:
    try:
        public = is_public(ipaddress.ip_address(address.partition("%")[0]))
    except ValueError:
        public = False  # such as 127.1 or 0177.0.0.1, which the system would accept
    if not public or "%" in address:
        raise NotPublicError(f"{host} is not a public address")
