"""Tasks in memory."""

from __future__ import annotations

from collections import OrderedDict

from a2a.server.context import ServerCallContext
from a2a.server.owner_resolver import resolve_user_scope
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import Task

from molecule_hermes.stores.base import ENDED

__all__ = ["MemoryTaskStore", "merge_text"]


class MemoryTaskStore(InMemoryTaskStore):
    """Beyond `max_ended` or `max_bytes` the oldest tasks that ended are forgotten."""

    def __init__(self, max_ended: int = 1000, max_bytes: int = 256 * 2**20) -> None:
        super().__init__()
        self._max_ended = max_ended
        self._max_bytes = max_bytes
        self._bytes = 0
        self._ended: OrderedDict[tuple[str, str], tuple[ServerCallContext, int]] = OrderedDict()

    async def save(self, task: Task, context: ServerCallContext) -> None:
        merge_text(task)
        await super().save(task, context)
        if task.status.state in ENDED:
            # Only the user: the request's context holds its headers, the bearer token among them.
            owner = ServerCallContext(user=context.user)
            key = (resolve_user_scope(owner), task.id)
            _, before = self._ended.pop(key, (owner, 0))
            self._ended[key] = owner, task.ByteSize()
            self._bytes += task.ByteSize() - before
            await self._forget_the_oldest()

    async def _forget_the_oldest(self) -> None:
        while len(self._ended) > self._max_ended or self._bytes > self._max_bytes:
            (_, task_id), (owner, size) = self._ended.popitem(last=False)
            self._bytes -= size
            await self.delete(task_id, owner)


def merge_text(task: Task) -> None:
    """Joins the text parts that streaming left in each artifact into one, in place.

    The SDK appends a part per update. Clients read an artifact's parts as paragraphs, and every
    save and every event copies them all.
    """
    for artifact in task.artifacts:
        parts = artifact.parts
        if len(parts) > 1 and all(part.WhichOneof("content") == "text" for part in parts):
            text = "".join(part.text for part in parts)
            del parts[1:]
            parts[0].text = text
