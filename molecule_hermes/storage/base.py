"""The seam between when tasks are written and where they live."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Self

from a2a.server.tasks import PushNotificationConfigStore, TaskStore
from a2a.types import Task, TaskState

__all__ = ["ENDED", "DurableStore", "EndTask", "OnDeleted", "Sent", "nobody"]

ENDED = frozenset(
    {
        TaskState.TASK_STATE_COMPLETED,
        TaskState.TASK_STATE_FAILED,
        TaskState.TASK_STATE_CANCELED,
        TaskState.TASK_STATE_REJECTED,
    }
)

EndTask = Callable[[Task], None]
"""Gives the task an end, in place."""


OnDeleted = Callable[[str, str, int], None]
"""Is told the owner, the id and the bytes of each task that is deleted for its age or number."""


def nobody(owner: str, task_id: str, size: int) -> None:
    pass


class Sent(NamedTuple):
    """A message that began a task."""

    owner: str
    context_id: str
    message_id: str
    task_id: str
    at: float


class DurableStore(TaskStore):
    """Tasks that outlive the process, in a store that belongs to this bridge alone.

    `save` takes what the task is when it is called, and returns when that would survive.
    Every method raises `StorageFailure` in bounded time when the storage does not do its part.
    """

    push_configs: PushNotificationConfigStore
    on_deleted: OnDeleted = staticmethod(nobody)

    @abstractmethod
    async def __aenter__(self) -> Self:
        """Raises `StartError` when the storage cannot be used, or another bridge uses it."""

    @abstractmethod
    async def __aexit__(self, *error: object) -> None: ...

    @abstractmethod
    async def check(self) -> None:
        """Raises the `StorageFailure` that a turn would meet now."""

    @abstractmethod
    async def sweep(self, end: EndTask) -> int:
        """Ends all tasks that have no end; how many they were."""

    @abstractmethod
    async def prune(self, before: float, keep: int) -> int:
        """Deletes some tasks that ended before that time, or that are not of the last `keep`.

        With `keep` 0 only their age counts. How many were deleted: none when all is done.
        """

    async def bytes_of_peers(self) -> Mapping[str, int]:
        """The bytes of all tasks of each owner."""
        return {}

    async def messages(self, since: float) -> Sequence[Sent]:
        """The messages that began tasks after that time, oldest first, if the store knows them.

        Not those whose tasks were REJECTED: they may be sent again.
        """
        return []
