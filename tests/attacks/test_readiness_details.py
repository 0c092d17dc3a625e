"""Probes give reasons to everybody, but addresses and paths only to known callers."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import HTTPConnection

from molecule_hermes.config import Settings
from molecule_hermes.errors import FAILURES, StorageFailure, TurnFailure, Unreachable
from molecule_hermes.server.bridge import Bridge
from molecule_hermes.server.middleware import is_local
from molecule_hermes.text import without_addresses
from molecule_hermes.transports.chat.transport import ChatTransport
from molecule_hermes.transports.plugin.transport import PluginTransport
from tests.server.test_bridge import CARD
from tests.support.fakes import KEY, ScriptedTransport
from tests.support.raw_http import TOKEN, TOKENS
from tests.support.serving import free_port

PROBES = ("/readyz", "/healthz", "/startupz")
INTERNAL = ("10.1.2.3", "8645", "hermes.internal", "/var/lib", "gateway.log", "tasks.db")
WARNING = (
    "the plugin is not bound: the bridge looks for it at port 8645, "
    "/var/lib/hermes/config.yaml says 9999; continuing over chat completions"
)
FORWARDED = (
    {"X-Forwarded-For": "203.0.113.7"},
    {"X-Forwarded-Proto": "https"},
    {"Forwarded": "for=203.0.113.7"},
    {"Via": "1.1 proxy"},
    {"X-Real-IP": "203.0.113.7"},
    {"Host": "agent.example"},
    {"X-Forwarded-For": "203.0.113.7", "Authorization": "Bearer wrong"},
)


def failing(message: str, hint: str = "") -> Callable[[], Awaitable[None]]:
    async def check() -> None:
        raise Unreachable(message, hint=hint)

    return check


CHECKS = {
    "gateway": failing("the Hermes gateway is not running", "its log is /var/lib/x/gateway.log"),
    "plugin": failing("Hermes does not answer at http://hermes.internal:8645"),
    "model": failing("Cannot connect to host 10.1.2.3:443 ssl:default [refused]"),
    "files": failing("the disk that holds tasks.db fails"),
}


async def test_an_unknown_caller_gets_reasons_without_addresses(
    settings: Callable[..., Settings],
) -> None:
    made = settings(PEER_TOKENS=TOKENS)
    async with (
        Bridge(made, ScriptedTransport(), checks=CHECKS, warnings=[WARNING]) as b,
        httpx.AsyncClient(base_url=b.url) as http,
    ):
        for headers in FORWARDED:
            for path in PROBES:
                answered = await http.get(path, headers=headers)
                assert answered.status_code == 503
                assert not [word for word in INTERNAL if word in answered.text], answered.text
        report = answered.json()
        card = (await http.get(CARD)).json()
    parts = report["parts"]
    assert report["ready"] is False
    assert parts["hermes"] == {"ok": True}
    assert parts["gateway"]["reason"] == "the Hermes gateway is not running"
    assert parts["plugin"]["reason"] == "Hermes does not answer at …"
    assert parts["files"]["reason"] == "the disk that holds … fails"
    assert report["warnings"][0].startswith("the plugin is not bound: the bridge looks for it")
    assert "the plugin is not bound" in card["description"]
    assert not [word for word in INTERNAL if word in card["description"]]


@pytest.mark.parametrize("headers", [{}, {"Via": "x", "Authorization": f"Bearer {TOKEN}"}])
async def test_a_caller_with_a_token_or_on_this_machine_gets_everything(
    settings: Callable[..., Settings], headers: dict[str, str]
) -> None:
    made = settings(PEER_TOKENS=TOKENS)
    async with (
        Bridge(made, ScriptedTransport(), checks=CHECKS, warnings=[WARNING]) as b,
        httpx.AsyncClient(base_url=b.url, headers=headers) as http,
    ):
        for path in PROBES:
            report = (await http.get(path)).json()
            parts = report["parts"]
            assert parts["gateway"]["hint"] == "its log is /var/lib/x/gateway.log"
            assert parts["plugin"]["reason"].endswith("http://hermes.internal:8645")
            assert report["warnings"] == [WARNING]


@pytest.mark.parametrize("plugin", [True, False])
async def test_unknown_callers_do_not_learn_where_hermes_is(
    settings: Callable[..., Settings], plugin: bool
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    transport = PluginTransport(url, secret="s") if plugin else ChatTransport(f"{url}/v1", KEY)
    async with (
        Bridge(settings(PEER_TOKENS=TOKENS), transport) as b,
        httpx.AsyncClient(base_url=b.url) as http,
    ):
        unknown = await http.get("/readyz", headers={"Via": "1.1 proxy"})
        known = await http.get("/readyz")
    assert str(port) in known.text
    assert str(port) not in unknown.text
    assert "does not answer" in unknown.json()["parts"]["hermes"]["reason"]


@pytest.mark.parametrize("client", ["203.0.113.7", "10.0.0.1", "::ffff:10.0.0.1", "fe80::1"])
def test_another_machine_is_not_local(client: str) -> None:
    assert not is_local(connection(client, host="localhost:8000"))


@pytest.mark.parametrize("client", ["127.0.0.1", "127.0.0.2", "::1", "::ffff:127.0.0.1"])
def test_this_machine_is_local(client: str) -> None:
    assert is_local(connection(client, host="127.0.0.1:8000"))
    assert is_local(connection(client, host="[::1]:8000"))
    assert not is_local(connection(client, host="rebound.example"))
    assert not is_local(connection(client, host="localhost", via="x"))


def connection(client: str, **headers: str) -> HTTPConnection:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    return HTTPConnection(
        {
            "type": "http",
            "client": (client, 5),
            "headers": raw,
            "path": "/",
            "scheme": "http",
            "server": ("127.0.0.1", 8000),
            "query_string": b"",
        }
    )


@pytest.mark.parametrize("failure", [*FAILURES.values(), StorageFailure])
def test_reasons_stay_readable_without_addresses(failure: type[TurnFailure]) -> None:
    assert without_addresses(failure.default_message) == failure.default_message


NUMBERS = ["10.0.0.1", "(10.0.0.1)", "[::1]:80", "fe80::1", "db:5432", "8645"]
NAMES = ["db.internal", "user@host", "http://x/y", "unix:///run/x", "file:x"]
PATHS = ["/etc/x", "./x", "~/x", "C:\\x", "'/a/b'"]
ADDRESSES = st.sampled_from([*NUMBERS, *NAMES, *PATHS])


@given(st.lists(st.sampled_from(["Hermes", "does", "not", "answer", "at"])), ADDRESSES, st.text())
def test_everything_that_looks_like_an_address_is_removed(
    words: list[str], host: str, end: str
) -> None:
    told = without_addresses(" ".join([*words, host, end]))
    assert told.split()[: len(words)] == words
    assert told.split()[len(words)] == "…"
    assert not re.search(r"[/\\@\d]{3}|\w[.:]\w*[A-Za-z]", told)
