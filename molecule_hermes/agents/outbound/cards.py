"""The cards of other agents: fetched from the configured URL, checked, and kept for a while."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import httpx
from a2a.client.card_resolver import parse_agent_card
from a2a.types import AgentCard, AgentInterface
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH, TransportProtocol
from google.protobuf.json_format import ParseError

from molecule_hermes.agents.outbound.failures import BadAgent
from molecule_hermes.agents.outbound.http import MAX_CARD
from molecule_hermes.agents.outbound.signatures import require_signature
from molecule_hermes.config import PeerConfig
from molecule_hermes.text import redact, shorten

__all__ = ["BINDINGS", "Cards"]

BINDINGS = [TransportProtocol.JSONRPC.value, TransportProtocol.HTTP_JSON.value]
LIFETIME = 300.0
_TIMEOUT = 10.0


class Cards:
    """The card of one agent. Raises errors of httpx, `NotPublicError` and `BadAgent`."""

    def __init__(
        self,
        peer: PeerConfig,
        http: httpx.AsyncClient,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._peer = peer
        self._http = http
        self._clock = clock
        self._card: AgentCard | None = None
        self._until = 0.0
        self._fetching = asyncio.Lock()

    async def get(self) -> AgentCard:
        """The card with those interfaces only that are where the configuration says."""
        async with self._fetching:
            if self._card is None or self._clock() >= self._until:
                async with asyncio.timeout(_TIMEOUT):
                    self._card = await self._fetch()
                self._until = self._clock() + LIFETIME
        return self._card

    def forget(self) -> None:
        """It may be another one now."""
        self._until = 0.0

    async def _fetch(self) -> AgentCard:
        response = await self._get(self._peer.url)
        if at_origin := self._peer.at_interface and response.is_client_error:
            response = await self._get(str(httpx.URL(self._peer.url).join("/")).rstrip("/"))
        response.raise_for_status()
        card = self._parse(response)
        if at_origin and not any(_is_at(i, self._peer.url) for i in card.supported_interfaces):
            raise self._elsewhere(card)
        await require_signature(self._peer, card, self._http)
        return self._confined(card)

    async def _get(self, base: str) -> httpx.Response:
        url = f"{base}{AGENT_CARD_WELL_KNOWN_PATH}"
        return await self._http.get(url, extensions=bounded(MAX_CARD, _TIMEOUT))

    def _parse(self, response: httpx.Response) -> AgentCard:
        try:
            return parse_agent_card(response.json())
        except (ValueError, ParseError, RecursionError, TypeError, AttributeError) as error:
            raise BadAgent(
                f"the card of the agent {self._peer.name!r} cannot be read",
                hint=f"the operator must check url of peers.{self._peer.name}",
            ) from error

    def _confined(self, card: AgentCard) -> AgentCard:
        """No card leads anywhere else: only its interfaces at the configured origin are used."""
        here = _origin(self._peer.url)
        usable = [i for i in _known(card) if _origin(i.url) == here]
        if not usable:
            raise self._elsewhere(card)
        confined = AgentCard()
        confined.CopyFrom(card)
        del confined.supported_interfaces[:]
        confined.supported_interfaces.extend(usable)
        return confined

    def _elsewhere(self, card: AgentCard) -> BadAgent:
        known = _known(card)
        where = f"at {_shown(known[0].url)}" if known else "over no binding that is supported"
        return BadAgent(
            f"the card of the agent {self._peer.name!r} says that it answers {where}, and not "
            "at the configured URL",
            hint=f"the operator must set url of peers.{self._peer.name} to where it answers",
        )


def _known(card: AgentCard) -> list[AgentInterface]:
    return [i for i in card.supported_interfaces if i.protocol_binding in BINDINGS]


def _is_at(interface: AgentInterface, url: str) -> bool:
    return interface.url.rstrip("/") == url


def bounded(size: int, timeout: float) -> dict[str, object]:
    """Extensions of a request whose response is small and soon there."""
    return {"max_bytes": size, "timeout": httpx.Timeout(timeout, connect=5.0).as_dict()}


def _origin(url: str) -> tuple[str, str, int] | None:
    try:
        parts = urlsplit(url)
        port = parts.port or {"https": 443, "http": 80}.get(parts.scheme, 0)
    except ValueError:
        return None
    return parts.scheme.lower(), (parts.hostname or "").lower(), port


def _shown(url: str) -> str:
    return json.dumps(shorten(redact(url), 200))
