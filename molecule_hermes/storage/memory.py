"""Tasks in memory."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from a2a.server.context import ServerCallContext
from a2a.server.owner_resolver import resolve_user_scope
from a2a.server.tasks import InMemoryPushNotificationConfigStore, InMemoryTaskStore
from a2a.types import ListTasksRequest, ListTasksResponse, Task

from molecule_hermes.protocol.states import TERMINAL
from molecule_hermes.storage.base import (
    Conversation,
    DeliveryEvent,
    PushConfigs,
    Store,
    owners_of,
)
from molecule_hermes.storage.contents import is_delivery
from molecule_hermes.storage.listing import bounded

__all__ = ["MemoryTaskStore"]


@dataclass(frozen=True, slots=True)
class _Ended:
    context: ServerCallContext
    size: int
    at: float


class _MemoryPushConfigs(InMemoryPushNotificationConfigStore, PushConfigs):
    async def told(self, task_id: str, config_id: str) -> None:
        """Nothing outlives the bridge, so nobody asks."""

    async def untold(self) -> Sequence[Task]:
        return []


class MemoryTaskStore(InMemoryTaskStore, Store):
    """Deletes the oldest ended tasks beyond `max_ended` tasks or `max_bytes`."""

    def __init__(self, max_ended: int = 1000, max_bytes: int = 256 * 2**20) -> None:
        # This class copies: a page would be copied twice.
        super().__init__(use_copying=False)
        self.push_configs = _MemoryPushConfigs()
        self._max_ended = max_ended
        self._max_bytes = max_bytes
        self._bytes = 0
        """Of ended tasks."""
        self._saved: dict[tuple[str, str], Task] = {}
        self._conversations: dict[str, Conversation] = {}
        self._events: dict[tuple[str, str], list[DeliveryEvent]] = {}
        self._last_event = 0
        self._ended: OrderedDict[tuple[str, str], _Ended] = OrderedDict()

    async def save(self, task: Task, context: ServerCallContext, turn: str = "") -> None:
        """A turn that outlives its bridge has no task here, so nothing of it is kept."""
        stored = Task()
        stored.CopyFrom(task)
        await super().save(stored, context)
        key = (resolve_user_scope(context), task.id)
        self._discard(key)
        self._saved[key] = stored
        if is_delivery(task):
            self._note_delivery(key, ended=task.status.state in TERMINAL)
        size = stored.ByteSize()
        if task.status.state in TERMINAL:
            # Only the user: the request's context holds its headers, with the bearer token.
            self._ended[key] = _Ended(ServerCallContext(user=context.user), size, time.time())
            self._bytes += size
            while len(self._ended) > self._max_ended or self._bytes > self._max_bytes:
                await self._delete_oldest()

    def _note_delivery(self, key: tuple[str, str], *, ended: bool) -> None:
        noted = self._events.setdefault(key, [])
        for kind in ("created", "ended") if ended else ("created",):
            if all(event.kind != kind for event in noted):
                # A time, so that those of the next bridge are larger.
                self._last_event = max(self._last_event + 1, int(time.time() * 1e6))
                noted.append(DeliveryEvent(self._last_event, kind, *key))

    async def remember(self, name: str, conversation: Conversation) -> None:
        self._conversations[name] = conversation

    async def conversation(self, name: str) -> Conversation | None:
        return self._conversations.get(name)

    async def delivery_events(
        self, owners: Sequence[str], after: int, limit: int
    ) -> Sequence[DeliveryEvent]:
        events = (each for noted in self._events.values() for each in noted)
        found = (each for each in events if each.owner in owners and each.number > after)
        return sorted(found)[:limit]

    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        found = await super().get(task_id, context)
        if found is None:
            return None
        task = Task()
        task.CopyFrom(found)
        return task

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        if len(owners := owners_of(context)) == 1:
            return bounded(await super().list(params, context))
        # The SDK's store lists the tasks of one owner, so these become the tasks of one.
        together = InMemoryTaskStore(use_copying=False)
        for (owner, _), task in list(self._saved.items()):
            if owner in owners:
                await together.save(task, context)
        return bounded(await together.list(params, context))

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        key = (resolve_user_scope(context), task_id)
        self._discard(key)
        self._events.pop(key, None)
        await super().delete(task_id, context)

    async def prune(self, before: float, keep: int) -> int:
        deleted = 0
        while self._ended:
            oldest = next(iter(self._ended.values()))
            if oldest.at >= before and not 0 < keep < len(self._ended):
                break
            await self._delete_oldest()
            deleted += 1
        return deleted

    async def bytes_by_owner(self) -> Mapping[str, int]:
        sums: dict[str, int] = {}
        for (owner, _), task in self._saved.items():
            sums[owner] = sums.get(owner, 0) + task.ByteSize()
        return sums

    async def _delete_oldest(self) -> None:
        (owner, task_id), ended = next(iter(self._ended.items()))
        gone = self._saved[owner, task_id]
        await self.delete(task_id, ended.context)
        if await self.push_configs.get_info(task_id, ended.context):
            await self.push_configs.delete_info(task_id, ended.context)
        self._forget_conversations(Conversation(owner, gone.context_id))
        self.on_deleted(owner, task_id, ended.size)

    def _forget_conversations(self, conversation: Conversation) -> None:
        """Forgets the names of a conversation without tasks."""
        owner, context_id = conversation
        saved = self._saved.items()
        if all(each != owner or task.context_id != context_id for (each, _), task in saved):
            names = [name for name, known in self._conversations.items() if known == conversation]
            for name in names:
                del self._conversations[name]

    def _discard(self, key: tuple[str, str]) -> None:
        self._saved.pop(key, None)
        if (ended := self._ended.pop(key, None)) is not None:
            self._bytes -= ended.size
