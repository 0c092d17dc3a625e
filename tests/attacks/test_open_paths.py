"""Public paths can only be read, and no setting mounts anything else there."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from a2a.server.request_handlers import RequestHandler
from a2a.server.routes import create_rest_routes
from hypothesis import given
from hypothesis import strategies as st
from starlette.routing import Route

from molecule_hermes.config import Settings
from molecule_hermes.errors import ConfigError
from molecule_hermes.turns.model import Completed
from tests.conftest import StartBridge
from tests.server.test_bridge import CARD, rpc, text_message
from tests.support.fakes import ScriptedTransport
from tests.support.raw_http import HEAD, TOKENS, connected, get, post, status_of

BODY = json.dumps(rpc("SendMessage", text_message())).encode()
OPEN = [CARD, "/.well-known/agent.json", "/livez", "/readyz", "/startupz", "/healthz"]


@pytest.mark.parametrize("path", OPEN)
async def test_a_public_path_runs_no_message_whatever_is_mounted_there(
    bridge: StartBridge, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The setting is refused at the start, but an embedding program could still pass such a URL.
    monkeypatch.setattr("molecule_hermes.server.app.path_prefix", lambda url: path)
    transport = ScriptedTransport(Completed("ran"))
    async with bridge(transport, PEER_TOKENS=TOKENS) as b:
        assert await status_of(b.url, get(path)) == 200
        for sent in (path, path.replace("e", "%65"), f"{path}?x=/livez"):
            assert await status_of(b.url, post(sent, BODY)) == 405
        for sent in (f"{path}/", f"/{path}", f"{path}/../", f"{path};x", f"{path}%00"):
            assert await status_of(b.url, post(sent, BODY)) == 401
    assert transport.turns == []


async def test_only_get_and_head_need_no_token(bridge: StartBridge) -> None:
    async with bridge(ScriptedTransport(), PEER_TOKENS=TOKENS) as b:
        for path in OPEN:
            async with connected(b.url) as peer:
                await peer.send(f"HEAD {path} HTTP/1.1\r\n".encode() + HEAD + b"\r\n")
                assert (await peer.head()).startswith("HTTP/1.1 200")
            for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
                request = f"{method} {path} HTTP/1.1\r\n".encode() + HEAD + b"\r\n"
                assert await status_of(b.url, request) == 405
        for path in ("/metrics", "/tasks", "/extendedAgentCard", "/x/tasks"):
            assert await status_of(b.url, get(path)) == 401


async def test_bad_host_headers_are_refused_without_a_stack_trace(
    bridge: StartBridge, caplog: pytest.LogCaptureFixture
) -> None:
    hosts = (b"[", b"[::1", b"a b", b"\xff", b"localhost:x", b"", b"localhost@evil", b"[x]:1")
    async with bridge(ScriptedTransport()) as b:
        for host in hosts:
            request = b"GET /readyz HTTP/1.1\r\nHost: %s\r\n\r\n" % host
            assert await status_of(b.url, request) in (200, 400, 403), host
    assert "Traceback" not in caplog.text


def own_paths() -> list[str]:
    """Every path that the bridge serves, with and without values for its parameters."""
    rest = create_rest_routes(cast("RequestHandler", None), enable_v0_3_compat=True)
    paths = [route.path for route in rest if isinstance(route, Route)]
    filled = [path.replace("{id}", "x").replace("{push_id}", "y") for path in paths]
    return sorted({*paths, *filled, *OPEN, "/metrics", "/console"})


@pytest.mark.parametrize("path", own_paths())
def test_a_public_url_on_a_path_of_the_bridge_is_refused(path: str) -> None:
    refused(f"http://host{path}")
    refused(f"https://host:8000{path}/")
    if path.count("/") == 1 or path.startswith("/.well-known/"):
        refused(f"https://host/agents{path}")


@pytest.mark.parametrize(
    "url",
    [
        "http://host/{path}",
        "http://host/a/{rest:path}",
        "http://host/a?b=c",
        "http://host/a#b",
        "http://host/?",
        "http://user@host/a",
        "http://user:password@host/a",
        "http://host/../readyz",
        "http://host/a/..",
        "http://host/./a",
        "http://host/a//b",
        "http://host/%72eadyz",
        "http://host/a%2fb",
        "http://host/a b",
        "http://host/a\nb",
        "http://ho\tst/a",
        "http://host/a\x00",
        "http://host/a\\b",
        "http://host/ä",
        "http://host/a:b",
        "http://host:0/a",
        "http://host:70000/a",
        "http://[::1/a",
        "http://[x]/a",
        "http:///a",
        "//host/a",
        "host",
    ],
)
def test_a_public_url_with_more_than_a_plain_path_is_refused(url: str) -> None:
    refused(url)


def refused(url: str) -> None:
    with pytest.raises(ConfigError, match="MOLECULE_HERMES_PUBLIC_URL") as caught:
        public_url(url)
    line = str(caught.value)
    assert "the URL that peers use" in line
    assert "\n" not in line
    assert "password" not in line


def public_url(url: str) -> str | None:
    return Settings.from_env({"MOLECULE_HERMES_PUBLIC_URL": url}).public_url


@pytest.mark.parametrize(
    ("url", "read"),
    [
        ("http://agent:8000", "http://agent:8000"),
        ("https://agents.example/hermes/", "https://agents.example/hermes"),
        (
            "https://agents.example/team_a/v1.2/~hermes",
            "https://agents.example/team_a/v1.2/~hermes",
        ),
        ("http://[::1]:8000/a", "http://[::1]:8000/a"),
        ("HTTPS://Example.COM/", "HTTPS://Example.COM"),
    ],
)
def test_plain_public_urls_are_accepted(url: str, read: str) -> None:
    assert public_url(url) == read


@given(st.text(alphabet="/.{}%?#@:\\ \n\x00abz-_~", max_size=12))
def test_a_public_url_is_refused_or_has_a_path_of_plain_names(path: str) -> None:
    try:
        url: Any = public_url(f"http://host/{path}")
    except ConfigError:
        return
    assert not set(url.removeprefix("http://host")) & set("{}%?#@:\\ \n\x00")
    assert "//" not in url.removeprefix("http://")
