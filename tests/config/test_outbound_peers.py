"""Peers that can be called, in the configuration file."""

from __future__ import annotations

from pathlib import Path

import pytest

from molecule_hermes.config import AgentConfig, OAuthClient, PeerConfig
from tests.config.test_file import TOKEN, folder, load, problem

__all__ = ["folder"]


def test_a_peer_is_called_at_its_url_with_a_token(folder: Path) -> None:
    found = load(
        folder,
        "peers:\n  other: {url: 'https://other.example/a2a/', bearer_file: secret,"
        " card_key_file: soul.md}\n",
    )
    peer = found.peers["other"]
    assert peer.url == "https://other.example/a2a"
    assert peer.bearer is not None
    assert peer.bearer.get_secret_value() == TOKEN
    assert peer.card_keys == b"You are kind."
    assert TOKEN not in repr(found)
    # It is not called by this peer, which is no mistake.
    assert found.warnings == ()
    assert found.secret_files == (folder / "secret",)


def test_a_peer_is_called_with_the_tokens_of_client_credentials(folder: Path) -> None:
    found = load(
        folder,
        "peers:\n  other:\n    url: https://other.example\n    oauth: {token_url:"
        " 'https://login.example/token', client_id: us, client_secret_file: secret,"
        " scope: a b}\n",
    )
    oauth = found.peers["other"].oauth
    assert isinstance(oauth, OAuthClient)
    assert (oauth.token_url, oauth.client_id) == ("https://login.example/token", "us")
    assert (oauth.client_secret.get_secret_value(), oauth.scope) == (TOKEN, "a b")
    assert TOKEN not in repr(found)


@pytest.mark.parametrize(
    ("peer", "line"),
    [
        ("{bearer_file: secret}", "peers.x.bearer_file is for calling the peer, and there is no"),
        ("{url: 'ftp://x'}", "peers.x.url='ftp://x' is not valid"),
        ("{url: 'http://me:secret@x'}", "is not valid: it takes a URL with"),
        ("{url: 'http://x/?a=b'}", "is not valid: it takes a URL with"),
        (
            "{url: 'http://x', bearer_file: secret, oauth: {}}",
            "peers.x.oauth cannot stand beside bearer_file",
        ),
        ("{url: 'http://x', oauth: {}}", "peers.x.oauth needs client_id"),
        (
            "{url: 'http://x', oauth: {client_id: a, token_url: 'http://t'}}",
            "peers.x.oauth needs client_secret_file",
        ),
        ("{url: 'http://x', bearer_file: missing}", "names a file that cannot be read"),
        ("{url: 'http://x', oauth: {secret: x}}", "peers.x.oauth.secret is not known"),
    ],
)
def test_a_mistake_is_told_with_its_line(folder: Path, peer: str, line: str) -> None:
    found = problem(folder, f"peers:\n  x: {peer}\n")
    assert found.startswith("FILE:2: ")
    assert line in found


def test_an_agent_calls_all_peers_but_the_one_it_works_for_unless_it_says_whom() -> None:
    free = AgentConfig()
    assert free.may_call(PeerConfig("bee"), "alice")
    assert not free.may_call(PeerConfig("alice"), "alice")
    bound = AgentConfig(calls=("bee", "res*"))
    assert bound.may_call(PeerConfig("bee"), "bee")
    assert bound.may_call(PeerConfig("research"), "")
    assert not bound.may_call(PeerConfig("alice"), "bob")
    assert not AgentConfig(calls=()).may_call(PeerConfig("bee"), "alice")


def test_what_an_agent_calls_is_read(folder: Path) -> None:
    found = load(folder, "agents:\n  main: {calls: [bee, 're*']}\n")
    assert found.agents["main"].calls == ("bee", "re*")
    assert load(folder, "agents:\n  main: {calls: []}\n").agents["main"].calls == ()


def test_a_peers_place_in_the_file_does_not_make_it_another_peer() -> None:
    assert PeerConfig("x", url="http://x", source="a:1") == PeerConfig(
        "x", url="http://x", source="a:9"
    )


def test_a_pattern_of_calls_that_no_agent_answers_to_is_a_warning(folder: Path) -> None:
    text = "agents:\n  main: {calls: [bee, 'x*']}\npeers:\n  bee: {url: 'http://bee'}\n"
    (warning,) = load(folder, text + "  xavier: {token_file: secret}\n").warnings
    assert warning.endswith("agents.yaml:2: agents.main calls 'x*', and no such peer has a url")
