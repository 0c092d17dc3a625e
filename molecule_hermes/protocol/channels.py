"""Ways to a peer that its operator has configured, for deliveries: besides the peer's own webhooks.

A channel that a delivery is to go through is stored like a webhook of its task, so the same queue,
the same retries and the same memory of what was told apply to it. No peer sees it or can name it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import aiohttp
from a2a.types import Task, TaskPushNotificationConfig

from molecule_hermes.protocol.caller import Caller

__all__ = ["Channel", "PeerWebhook", "WebhookChannel", "channel_config", "is_channel", "named"]

_PREFIX = "channel:"


class Channel(Protocol):
    """One kind of way, to those peers that have it."""

    def serves(self, peer: str) -> bool: ...

    async def send(self, to: Caller, body: dict[str, Any], ended: Task | None) -> int:
        """Passes on an event of a delivery, as a webhook gets it; `ended` is the task at its end.
        `to` is its peer, with the agent that speaks.

        Returns an HTTP status: one from 200 to 299 if it has arrived, 408, 429 or one from 500 if
        it is to be sent again, any other if it is given up. Sent more than once, if the bridge dies
        before it has noted the arrival.
        """


def channel_config(name: str, to: Caller) -> TaskPushNotificationConfig:
    return TaskPushNotificationConfig(id=_PREFIX + name, url=_PREFIX + to.user_name)


def is_channel(config: TaskPushNotificationConfig) -> bool:
    return config.id.startswith(_PREFIX)


def named(config: TaskPushNotificationConfig) -> tuple[str, Caller]:
    """The name of the channel, and whom it leads to."""
    return config.id.removeprefix(_PREFIX), Caller.from_scope(config.url.removeprefix(_PREFIX))


class PeerWebhook(Protocol):
    """Where a peer's deliveries are posted, as its operator says."""

    @property
    def url(self) -> str: ...

    @property
    def headers(self) -> Mapping[str, str]: ...


class WebhookChannel:
    """Posts to the webhooks of the configuration. Their addresses need not be public, because the
    operator names them, and no redirect leads to another."""

    def __init__(self, *, timeout: float = 10.0) -> None:
        self.webhooks: Mapping[str, PeerWebhook] = {}
        """By peer. Can be replaced."""
        self._timeout = timeout

    def serves(self, peer: str) -> bool:
        return peer in self.webhooks

    async def send(self, to: Caller, body: dict[str, Any], ended: Task | None) -> int:
        webhook = self.webhooks.get(to.peer)
        if webhook is None:
            return 410
        try:
            async with (
                aiohttp.ClientSession(
                    cookie_jar=aiohttp.DummyCookieJar(),
                    timeout=aiohttp.ClientTimeout(total=self._timeout),
                    trust_env=False,
                ) as session,
                session.post(
                    webhook.url, json=body, headers=dict(webhook.headers), allow_redirects=False
                ) as response,
            ):
                return response.status
        except ValueError:  # a header that cannot be sent
            return 400
        except (aiohttp.ClientError, TimeoutError, OSError):
            return 503
