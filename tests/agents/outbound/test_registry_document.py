"""What a registry may answer, and what becomes of it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.agents.outbound.registry_document import (
    MAX_AGENTS,
    MAX_BYTES,
    BadDocument,
    Listing,
    parse_listing,
)
from molecule_hermes.config import PeerConfig
from molecule_hermes.config.fields import PEER_NAME
from molecule_hermes.net.urls import plain_url

AT = "https://agents.example/one"
CARD = {"description": "d", "version": "1", "capabilities": {}, "skills": []}


def parse(*items: Any) -> Listing:
    return parse_listing(json.dumps(list(items)).encode())


def only(item: Any) -> PeerConfig:
    (agent,) = parse(item).agents.values()
    return agent


def interface(url: str, binding: str = "JSONRPC") -> dict[str, str]:
    return {"url": url, "protocolBinding": binding, "protocolVersion": "1.0"}


LOCATED = {"name": "one", "wellKnownURI": f"{AT}/.well-known/agent-card.json"}
INTERFACES = [interface("grpc.example", "GRPC"), interface(AT)]


@pytest.mark.parametrize(
    ("item", "at_interface"),
    [
        ({"name": "one", "url": AT}, False),
        ({"name": "one", "url": f"{AT}/"}, False),
        (LOCATED, False),
        ({"name": "one", "well_known_uri": f"{AT}/.well-known/agent.json"}, False),
        ({**CARD, "url": "https://elsewhere.example", **LOCATED}, False),
        ({**CARD, "name": "one", "url": AT, "protocolVersion": "0.3.0"}, True),
        ({**CARD, "name": "one", "supportedInterfaces": INTERFACES}, True),
    ],
)
def test_an_agent_is_found_in_each_form_of_an_item(item: Any, at_interface: bool) -> None:
    expected = PeerConfig("one", url=AT, from_registry=True, at_interface=at_interface)
    assert only(item) == expected


def test_a_list_may_stand_alone_or_below_agents() -> None:
    items = [{"name": "one", "url": AT}]
    alone = parse_listing(json.dumps(items).encode())
    assert alone == parse_listing(json.dumps({"agents": items, "total": 1}).encode())
    assert list(alone.agents) == ["one"]


@pytest.mark.parametrize(
    ("shown", "name"),
    [
        ("Weather Agent", "Weather-Agent"),
        ("  ops@example.com (v2)", "ops@example.com-v2"),
        ("../../etc/passwd", "etc-passwd"),
        ("x" * 100, "x" * 64),
    ],
)
def test_a_name_of_several_words_becomes_the_name_of_a_peer(shown: str, name: str) -> None:
    assert only({"name": shown, "url": AT}).name == name


@pytest.mark.parametrize(
    "item",
    [
        None,
        7,
        "https://agents.example",
        [],
        {},
        {"name": "one"},
        {"url": AT},
        {"name": "", "url": AT},
        {"name": "支付", "url": AT},
        {"name": "x" * 1001, "url": AT},
        {"name": ["one"], "url": AT},
        {"name": "one", "url": "ftp://agents.example"},
        {"name": "one", "url": "https://user:secret@agents.example"},
        {"name": "one", "url": "https://agents.example/?token=secret"},
        {"name": "one", "url": "https://agents.example/#x"},
        {"name": "one", "url": "https://"},
        {"name": "one", "url": "https://a b"},
        {"name": "one", "url": "https://x:99999"},
        {"name": "one", "url": "http://0177.0.0.1"},
        {"name": "one", "url": "https://x\r\nHost: y"},
        {"name": "one", "url": "https://x/" + "y" * 3000},
        {"name": "one", "wellKnownURI": "https://agents.example/card.json"},
        {"name": "one", "wellKnownURI": "/.well-known/agent-card.json", "url": AT},
        {"name": "one", "supportedInterfaces": [], "url": AT},
        {"name": "one", "supportedInterfaces": [interface(AT, "GRPC")]},
        {"name": "one", "supportedInterfaces": "x"},
    ],
)
def test_an_item_that_cannot_be_used_is_left_out_and_the_others_stay(item: Any) -> None:
    found = parse({"name": "before", "url": AT}, item, {"name": "after", "url": AT})
    assert list(found.agents) == ["before", "after"]
    (said,) = found.left_out
    assert said.startswith("agents[1] ")
    assert "secret" not in said


def test_of_two_agents_with_one_name_the_first_counts() -> None:
    found = parse({"name": "One", "url": AT}, {"name": "one", "url": "https://other.example"})
    assert [agent.url for agent in found.agents.values()] == [AT]
    assert found.left_out == ("agents[1] has the name of an earlier one",)


def test_there_are_at_most_so_many_agents() -> None:
    found = parse(*({"name": f"n{n}", "url": AT} for n in range(MAX_AGENTS + 5)))
    assert len(found.agents) == MAX_AGENTS
    assert found.left_out == (f"agents[{MAX_AGENTS}] and later ones are too many",)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"7",
        b"{}",
        b'{"agents": {}}',
        b'"agents"',
        b"[" * 100_000,
        b"1" * 10_000,
        b"\xff\xfe\x00",
        b"<html>",
        b"[" + b" " * MAX_BYTES + b"]",
    ],
    ids=lambda data: repr(data[:12]),
)
def test_what_is_no_list_of_agents_is_refused(data: bytes) -> None:
    with pytest.raises(BadDocument):
        parse_listing(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
URLS = st.sampled_from([AT, f"{AT}/.well-known/agent-card.json", "http://[", "https://", "x"])
BINDINGS = st.sampled_from(["JSONRPC", "HTTP+JSON", "GRPC"]) | JSON
ITEMS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.text(max_size=80) | st.just("one") | JSON,
        "url": URLS | st.text() | JSON,
        "wellKnownURI": URLS | JSON,
        "well_known_uri": URLS | JSON,
        "skills": JSON,
        "supportedInterfaces": st.lists(
            st.fixed_dictionaries(
                {"url": URLS | JSON, "protocolBinding": st.just("JSONRPC") | JSON}
            )
            | JSON,
            max_size=3,
        )
        | JSON,
    },
)
LISTS = st.lists(ITEMS | JSON, max_size=6)
DOCUMENTS = (LISTS | st.builds(lambda items: {"agents": items}, LISTS) | JSON).map(
    lambda found: json.dumps(found).encode()
)


@given(DOCUMENTS | st.binary(max_size=200))
def test_it_parses_or_raises_the_documented_error_and_nothing_else(data: bytes) -> None:
    try:
        found = parse_listing(data)
    except BadDocument:
        return
    for name, agent in found.agents.items():
        assert re.fullmatch(PEER_NAME, name)
        assert agent == PeerConfig(
            name, url=plain_url(agent.url), from_registry=True, at_interface=agent.at_interface
        )
    assert len({name.casefold() for name in found.agents}) == len(found.agents)
