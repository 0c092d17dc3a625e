"""A chat of Hermes that its operator goes on with in a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from molecule_hermes.errors import Busy, TurnFailure
from molecule_hermes.transports.plugin.client import PluginClient, too_old_for
from molecule_hermes.turns.model import Turn
from molecule_hermes.wire import LEND_PATH, Lend

__all__ = ["lent"]

logger = logging.getLogger(__name__)

_SECONDS = 20
_EVERY = 5.0


@asynccontextmanager
async def lent(client: PluginClient, turn: Turn) -> AsyncIterator[str]:
    """Within it, the turns of the conversation wait. Yields the id of its session; raises a
    `TurnFailure` if it is in use."""
    lease = uuid.uuid4().hex
    session_id = await _lend(client, turn, lease, _SECONDS)
    renewing = asyncio.create_task(_renew(client, turn, lease), name=f"lend:{turn.conversation}")
    try:
        yield session_id
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
