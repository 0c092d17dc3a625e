"""Push notifications: a task's events to its peer's webhook, outside of the turn.

The SDK's own sender makes one attempt and is awaited inside the event consumer, so that a slow
webhook holds up the task's events. Here every webhook of a task has a lane: events go out one by
one, in order, with retries, and a lane that falls behind loses its oldest updates, never the last
state.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any, Self

import aiohttp
from a2a.server.context import ServerCallContext
from a2a.server.tasks import PushNotificationConfigStore, PushNotificationSender
from a2a.server.tasks.push_notification_sender import PushNotificationEvent
from a2a.types import (
    Task,
    TaskArtifactUpdateEvent,
    TaskPushNotificationConfig,
    TaskStatusUpdateEvent,
)
from a2a.utils.errors import InvalidParamsError
from a2a.utils.proto_utils import to_stream_response
from google.protobuf.json_format import MessageToDict

from molecule_hermes.backoff import Backoff
from molecule_hermes.errors import StorageFailure
from molecule_hermes.net.addresses import NotPublicError, PublicOnly
from molecule_hermes.protocol.numbers import with_whole_numbers
from molecule_hermes.storage.base import ENDED

__all__ = ["PushConfigs", "PushSender"]

logger = logging.getLogger(__name__)

MAX_CONFIGS = 8
"""Webhooks of one task."""
MAX_CONFIG = 16 * 1024
"""Bytes of a configuration: its URL, its token and its credentials."""
_CONNECTIONS = 256
_BACKOFF = Backoff(first=0.5, longest=30.0, jitter=0.2)
_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})


class PushConfigs(PushNotificationConfigStore):
    """The stored configurations, and which tasks have any: most have none, and are asked for at
    every event."""

    def __init__(self, stored: PushNotificationConfigStore) -> None:
        self._stored = stored
        self._tasks: set[str] = set()

    async def set_info(
        self,
        task_id: str,
        notification_config: TaskPushNotificationConfig,
        context: ServerCallContext,
    ) -> TaskPushNotificationConfig | None:
        if notification_config.ByteSize() > MAX_CONFIG:
            raise InvalidParamsError(f"a push configuration has at most {MAX_CONFIG:,} bytes")
        if any(not value.isprintable() for value in _headers(notification_config).values()):
            raise InvalidParamsError("a webhook's token and credentials have no control characters")
        known = await self._stored.get_info(task_id, context)
        new = all(config.id != (notification_config.id or task_id) for config in known)
        if new and len(known) >= MAX_CONFIGS:
            raise InvalidParamsError(f"a task has at most {MAX_CONFIGS} push configurations")
        self._tasks.add(task_id)
        return await self._stored.set_info(task_id, notification_config, context)

    async def get_info(
        self, task_id: str, context: ServerCallContext
    ) -> list[TaskPushNotificationConfig]:
        return await self._stored.get_info(task_id, context)

    async def get_info_for_dispatch(self, task_id: str) -> list[TaskPushNotificationConfig]:
        if task_id not in self._tasks:
            return []
        return await self._stored.get_info_for_dispatch(task_id)

    async def recall(self, task_id: str) -> bool:
        """Whether a task of an earlier life of the bridge has any; from now on it is known."""
        if found := bool(await self._stored.get_info_for_dispatch(task_id)):
            self._tasks.add(task_id)
        return found

    def ended(self, task_id: str) -> None:
        self._tasks.discard(task_id)

    async def delete_info(
        self, task_id: str, context: ServerCallContext, config_id: str | None = None
    ) -> None:
        await self._stored.delete_info(task_id, context, config_id)
        if not await self._stored.get_info_for_dispatch(task_id):
            self._tasks.discard(task_id)


class PushSender(PushNotificationSender):
    """Open for the life of the bridge; on exit what waits gets `flush_for` seconds."""

    def __init__(
        self,
        configs: PushConfigs,
        addresses: PublicOnly,
        *,
        max_waiting: int = 256,
        attempts: int = 5,
        backoff: Backoff = _BACKOFF,
        timeout: float = 10.0,
        flush_for: float = 5.0,
    ) -> None:
        self.configs = configs
        self._addresses = addresses
        self._max_waiting = max_waiting
        self._attempts = attempts
        self._backoff = backoff
        self._timeout = timeout
        self._flush_for = flush_for
        self._lanes: dict[tuple[str, str], _Lane] = {}
        self._session: aiohttp.ClientSession | None = None
        self._announcer: asyncio.Task[None] | None = None
        self.failed = 0
        """Notifications that were given up or dropped."""

    @property
    def waiting(self) -> int:
        return sum(len(lane.events) for lane in self._lanes.values())

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            # So that webhooks that hang hold up only those at the same address.
            connector=self._addresses.connector(_CONNECTIONS, _CONNECTIONS // 8),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=self._timeout),
            trust_env=False,
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        workers = [lane.worker for lane in self._lanes.values() if lane.worker is not None]
        if self._announcer is not None:
            workers.append(self._announcer)
        if workers:
            await asyncio.wait(workers, timeout=self._flush_for)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    def announce(self, events: Sequence[TaskStatusUpdateEvent]) -> None:
        """Tells of tasks that an earlier life of the bridge left, without holding anybody up."""
        self._announcer = asyncio.create_task(self._tell_all(events), name="push-announcer")

    async def _tell_all(self, events: Sequence[TaskStatusUpdateEvent]) -> None:
        for event in events:
            try:
                if await self.configs.recall(event.task_id):
                    await self.send_notification(event.task_id, event)
            except StorageFailure:
                logger.warning("the webhooks of task %s cannot be read", event.task_id)

    async def accepts(self, url: str) -> bool:
        """Whether a webhook may be registered; it is checked again for every connection."""
        try:
            async with asyncio.timeout(self._timeout):
                await self._addresses.check(url)
        except (NotPublicError, TimeoutError):
            return False
        return True

    async def send_notification(self, task_id: str, event: PushNotificationEvent) -> None:
        """Puts the event in the lane of each webhook; sends nothing itself."""
        configs = await self.configs.get_info_for_dispatch(task_id)
        if not configs:
            return
        body = with_whole_numbers(MessageToDict(to_stream_response(event)))
        droppable = isinstance(event, TaskArtifactUpdateEvent)
        for config in configs:
            self._enqueue((task_id, config.id), _Notification(config, body, droppable))
        if isinstance(event, Task | TaskStatusUpdateEvent) and event.status.state in ENDED:
            self.configs.ended(task_id)

    def _enqueue(self, key: tuple[str, str], notification: _Notification) -> None:
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane()
            lane.worker = asyncio.create_task(self._work(key, lane), name=f"push:{key[0]}")
        lane.events.append(notification)
        if len(lane.events) > self._max_waiting:
            self.failed += 1
            lane.drop_one()

    async def _work(self, key: tuple[str, str], lane: _Lane) -> None:
        """Lives for as long as its lane has something to send."""
        try:
            while lane.events:
                await self._deliver(key[0], lane.events.popleft())
        finally:
            del self._lanes[key]

    async def _deliver(self, task_id: str, notification: _Notification) -> None:
        for attempt in range(1, self._attempts + 1):
            status = await self._post(notification)
            if 200 <= status < 300:
                return
            if status not in _RETRIED or attempt == self._attempts:
                break
            await asyncio.sleep(self._backoff.delay(attempt))
        self.failed += 1
        logger.warning("a push notification of task %s was given up (%s)", task_id, status)

    async def _post(self, notification: _Notification) -> int:
        """The webhook's status; 503 stands for no answer, 403 for an address that is not called."""
        if self._session is None:
            return 403
        config = notification.config
        try:
            url = self._addresses.parse(config.url)
            async with self._session.post(
                url, json=notification.body, headers=_headers(config), allow_redirects=False
            ) as response:
                return response.status
        except NotPublicError:
            return 403
        except ValueError:  # a header that cannot be sent, stored before this was checked
            return 400
        except (aiohttp.ClientError, TimeoutError, OSError):
            return 503


class _Notification:
    __slots__ = ("body", "config", "droppable")

    def __init__(
        self, config: TaskPushNotificationConfig, body: dict[str, Any], droppable: bool
    ) -> None:
        self.config = config
        self.body = body
        self.droppable = droppable


class _Lane:
    def __init__(self) -> None:
        self.events: deque[_Notification] = deque()
        self.worker: asyncio.Task[None] | None = None

    def drop_one(self) -> None:
        """The oldest piece of text; states only when there is nothing else, and never the last."""
        oldest = next((event for event in self.events if event.droppable), self.events[0])
        self.events.remove(oldest)


def _headers(config: TaskPushNotificationConfig) -> dict[str, str]:
    headers = {"X-A2A-Notification-Token": config.token} if config.token else {}
    auth = config.authentication
    if auth.scheme and auth.credentials:
        headers["Authorization"] = f"{auth.scheme} {auth.credentials}"
    return headers
