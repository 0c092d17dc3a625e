"""Attacks on what the agents of a registry can reach, by the registry and by those agents."""

from __future__ import annotations

import asyncio
import datetime
import gzip
import ipaddress
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from molecule_hermes.agents.outbound.http import create_public_client
from molecule_hermes.config import PeerConfig
from molecule_hermes.net import addresses
from molecule_hermes.net.addresses import NotPublicError, PublicOnly
from tests.support.registry import (
    ASKS_ALL,
    RegistryServer,
    asking_with,
    calls_with,
    read_again_at_once,
    registry,
)
from tests.support.sdk_agent import sdk_agent
from tests.support.serving import free_port, serve


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    read_again_at_once(monkeypatch)


class Resolver(AbstractResolver):
    """Answers with these addresses, one list after the other, and repeats the last one."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [
            ResolveResult(
                hostname=host, host=each, port=port, family=socket.AF_INET, proto=0, flags=0
            )
            for each in found
        ]

    async def close(self) -> None:
        pass


@pytest.fixture
def one_public_address(monkeypatch: pytest.MonkeyPatch) -> str:
    """Loopback's first address passes for a public one, so that a test can serve there."""
    public = "127.0.0.1"
    first = ipaddress.ip_address(public)
    monkeypatch.setattr(addresses, "is_public", lambda address: address == first)
    return public


@asynccontextmanager
async def noting() -> AsyncIterator[tuple[str, list[str]]]:
    """A server, its port as text, and the hosts of the requests that reach it."""
    hosts: list[str] = []

    async def note(request: web.Request) -> web.Response:
        hosts.append(request.host)
        return web.json_response({})

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", note)
    async with serve(app) as url:
        yield url.rpartition(":")[2], hosts


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}",
        "http://localhost:{port}",
        "http://[::1]:{port}",
        "http://127.1:{port}",
        "http://2130706433:{port}",
        "http://0x7f.1:{port}",
        "http://[::ffff:127.0.0.1]:{port}",
        "http://0.0.0.0:{port}",
        "http://169.254.169.254/latest/meta-data",
        "http://[fd00:ec2::254]",
        "http://10.0.0.1",
        "http://192.168.1.1",
        "http://168.63.129.16",
    ],
)
@pytest.mark.parametrize("form", ["url", "wellKnownURI"])
async def test_an_agent_at_an_address_that_is_not_public_is_not_called(url: str, form: str) -> None:
    async with noting() as (port, hosts), registry() as server:
        at = url.format(port=port)
        at += "/.well-known/agent-card.json" if form == "wellKnownURI" else ""
        server.items = [{"name": "found", form: at}]
        async with asyncio.timeout(15), asking_with(server) as turn:
            found = await turn.ask("found", "hello")
            (listed,) = (await turn.call("list")).result["peers"]  # type: ignore[misc]
    assert found["error"]["kind"] == listed["error"]["kind"] == "unreachable"
    assert hosts == []


async def test_the_hosts_that_are_allowed_are_those_and_no_others() -> None:
    async with sdk_agent() as agent, sdk_agent() as other, registry() as server:
        agent.tokens.add("")
        server.items = [{"name": "a", "url": agent.url}, {"name": "b", "url": other.url}]
        async with asking_with(server, REGISTRY_HOSTS=agent.url.removeprefix("http://")) as turn:
            assert (await turn.ask("a", "hello"))["status"] == "completed"
            found = await turn.ask("b", "hello")
    assert "not a public address" in found["error"]["message"]
    assert "MOLECULE_HERMES_REGISTRY_HOSTS" in found["error"]["hint"]


async def test_a_name_that_changes_its_address_is_checked_again(one_public_address: str) -> None:
    checked = PublicOnly(resolver=Resolver([one_public_address], ["127.0.0.2"]))
    async with noting() as (port, hosts), create_public_client(5, checked) as http:
        assert (await http.get(f"http://agent.test:{port}/")).status_code == 200
        with pytest.raises(NotPublicError):
            await http.get(f"http://agent.test:{port}/")
    assert hosts == [f"agent.test:{port}"]


