"""Push notifications: sends a task's events to its peer's webhooks, outside of the turn.

The SDK's own sender makes one attempt and is awaited inside the event consumer, so that a slow
webhook delays the task's events. Here every webhook of a task has a queue. Events are sent one by
one, in order, with retries. A queue that falls behind drops its oldest updates, never the last
state.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

import aiohttp
from a2a.server.context import ServerCallContext
from a2a.server.tasks import PushNotificationConfigStore
from a2a.types import (
    Task,
    TaskArtifactUpdateEvent,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import InvalidParamsError

from molecule_hermes.backoff import Backoff
from molecule_hermes.errors import StorageFailure
from molecule_hermes.keyed_tasks import KeyedTasks
from molecule_hermes.net.addresses import NotPublicError, PublicOnly
from molecule_hermes.protocol.caller import Caller
from molecule_hermes.protocol.channels import Channel, channel_config, is_channel, named
from molecule_hermes.protocol.states import ends
from molecule_hermes.protocol.task_log import TaskEvent
from molecule_hermes.protocol.webhook_payloads import is_v03, payload, registered_by
from molecule_hermes.storage.base import PushConfigs as StoredConfigs

__all__ = ["Arrivals", "PushConfigs", "PushSender"]

logger = logging.getLogger(__name__)

MAX_CONFIGS = 8
"""Webhooks of one task."""
MAX_CONFIG = 16 * 1024
"""Bytes of a configuration: its URL, its token and its credentials."""
_CONNECTIONS = 256
_BACKOFF = Backoff(first=0.5, longest=30.0, jitter=0.2)
_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})

_Key: TypeAlias = tuple[str, str]
"""A task and one of its webhooks."""


class PushConfigs(PushNotificationConfigStore):
    """The stored configurations. It remembers which active tasks have any: it is asked at every
    event, and most tasks have none."""

    def __init__(self, stored: StoredConfigs) -> None:
        self._stored = stored
        self._tasks: set[str] = set()
        self._adding = asyncio.Lock()

    async def set_info(
        self,
        task_id: str,
        notification_config: TaskPushNotificationConfig,
        context: ServerCallContext,
    ) -> TaskPushNotificationConfig | None:
        if notification_config.ByteSize() > MAX_CONFIG:
            raise InvalidParamsError(f"a push configuration must not exceed {MAX_CONFIG:,} bytes")
        if any(not value.isprintable() for value in _headers(notification_config).values()):
            raise InvalidParamsError(
                "a webhook's token and credentials must not contain control characters"
            )
        async with self._adding:  # two at once must not pass the limit together
            await self._require_room(task_id, notification_config, context)
            self._tasks.add(task_id)
            config = registered_by(notification_config, context)
            return await self._stored.set_info(task_id, config, context)

    async def _require_room(
        self, task_id: str, added: TaskPushNotificationConfig, context: ServerCallContext
    ) -> None:
        known = await self.get_info(task_id, context)
        if is_channel(added):
            raise InvalidParamsError("the id of this push configuration is reserved")
        new = all(config.id != (added.id or task_id) for config in known)
        if new and len(known) >= MAX_CONFIGS:
            raise InvalidParamsError(
                f"a task must not have more than {MAX_CONFIGS} push configurations"
            )

    async def follow_delivery(
        self,
        task_id: str,
        origin: str,
        channels: Sequence[TaskPushNotificationConfig],
        context: ServerCallContext,
    ) -> None:
        """Gives a delivery the webhooks of the task that it comes from, and the channels."""
        configs = await self.get_info(origin, context) if origin else []
        for config in configs:
            config.id = "" if config.id == origin else config.id
        configs += channels
        if configs:
            self._tasks.add(task_id)
        for config in configs:
            await self._stored.set_info(task_id, config, context)

    async def get_info(
        self, task_id: str, context: ServerCallContext
    ) -> list[TaskPushNotificationConfig]:
        """Those that peers know of."""
        known = await self._stored.get_info(task_id, context)
        return [config for config in known if not is_channel(config)]

    async def get_info_for_dispatch(self, task_id: str) -> list[TaskPushNotificationConfig]:
        if task_id not in self._tasks:
            return []
        return await self._stored.get_info_for_dispatch(task_id)

    async def recall(self, task_id: str) -> bool:
        """Whether a task from before the restart has a configuration. If so, it is remembered."""
        if found := bool(await self._stored.get_info_for_dispatch(task_id)):
            self._tasks.add(task_id)
        return found

    async def told(self, task_id: str, config_id: str) -> None:
        """The webhook knows the task's end. If that cannot be stored, it is told again."""
        with contextlib.suppress(StorageFailure):
            await self._stored.told(task_id, config_id)

    async def untold(self) -> Sequence[Task]:
        """Ended tasks whose webhooks a crash kept from knowing it."""
        return await self._stored.untold()

    def ended(self, task_id: str) -> None:
        self._tasks.discard(task_id)

    async def delete_info(
        self, task_id: str, context: ServerCallContext, config_id: str | None = None
    ) -> None:
        if config_id is not None:
            if not is_channel(TaskPushNotificationConfig(id=config_id)):
                await self._stored.delete_info(task_id, context, config_id)
        else:
            await self._stored.delete_info(task_id, context)
        if not await self._stored.get_info_for_dispatch(task_id):
            self._tasks.discard(task_id)


