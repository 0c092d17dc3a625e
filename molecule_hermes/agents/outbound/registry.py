"""The registry of other agents: fetched in the background, again and again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

import httpx

from molecule_hermes.agents.outbound.cards import bounded
from molecule_hermes.agents.outbound.registry_document import (
    MAX_BYTES,
    BadDocument,
    Listing,
    parse_listing,
)
from molecule_hermes.backoff import Backoff
from molecule_hermes.config import PeerConfig, Settings
from molecule_hermes.text import one_line, redact, shorten

__all__ = ["Registry"]

logger = logging.getLogger(__name__)

REFRESH = 300.0
_TIMEOUT = 30.0
_RETRIES = Backoff(first=5.0, longest=REFRESH, jitter=0.2)
_SHOWN = 5
"""How many bad items the log names."""


class Registry:
    """What the registry named last. A document that cannot be had or read changes nothing."""

    def __init__(
        self, settings: Settings, http: httpx.AsyncClient, changed: Callable[[], None]
    ) -> None:
        self._url = settings.registry or ""
        token = settings.registry_token
        self._headers = {"Accept": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token.get_secret_value()}"
        self._http = http
        self._changed = changed
        self._listing = Listing({})
        self._reported: frozenset[str] = frozenset()
        self._trouble = ""

    @property
    def agents(self) -> Mapping[str, PeerConfig]:
        return self._listing.agents

    async def run(self) -> None:
        """Until it is canceled."""
        failures = 0
        while True:
            failures = 0 if await self.refresh() else failures + 1
            await asyncio.sleep(_RETRIES.delay(failures) if failures else REFRESH)

    async def refresh(self) -> bool:
        """Returns whether the registry answered with a list of agents."""
        try:
            async with asyncio.timeout(_TIMEOUT):
                self._take(await self._fetch())
        except (httpx.HTTPError, BadDocument, TimeoutError) as error:
            self._report_trouble(error)
            return False
        except Exception:
            logger.exception("the registry of agents could not be read")
            return False
        return True

    def _take(self, listing: Listing) -> None:
        if self._trouble:
            self._trouble = ""
            logger.info("the registry of agents can be read again")
        self._report(listing)
        if listing.agents != self._listing.agents:
            logger.info("agents that the registry names: %d", len(listing.agents))
        self._listing = listing
        self._changed()

    async def _fetch(self) -> Listing:
        response = await self._http.get(
            self._url, headers=self._headers, extensions=bounded(MAX_BYTES, _TIMEOUT)
        )
        if response.status_code != 200:
            # A URL of the operator's may have a key in its query: errors of httpx would show it.
            raise BadDocument(f"it answered with status {response.status_code}")
        return await asyncio.to_thread(parse_listing, response.content)

    def _report_trouble(self, error: Exception) -> None:
        """Each trouble once, until another one or the end of it."""
        slow = isinstance(error, TimeoutError | httpx.TimeoutException)
        said = "it did not answer in time" if slow else str(error) or type(error).__name__
        if said != self._trouble:
            self._trouble = said
            logger.warning(
                "MOLECULE_HERMES_REGISTRY cannot be read, and what it named last stays: %s",
                shorten(redact(one_line(said))),
            )

    def _report(self, listing: Listing) -> None:
        """Each item that is left out once."""
        found = frozenset(listing.left_out)
        news = [each for each in listing.left_out if each not in self._reported]
        self._reported = found
        if news:
            more = f", and {len(news) - _SHOWN} more" if len(news) > _SHOWN else ""
            logger.warning("the registry's %s%s: left out", "; ".join(news[:_SHOWN]), more)
