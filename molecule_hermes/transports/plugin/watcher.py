"""Ends the turns of a Hermes that died.

After kill -9 there is no final callback, and a restarted Hermes does not know the message.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import aiohttp

from molecule_hermes.errors import Interrupted, TurnFailure
from molecule_hermes.transports.plugin.client import PluginClient
from molecule_hermes.transports.plugin.replies import Replies
from molecule_hermes.turns.model import Failed

__all__ = ["Watcher"]

_REFUSED_LIMIT = 2
"""After this many refused connections in a row, Hermes counts as dead."""


class Watcher:
    """`accepted` has the run of Hermes that accepted each message. Hermes may show no sign of life
    for `silent_for` seconds."""

    def __init__(
        self,
        client: PluginClient,
        replies: Replies,
        accepted: Mapping[str, str],
        *,
        every: float,
        silent_for: float,
    ) -> None:
        self._client = client
        self._replies = replies
        self._accepted = accepted
        self._every = every
        self._silent_for = silent_for
        self._pending = asyncio.Event()

    def wake(self) -> None:
        """There is a turn to watch."""
        self._pending.set()

    async def run(self) -> None:
        refused, signs = 0, _SignsOfLife(self._replies)
        while True:
            await self._pending.wait()
            # A message that is accepted during the check may be with the next Hermes.
            accepted = dict(self._accepted)
            if not accepted:
                refused = 0
                signs.seen()
            try:
                instance = str((await self._client.health(timeout=5.0)).get("instance", ""))
                refused = 0
                signs.seen()
                self._interrupt_unless(instance, accepted)
            except aiohttp.ClientConnectorError:
                refused += 1
            except (aiohttp.ClientError, TimeoutError, ValueError, TurnFailure):
                # Something listens again, so the refused connections were another Hermes's.
                refused = 0
            if refused >= _REFUSED_LIMIT or signs.seconds_ago() > self._silent_for:
                self._interrupt_unless(None, accepted)
            if not len(self._replies):
                self._pending.clear()
            await asyncio.sleep(self._every)

    def _interrupt_unless(self, instance: str | None, accepted: Mapping[str, str]) -> None:
        """Ends every turn that was accepted by another instance than the one that runs now."""
        for message_id, accepted_by in accepted.items():
            reply = self._replies.get(message_id)
            if reply is not None and accepted_by != instance:
                reply.add(Failed(Interrupted("Hermes died during the turn")))


class _SignsOfLife:
    """The answers of a Hermes, and its callbacks: with many turns at once, it can take long to
    answer."""

    def __init__(self, replies: Replies) -> None:
        self._replies = replies
        self.seen()

    def seen(self) -> None:
        self._taken, self._at = self._replies.taken, time.monotonic()

    def seconds_ago(self) -> float:
        if self._replies.taken != self._taken:
            self.seen()
        return time.monotonic() - self._at
