"""URLs that may be called on behalf of a peer, and those that are refused."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.net.addresses import NotPublicError, PublicOnly, is_public
from tests.support.serving import serve


class Resolver(AbstractResolver):
    """Answers from a list, and repeats its last answer."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.asked.append(host)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        kinds = {4: socket.AF_INET, 6: socket.AF_INET6}
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=kinds[ipaddress.ip_address(address).version],
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in answer.split(",")
        ]

    async def close(self) -> None:
        pass


@asynccontextmanager
async def local_server() -> AsyncIterator[tuple[int, list[str]]]:
    """A server on loopback that a peer must not reach: its port, and the requests it received."""
    called: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        called.append(request.host)
        return web.Response(text="inside")

    app = web.Application()
    app.router.add_get("/", answer)
    async with serve(app) as url:
        yield int(url.rpartition(":")[2]), called


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://127.0.0.1./",
        "http://127.1/",
        "http://2130706433/",
        "http://017700000001/",
        "http://0177.0.0.1/",
        "http://0x7f.0.0.1/",
        "http://0x7f000001/",
        "http://１２７.０.０.１/",
        "http://127。0。0。1/",
        "http://0.0.0.0/",
        "http://0/",
        "http://10.1.2.3/",
        "http://172.16.0.1/",
        "http://192.168.0.1/",
        "http://100.64.0.1/",
        "http://100.100.100.200/",
        "http://169.254.169.254/latest/meta-data/",
        "http://168.63.129.16/",
        "http://192.0.0.192/",
        "http://192.0.2.1/",
        "http://224.0.0.1/",
        "http://240.0.0.1/",
        "http://255.255.255.255/",
        "http://[::]/",
        "http://[::1]/",
        "http://[::127.0.0.1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:a9fe:a9fe]/",
        "http://[64:ff9b::7f00:1]/",
        "http://[64:ff9b::a9fe:a9fe]/",
        "http://[64:ff9b:1::1]/",
        "http://[2002:7f00:1::]/",
        "http://[2002:c0a8:1::1]/",
        "http://[2001::1]/",
        "http://[2001:db8::1]/",
        "http://[fe80::1]/",
        "http://[fe80::1%25eth0]/",
        "http://[2a00:1450:4001:80f::200e%25eth0]/",
        "http://[fec0::1]/",
        "http://[fc00::1]/",
        "http://[fd00:ec2::254]/",
        "http://[ff02::1]/",
        "http://localhost/",
        "http://localhost./",
        "http://LOCALHOST:8642/",
    ],
)
async def test_addresses_that_only_this_machine_reaches_are_refused(url: str) -> None:
    with pytest.raises(NotPublicError):
        await PublicOnly().check(url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "x",
        "//example.com/x",
        "ftp://example.com/x",
        "file:///etc/passwd",
        "gopher://example.com/",
        "data:text/plain,x",
        "http://",
        "http:///x",
        "http://user@example.com/",
        "http://user:secret@example.com/",
        "http://:secret@example.com/",
        "http://1.1.1.1@127.0.0.1/",
        "http://example.com:99999/",
        "http://[::1/",
        "http://exa\\mple.com/",
    ],
)
async def test_anything_but_a_plain_http_url_is_refused(url: str) -> None:
    with pytest.raises(NotPublicError) as refused:
        await PublicOnly(resolver=Resolver("1.1.1.1")).check(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://1.1.1.1/",
        "https://8.8.8.8:8443/x",
        "http://[2606:4700:4700::1111]/",
        "http://[2002:101:101::1]/",
        "http://[64:ff9b::101:101]/",
        "http://[::ffff:1.1.1.1]/",
        "https://example.com/a?b#c",
    ],
)
async def test_public_addresses_are_accepted(url: str) -> None:
    assert (await PublicOnly(resolver=Resolver("1.1.1.1")).check(url)).scheme in ("http", "https")


async def test_a_host_with_one_private_address_among_public_ones_is_refused() -> None:
    for answer in ("1.1.1.1,10.0.0.1", "2606:4700:4700::1111,::1"):
        with pytest.raises(NotPublicError, match=r"example\.com is not a public address"):
            await PublicOnly(resolver=Resolver(answer)).check("http://example.com/")


async def test_a_name_that_does_not_exist_cannot_be_resolved() -> None:
    for host in ("does-not-exist.invalid", "x" * 70 + ".invalid", "a..invalid", ".invalid", "a b"):
        with pytest.raises(NotPublicError, match="cannot be resolved"):
            await PublicOnly().check(f"http://{host}/")


async def test_a_connection_to_a_private_address_is_not_made() -> None:
    async with local_server() as (port, called):
        public = PublicOnly(resolver=Resolver("127.0.0.1"))
        async with aiohttp.ClientSession(connector=public.connector()) as session:
            with pytest.raises(NotPublicError):
                await session.get(f"http://example.com:{port}/")
    assert called == []


async def test_a_name_that_becomes_private_after_the_check_is_not_connected_to() -> None:
    async with local_server() as (port, called):
        rebinding = Resolver("1.1.1.1", "127.0.0.1")
        public = PublicOnly(resolver=rebinding)
        url = await public.check(f"http://example.com:{port}/")
        async with aiohttp.ClientSession(connector=public.connector()) as session:
            with pytest.raises(NotPublicError):
                await session.get(url)
    assert rebinding.asked == ["example.com", "example.com"]
    assert called == []


@pytest.mark.parametrize("allowed", ["localhost", "LocalHost", "localhost:{port}"])
async def test_an_allowed_host_may_have_a_private_address(allowed: str) -> None:
    async with local_server() as (port, called):
        public = PublicOnly([allowed.format(port=port)], Resolver("127.0.0.1"))
        url = await public.check(f"http://localhost:{port}/")
        async with (
            aiohttp.ClientSession(connector=public.connector()) as session,
            session.get(url) as response,
        ):
            assert await response.text() == "inside"
        with pytest.raises(NotPublicError):
            await public.check("http://127.0.0.1/")
    assert called == [f"localhost:{port}"]


async def test_an_allowed_port_does_not_allow_others() -> None:
    public = PublicOnly(["127.0.0.1:9000", "[::1]:9000", "::2"])
    for url in ("http://127.0.0.1:9000/", "http://[::1]:9000/", "http://[::2]:1/"):
        await public.check(url)
    for url in ("http://127.0.0.1:9001/", "http://127.0.0.1/", "http://[::1]/", "http://[::3]/"):
        with pytest.raises(NotPublicError):
            await public.check(url)


@given(st.ip_addresses(v=4))
def test_every_notation_of_an_address_gets_the_same_verdict(address: ipaddress.IPv4Address) -> None:
    number = int(address)
    dressed = [
        ipaddress.IPv6Address((0xFFFF << 32) | number),
        ipaddress.IPv6Address((0x64FF9B << 96) | number),
        ipaddress.IPv6Address((0x2002 << 112) | (number << 80)),
    ]
    assert {is_public(each) for each in dressed} == {is_public(address)}
    assert not (is_public(address) and (address.is_private or address.is_multicast))


@given(st.text() | st.from_regex(r"https?://[^/]*/?.*"))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        url = PublicOnly().parse(text)
    except NotPublicError:
        return
    assert url.scheme in ("http", "https")
    assert url.raw_host
