"""Whether the plugin inside Hermes keeps what a message relies on: its profile, its toolsets, and
the conversation that it hands over.

An older plugin ignores all of them. It would run the message as Hermes's root agent, with all
tools, or without the conversation, so it is asked first, once in each of its runs, and its
acceptance has to repeat them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp

from molecule_hermes.errors import TurnFailure
from molecule_hermes.transports.plugin.client import PluginClient, too_old_for
from molecule_hermes.turns.model import Turn
from molecule_hermes.wire import CHECK_PATH, PROFILE_REFUSED, Check

__all__ = ["Served"]


class Served:
    def __init__(
        self,
        client: PluginClient,
        url: Callable[[], str],
        *,
        bridge: str = "",
        deliveries: Callable[[], bool] = lambda: False,
    ) -> None:
        """`deliveries` says whether the bridge with that name takes them."""
        self._client = client
        self._bridge = bridge
        self._deliveries = deliveries
        self._url = url
        self._telling = asyncio.Event()
        """Set once there is something to agree on."""
        self._told: tuple[str, bool] = ("", False)
        """The run of the plugin that was last told whether deliveries are taken, and what."""
        self._known: dict[str, str] = {}
        """The run of the plugin that was last seen to serve each profile, and toolsets."""
        self._hands_over = ""
        """The run of the plugin that was last seen to take conversations."""

    async def check(self, profile: str) -> None:
        """Raises aiohttp's errors, or the `TurnFailure` of a turn with this profile."""
        instance, deliveries = self._client.instance, self._deliveries()
        check = Check(self._url(), profile, self._bridge, deliveries=deliveries)
        status, body = await self._client.post(CHECK_PATH, check)
        if status in (401, 403) or (profile and body.get("kind") == PROFILE_REFUSED):
            raise self._client.refusal(status, body)
        if profile and status not in (200, 404):
            raise self._client.refusal(status, body)
        if status in (200, 404):
            self._told = (instance, deliveries)
        # An older plugin does not know the path. It answers 404 after checking the secret.
        if profile and body.get("profile") != profile:
            raise too_old_for(f"the profile {profile!r}")
        if body.get("toolsets"):
            self._known[profile] = self._client.instance
        if body.get("handoff"):
            self._hands_over = self._client.instance

    async def require(self, turn: Turn) -> None:
        """Asks about what the turn relies on, if this run of the plugin was not asked yet."""
        if turn.handoff is None and not turn.profile and turn.toolsets is None:
            return
        instance = self._client.instance
        known = self._known.get(turn.profile) == instance != ""
        if known and (turn.handoff is None or self._hands_over == instance):
            return
        with contextlib.suppress(ValueError):
            await self._client.health(timeout=3.0)
        await self.check(turn.profile)
        if turn.handoff is not None and self._hands_over != self._client.instance:
            raise too_old_for("handoffs")
        if turn.profile not in self._known:
            raise too_old_for("toolsets")

    def wake(self) -> None:
        """From now on, each run of the plugin is told whether deliveries are taken."""
        self._telling.set()

    async def keep_told(self, profile: str, every: float) -> None:
        """Tells each run of the plugin, also while there is no turn."""
        await self._telling.wait()
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, ValueError, TurnFailure):
                await self._tell(profile)
            await asyncio.sleep(every)

    async def _tell(self, profile: str) -> None:
        await self._client.health(timeout=3.0)
        if self._told != (self._client.instance, self._deliveries()):
            await self.check(profile)

    def accepted(self, turn: Turn, body: Mapping[str, Any]) -> None:
        """Raises if the plugin accepted the message without what it relies on: Hermes was started
        again with an older one meanwhile."""
        if turn.profile and body.get("profile") != turn.profile:
            raise too_old_for(f"the profile {turn.profile!r}")
        if turn.toolsets is not None and not body.get("toolsets"):
            raise too_old_for("toolsets")
        if turn.handoff is not None and not body.get("handoff"):
            raise too_old_for("handoffs")
