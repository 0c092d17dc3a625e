"""A chat of Hermes that its operator goes on with in a terminal or on another platform."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from molecule_hermes.errors import BadRequest, Busy, Interrupted, TurnFailure
from molecule_hermes.transports.plugin.client import PluginClient, too_old_for
from molecule_hermes.turns.model import Turn
from molecule_hermes.wire import (
    HAND_ON_PATH,
    LEND_PATH,
    MAX_HAND_ON,
    NOT_CONNECTED,
    NOT_HANDED_ON,
    HandOn,
    Lend,
)

__all__ = ["Lent", "NotConnected", "lent"]

logger = logging.getLogger(__name__)

_SECONDS = 20
_EVERY = 5.0
_GRACE = 10.0
"""Seconds for which the answer of the plugin is awaited longer than the plugin waits."""


class NotConnected(BadRequest):
    """Hermes has no such platform to hand a conversation on to."""


class Lent:
    """A conversation whose turns wait."""

    def __init__(self, client: PluginClient, turn: Turn, lease: str, session_id: str) -> None:
        self.session_id = session_id
        """Of Hermes."""
        self._client = client
        self._turn = turn
        self._lease = lease

    async def hand_on(self, platform: str, seconds: float) -> None:
        """Gives the conversation to another platform of Hermes; the peer's next message begins a
        new one. Raises a `TurnFailure`."""
        peer, within = self._turn.peer or "anonymous", max(1, min(int(seconds), MAX_HAND_ON))
        asked = HandOn(self._turn.conversation, peer, self._lease, platform, within, peer)
        try:
            status, body = await self._client.post(HAND_ON_PATH, asked, timeout=within + _GRACE)
        except aiohttp.ClientConnectorError as error:
            raise self._client.unreachable() from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Interrupted("Hermes stopped answering meanwhile") from error
        if status == 200:
            return
        reason = str(body.get("error", ""))
        if status == 409 and body.get("kind") == NOT_CONNECTED:
            raise NotConnected(reason, hint="")
        if status == 409 and body.get("kind") == NOT_HANDED_ON:
            raise Interrupted(reason)
        if status == 429:
            raise Busy(reason, hint="")
        if status == 404:
            raise too_old_for("this")
        raise self._client.refusal(status, body)


@asynccontextmanager
async def lent(client: PluginClient, turn: Turn) -> AsyncIterator[Lent]:
    """Within it, the turns of the conversation wait. Raises a `TurnFailure` if it is in use."""
    lease = uuid.uuid4().hex
    session_id = await _lend(client, turn, lease, _SECONDS)
    renewing = asyncio.create_task(_renew(client, turn, lease), name=f"lend:{turn.conversation}")
    try:
        yield Lent(client, turn, lease, session_id)
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        with contextlib.suppress(TurnFailure):  # it ends by itself
            await _lend(client, turn, lease, 0)


async def _renew(client: PluginClient, turn: Turn, lease: str) -> None:
    while True:
        await asyncio.sleep(_EVERY)
        try:
            await _lend(client, turn, lease, _SECONDS)
        except TurnFailure as failure:
            logger.warning("the conversation may go on meanwhile: %s", failure)


async def _lend(client: PluginClient, turn: Turn, lease: str, seconds: int) -> str:
    peer = turn.peer or "anonymous"
    lend = Lend(turn.conversation, peer, lease, seconds, peer, turn.profile)
    try:
        status, body = await client.post(LEND_PATH, lend)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise client.unreachable() from error
    if status == 404:
        raise too_old_for("this")
    if status == 429:
        raise Busy(str(body.get("error", "")), hint="")
    if status != 200:
        raise client.refusal(status, body)
    return str(body.get("session_id", ""))