class PushSender:
    """An async context manager. On exit, queued notifications get `flush_for` seconds."""

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
        self._queues: dict[_Key, deque[_Notification]] = {}
        self.channels: dict[str, Channel] = {}
        """Ways to peers besides the webhooks that they register, for deliveries."""
        self._tasks = KeyedTasks(self._take, self._deliver)
        self._session: aiohttp.ClientSession | None = None
        self.failed = 0
        """Notifications that were given up or dropped."""
        self._watched: dict[str, Arrivals] = {}

    @property
    def waiting(self) -> int:
        return sum(map(len, self._queues.values()))

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            # Webhooks that hang delay only those at the same address.
            connector=self._addresses.connector(_CONNECTIONS, _CONNECTIONS // 8),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=self._timeout),
            trust_env=False,
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._flush_for):
                await self._tasks.flush()
        await self._tasks.close()
        if self._session is not None:
            await self._session.close()

    async def accepts(self, url: str) -> bool:
        """Whether a webhook may be registered. The address is checked again at each connection."""
        try:
            async with asyncio.timeout(self._timeout):
                await self._addresses.check(url)
        except (NotPublicError, TimeoutError):
            return False
        return True

    @contextlib.contextmanager
    def watching(self, task_id: str) -> Iterator[Arrivals]:
        """Notes what becomes of the news that the task has ended."""
        watched = self._watched[task_id] = Arrivals()
        try:
            yield watched
        finally:
            del self._watched[task_id]

    async def follow_delivery(self, task_id: str, origin: str, context: ServerCallContext) -> None:
        """Before the delivery's first event: it is told to the webhooks of its origin, and through
        the channels that the peer has."""
        to = Caller.from_scope(context.user.user_name)
        channels = [
            channel_config(name, to) for name, each in self.channels.items() if each.serves(to.peer)
        ]
        await self.configs.follow_delivery(task_id, origin, channels, context)

    async def notify(self, task: Task, event: TaskEvent) -> None:
        """Queues an event of the task for each of its webhooks; sends nothing itself."""
        configs = await self.configs.get_info_for_dispatch(task.id)
        droppable = isinstance(event, TaskArtifactUpdateEvent)
        bodies = {v03: payload(task, event, v03=v03) for v03 in set(map(is_v03, configs))}
        ended = _copy(task) if ends(event) and any(map(is_channel, configs)) else None
        for config in configs:
            if (body := bodies[is_v03(config)]) is not None:
                self._enqueue(_Notification(task.id, config, body, droppable, ends(event), ended))
        if ends(event) and (watched := self._watched.get(task.id)):
            watched.expected = len(configs)
        if configs and ends(event):
            self.configs.ended(task.id)

    def _enqueue(self, notification: _Notification) -> None:
        queue = self._queues.setdefault(notification.key, deque())
        queue.append(notification)
        if len(queue) > self._max_waiting:
            self.failed += 1
            queue.remove(_most_expendable(queue))
        self._tasks.wake(notification.key)

    def _take(self, key: _Key) -> _Notification | None:
        if queue := self._queues.get(key):
            return queue.popleft()
        self._queues.pop(key, None)
        return None

    async def _deliver(self, notification: _Notification) -> None:
        for attempt in range(1, self._attempts + 1):
            status = await self._post(notification)
            if 200 <= status < 300 or status not in _RETRIED:
                break
            if attempt < self._attempts:
                await asyncio.sleep(self._backoff.delay(attempt))
        if not 200 <= status < 300:
            self.failed += 1
            logger.warning(
                "gave up a push notification of task %s (status %s)", notification.task_id, status
            )
        if notification.last:
            await self.configs.told(*notification.key)
            if watched := self._watched.get(notification.task_id):
                watched.taken.put_nowait(200 <= status < 300)

    async def _post(self, notification: _Notification) -> int:
        """Returns the webhook's status, 503 if there is no response, or 403 if its address is not
        allowed."""
        if self._session is None:
            return 403
        config = notification.config
        if is_channel(config):
            return await self._pass_on(notification)
        try:
            url = self._addresses.parse(config.url)
            async with self._session.post(
                url, json=notification.body, headers=_headers(config), allow_redirects=False
            ) as response:
                return response.status
        except NotPublicError:
            return 403
        except ValueError:  # a header that cannot be sent; older bridges stored such
            return 400
        except (aiohttp.ClientError, TimeoutError, OSError):
            return 503

    async def _pass_on(self, notification: _Notification) -> int:
        name, to = named(notification.config)
        channel = self.channels.get(name)
        if channel is None:
            return 410
        try:
            return await channel.send(to, notification.body, notification.ended)
        except Exception:
            logger.exception("a delivery could not be passed on through %s", name)
            return 500


@dataclass(slots=True)
class Arrivals:
    """Of the end of a task at its webhooks."""

    expected: int = 0
    """How many webhooks are told."""
    taken: asyncio.Queue[bool] = field(default_factory=asyncio.Queue)
    """For each of them in turn: whether it has taken it."""

    async def all_taken(self) -> bool:
        return all([await self.taken.get() for _ in range(self.expected)])


@dataclass(frozen=True, slots=True, eq=False)
class _Notification:
    task_id: str
    config: TaskPushNotificationConfig
    body: dict[str, Any]
    droppable: bool
    last: bool = False
    """Whether it tells of the task's end."""
    ended: Task | None = None
    """The task then, for channels."""

    @property
    def key(self) -> _Key:
        return self.task_id, self.config.id


def _copy(task: Task) -> Task:
    copy = Task()
    copy.CopyFrom(task)
    return copy


def _most_expendable(queue: deque[_Notification]) -> _Notification:
    """The oldest piece of text, else the oldest state; so the last state always stays."""
    return next((item for item in queue if item.droppable), queue[0])


def _headers(config: TaskPushNotificationConfig) -> dict[str, str]:
    headers = {"X-A2A-Notification-Token": config.token} if config.token else {}
    auth = config.authentication
    if auth.scheme and auth.credentials:
        headers["Authorization"] = f"{auth.scheme} {auth.credentials}"
    return headers