async def test_a_name_with_one_address_that_is_not_public_is_not_called(
    one_public_address: str,
) -> None:
    checked = PublicOnly(resolver=Resolver([one_public_address, "169.254.169.254"]))
    async with noting() as (port, hosts), create_public_client(5, checked) as http:
        with pytest.raises(NotPublicError):
            await http.get(f"http://agent.test:{port}/")
    assert hosts == []


async def test_another_address_of_a_name_is_tried_if_the_first_does_not_answer() -> None:
    checked = PublicOnly(["agent.test"], Resolver(["127.0.0.3", "127.0.0.1"]))
    async with noting() as (port, hosts), create_public_client(5, checked) as http:
        found = await http.post(f"http://agent.test:{port}/", content=b"x" * 100_000)
    assert found.status_code == 200
    assert hosts == [f"agent.test:{port}"]


def certificate(folder: Path, host: str) -> ssl.SSLContext:
    """For a server; `folder/ca.pem` is what clients have to trust."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "ca.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "ca.pem", folder / "key.pem")
    return context


async def test_a_certificate_has_to_be_that_of_the_name_and_not_of_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=request.host)

    app, port = web.Application(), free_port()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    context = certificate(tmp_path, "agent.test")
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    checked = PublicOnly(["agent.test", "other.test"], Resolver(["127.0.0.1"]))
    async with create_public_client(5, checked) as http:
        assert (await http.get(f"https://agent.test:{port}/")).text == f"agent.test:{port}"
        with pytest.raises(httpx.ConnectError, match="certificate"):
            await http.get(f"https://other.test:{port}/")
    await runner.cleanup()


async def test_a_card_cannot_lead_to_another_origin() -> None:
    async with noting() as (port, hosts), sdk_agent() as agent, registry() as server:
        agent.card.supported_interfaces[0].url = f"http://127.0.0.1:{port}/rpc"
        server.items = [{"name": "found", "url": agent.url}]
        async with asking_with(server, REGISTRY_HOSTS="127.0.0.1") as turn:
            found = await turn.ask("found", "hello")
    assert found["error"]["kind"] == "unreachable"
    assert hosts == []


async def test_an_agent_that_redirects_is_not_followed() -> None:
    async def redirect(request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": f"http://127.0.0.1:{port}/x"})

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", redirect)
    async with noting() as (port, hosts), serve(app) as url, registry() as server:
        server.items = [{"name": "found", "url": url}]
        async with asking_with(server, REGISTRY_HOSTS="127.0.0.1") as turn:
            found = await turn.ask("found", "hello")
    assert "redirects" in found["error"]["message"]
    assert hosts == []


@asynccontextmanager
async def judged(server: RegistryServer) -> AsyncIterator[list[str]]:
    """The agents that can be asked after an answer of the registry has been refused."""
    async with calls_with(server.url, PeerConfig("own", url="http://127.0.0.1:9")) as calls:
        await server.read_again()
        yield [each.name for each in calls.callable_by(ASKS_ALL, "alice")]


async def test_a_registry_that_redirects_is_not_followed() -> None:
    listing = json.dumps([{"name": "found", "url": "https://agents.example"}]).encode()
    async with noting() as (port, hosts), registry() as server:
        server.status, server.body = 302, listing
        server.headers = {"Location": f"http://127.0.0.1:{port}/agents"}
        async with judged(server) as names:
            assert names == ["own"]
    assert hosts == []


@pytest.mark.parametrize("compressed", [False, True])
async def test_a_huge_document_is_refused(
    compressed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with registry() as server:
        agent = {"name": "found", "url": "https://agents.example"}
        data = json.dumps([agent, {"x": "y" * 2**21}]).encode()
        server.body = gzip.compress(data) if compressed else data
        server.headers = {"Content-Encoding": "gzip"} if compressed else {}
        async with judged(server) as names:
            assert names == ["own"]
    assert ("compressed" if compressed else "more than 1048576 bytes") in caplog.text


async def test_an_item_cannot_write_lines_or_secrets_into_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    secret = "sk-abcdefghij0123456789"
    items = [{"name": f"x\nERROR {secret}", "url": f"https://{secret}\r\n@x"} for _ in range(50)]
    async with registry(*items) as server, calls_with(server.url):
        await server.read_again()
    assert "and 45 more: left out" in caplog.text
    assert secret not in caplog.text
