"""Tasks in memory."""

from __future__ import annotations

from collections import OrderedDict

from a2a.server.context import ServerCallContext
from a2a.server.owner_resolver import resolve_user_scope
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import ListTasksRequest, ListTasksResponse, Task

from molecule_hermes.storage.base import ENDED, OnDeleted, nobody
from molecule_hermes.storage.pages import bounded

__all__ = ["MemoryTaskStore"]


class MemoryTaskStore(InMemoryTaskStore):
    """Beyond `max_ended` or `max_bytes` the oldest tasks that ended are forgotten."""

    def __init__(
        self,
        max_ended: int = 1000,
        max_bytes: int = 256 * 2**20,
        on_deleted: OnDeleted = nobody,
    ) -> None:
        super().__init__()
        self._on_deleted = on_deleted
        self._max_ended = max_ended
        self._max_bytes = max_bytes
        self._bytes = 0
        self._ended: OrderedDict[tuple[str, str], tuple[ServerCallContext, int]] = OrderedDict()

    async def save(self, task: Task, context: ServerCallContext) -> None:
        await super().save(task, context)
        if task.status.state in ENDED:
            peer, size = resolve_user_scope(context), task.ByteSize()
            # Only the user: the request's context holds its headers, the bearer token among them.
            owner = ServerCallContext(user=context.user)
            _, before = self._ended.pop((peer, task.id), (owner, 0))
            self._ended[peer, task.id] = owner, size
            self._bytes += size - before
            await self._forget_the_oldest()

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        return bounded(await super().list(params, context))

    async def _forget_the_oldest(self) -> None:
        while len(self._ended) > self._max_ended or self._bytes > self._max_bytes:
            (peer, task_id), (owner, size) = self._ended.popitem(last=False)
            self._bytes -= size
            self._on_deleted(peer, task_id, size)
            await self.delete(task_id, owner)
