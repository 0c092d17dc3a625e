"""Every failure of Hermes, from its API server to what an A2A peer is told."""

from __future__ import annotations

import pytest

from molecule_hermes.transports.chat.transport import ChatTransport
from tests.conftest import StartBridge
from tests.support.fakes import (
    KEY,
    FakeHermes,
    Reply,
    answer,
    breaking,
    chunk,
    status,
    streaming,
    upstream_error,
)
from tests.support.peers import ask, peer
from tests.support.serving import free_port

FAILURES: list[tuple[str, str, Reply]] = [
    ("auth", "the LLM's 401", streaming(*upstream_error("HTTP 401: Incorrect API key."))),
    ("model_not_found", "the LLM's 404", streaming(*upstream_error("HTTP 404: no such model x"))),
    ("rate_limit", "the LLM's 429", streaming(*upstream_error("HTTP 429: Rate limit reached"))),
    ("quota", "an empty account", streaming(*upstream_error("HTTP 429: insufficient_quota"))),
    ("quota", "a spent plan", streaming(*upstream_error("HTTP 429: plan limit reached"))),
    ("quota", "a spent quota", streaming(*upstream_error("HTTP 403: Quota exceeded"))),
    (
        "rate_limit",
        "a quota per minute",
        streaming(*upstream_error("HTTP 429: Quota exceeded (per minute), retry in 9s")),
    ),
    (
        "model_not_found",
        "a name that is no model's",
        streaming(*upstream_error("HTTP 400: x does not match any known model")),
    ),
    ("internal", "the LLM's 500", streaming(*upstream_error("HTTP 500: server error"))),
    ("context_overflow", "too long", streaming(*upstream_error("Context length exceeded"))),
    ("empty_reply", "an empty reply", streaming(*answer())),
    ("internal", "junk instead of JSON", streaming(b"data: <html>\n\n")),
    ("internal", "a page instead of a stream", status(200, text="<html>hello</html>")),
    ("interrupted", "a stream that breaks off", breaking(chunk("half of it"))),
    ("bad_request", "a refused message", status(400)),
    ("too_large", "a body too large for Hermes", status(413)),
    ("timeout", "a Hermes that stays busy", status(429)),
    ("timeout", "a Hermes that stays in its drain", status(503)),
]


@pytest.mark.parametrize(("kind", "what", "reply"), FAILURES, ids=[what for _, what, _ in FAILURES])
async def test_a_failure_of_hermes_reaches_the_peer_by_its_kind_with_a_hint(
    bridge: StartBridge, hermes: FakeHermes, kind: str, what: str, reply: Reply
) -> None:
    hermes.replies = [reply]
    async with bridge(hermes, TURN_TIMEOUT=1.5) as b, peer(b.url) as client:
        turn = await ask(client, "hi")
    assert turn.states[-1] == "FAILED"
    assert turn.failure["kind"] == kind
    assert turn.failure["message"]
    assert turn.failure["hint"] or kind == "bad_request"
    assert turn.text == ("half of it" if kind == "interrupted" else "")


async def test_a_wrong_api_key_is_reported_as_such(bridge: StartBridge, hermes: FakeHermes) -> None:
    transport = ChatTransport(hermes.base_url, "not-the-right-key")
    async with bridge(transport) as b, peer(b.url) as client:
        turn = await ask(client, "hi")
    assert turn.failure["kind"] == "auth"
    assert "API_SERVER_KEY" in turn.failure["hint"]


async def test_a_hermes_that_does_not_run_is_unreachable(bridge: StartBridge) -> None:
    transport = ChatTransport(f"http://127.0.0.1:{free_port()}/v1", KEY)
    async with bridge(transport) as b, peer(b.url) as client:
        turn = await ask(client, "hi")
    assert turn.failure["kind"] == "unreachable"
    assert turn.failure["retryable"] is True


async def test_a_silent_hermes_is_a_timeout(bridge: StartBridge, hermes: FakeHermes) -> None:
    hermes.gate.clear()
    async with bridge(hermes, TURN_TIMEOUT=0.5) as b, peer(b.url) as client:
        turn = await ask(client, "hi")
    assert turn.failure["kind"] == "timeout"


async def test_a_text_beyond_hermess_limit_is_not_sent(
    bridge: StartBridge, hermes: FakeHermes
) -> None:
    async with bridge(hermes) as b, peer(b.url) as client:
        turn = await ask(client, "x" * 65_537)
    assert turn.failure["kind"] == "too_large"
    assert hermes.requests == []
