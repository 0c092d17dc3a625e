"""What a registry of agents answers: a list of agents, parsed without any trust in it.

An item is `{name, url}`, or an agent card of A2A 1.0 or 0.3. Registries add where a card is, as
`wellKnownURI` (that of a2aregistry.org) or `well_known_uri`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH

from molecule_hermes.agents.outbound.cards import BINDINGS
from molecule_hermes.config import PeerConfig
from molecule_hermes.net.urls import plain_url

__all__ = ["MAX_AGENTS", "MAX_BYTES", "BadDocument", "Listing", "parse_listing"]

MAX_BYTES = 2**20
MAX_AGENTS = 1000
_MAX_NAME = 64
_MAX_SHOWN_NAME = 1000
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._@-]+")
_CARD_LOCATIONS = ("wellKnownURI", "well_known_uri")
_CARD_PATHS = (AGENT_CARD_WELL_KNOWN_PATH, "/.well-known/agent.json")
_OF_A_CARD = frozenset({"capabilities", "protocolVersion", "skills"})


class BadDocument(ValueError):
    """It is no list of agents."""


class _BadItem(ValueError):
    """The agent cannot be used."""


@dataclass(frozen=True, slots=True)
class Listing:
    agents: Mapping[str, PeerConfig]
    left_out: tuple[str, ...] = ()
    """The items that cannot be used, and why: words of ours only."""


def parse_listing(data: bytes) -> Listing:
    """Raises `BadDocument`, and nothing else."""
    items = _items(data)
    agents: dict[str, PeerConfig] = {}
    left_out: list[str] = []
    taken: set[str] = set()
    for number, item in enumerate(items[:MAX_AGENTS]):
        try:
            agent = _agent(item)
        except _BadItem as error:
            left_out.append(f"agents[{number}] {error}")
            continue
        if agent.name.casefold() in taken:
            left_out.append(f"agents[{number}] has the name of an earlier one")
            continue
        taken.add(agent.name.casefold())
        agents[agent.name] = agent
    if len(items) > MAX_AGENTS:
        left_out.append(f"agents[{MAX_AGENTS}] and later ones are too many")
    return Listing(agents, tuple(left_out))


def _items(data: bytes) -> list[Any]:
    if len(data) > MAX_BYTES:
        raise BadDocument(f"it has more than {MAX_BYTES} bytes")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise BadDocument("it is not JSON") from None
    items = found.get("agents") if isinstance(found, dict) else found
    if not isinstance(items, list):
        raise BadDocument("it is neither a list nor an object with a list `agents`")
    return items


def _agent(item: Any) -> PeerConfig:
    if not isinstance(item, dict):
        raise _BadItem("is not an object")
    name = _name(item.get("name"))
    for key in _CARD_LOCATIONS:
        if item.get(key):
            return PeerConfig(name, url=_above(item[key], key), from_registry=True)
    url, at_interface = _url(item)
    return PeerConfig(name, url=url, from_registry=True, at_interface=at_interface)


def _name(value: Any) -> str:
    """The name as one of a peer: cards often have names of several words."""
    if not isinstance(value, str) or len(value) > _MAX_SHOWN_NAME:
        raise _BadItem("has no name")
    name = _NOT_IN_NAMES.sub("-", value).strip("-._@")[:_MAX_NAME]
    if not name:
        raise _BadItem("has a name without a letter or a digit of ASCII")
    return name


def _url(item: Mapping[str, Any]) -> tuple[str, bool]:
    """Where the agent is, and whether that is an interface of its card."""
    if "supportedInterfaces" in item:
        return _plain(_interface(item["supportedInterfaces"]), "supportedInterfaces"), True
    return _plain(item.get("url"), "url"), not _OF_A_CARD.isdisjoint(item)


def _interface(found: Any) -> Any:
    for each in found if isinstance(found, list) else ():
        if isinstance(each, dict) and each.get("protocolBinding") in BINDINGS:
            return each.get("url")
    raise _BadItem("has no interface with JSON-RPC or HTTP+JSON")


def _above(value: Any, key: str) -> str:
    """The URL below which the card is."""
    url = _plain(value, key)
    for path in _CARD_PATHS:
        if url.endswith(path):
            return _plain(url.removesuffix(path), key)
    raise _BadItem(f"has a {key} that does not end in {AGENT_CARD_WELL_KNOWN_PATH}")


def _plain(value: Any, key: str) -> str:
    try:
        if not isinstance(value, str):
            raise ValueError("not text")  # noqa: TRY301, TRY004 - as for text that is no URL
        url = plain_url(value)
        httpx.URL(url)  # some of what others take for a URL, it refuses
    except (ValueError, httpx.InvalidURL):
        raise _BadItem(
            f"has no {key} with http:// or https:// and a host, without a user or a query"
        ) from None
    return url
