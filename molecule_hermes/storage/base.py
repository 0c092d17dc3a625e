"""The interface of a store: tasks, push configurations, and the messages that began tasks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, Self

from a2a.server.context import ServerCallContext
from a2a.server.owner_resolver import resolve_user_scope
from a2a.server.tasks import PushNotificationConfigStore, TaskStore
from a2a.types import Task

__all__ = [
    "OWNERS",
    "PATIENCE",
    "Conversation",
    "DeliveryEvent",
    "OnDeleted",
    "PushConfigs",
    "Sent",
    "Store",
    "Unfinished",
    "call_limit",
    "owners_of",
]

PATIENCE = 5.0
"""Seconds to wait for a lock, or for a connection to a database."""


OWNERS = "owners"
"""In the state of a call's context: the owners whose tasks a listing shows together."""


def owners_of(context: ServerCallContext) -> Sequence[str]:
    """The owners whose tasks a listing shows: usually the caller alone. No task id occurs twice,
    because the bridge makes them."""
    return context.state.get(OWNERS) or (resolve_user_scope(context),)


def call_limit(patience: float) -> float:
    """Seconds after which a call to a store ends in a `StorageFailure`: 11 by default.

    A write may wait for the batch before it, which may itself wait for a lock.
    """
    return 2 * patience + 1


OnDeleted = Callable[[str, str, int], None]
"""Receives the owner, the id and the bytes of each task that is deleted for its age or number."""


def _ignore(owner: str, task_id: str, size: int) -> None:
    pass


class Unfinished(NamedTuple):
    """A task that has no final state."""

    owner: str
    task: Task
    turn: str
    """What a bridge needs to go on with its turn, as it was saved with the task."""


class Sent(NamedTuple):
    """A message that began a task."""

    owner: str
    context_id: str
    message_id: str
    digest: str
    """Of the message's content; empty if an older bridge stored the task."""
    task_id: str
    at: float


class Conversation(NamedTuple):
    """What the name that Hermes has for a conversation stands for."""

    owner: str
    context_id: str


class DeliveryEvent(NamedTuple):
    """A delivery was created, or has ended."""

    number: int
    """Larger than that of every event before it, also of an earlier bridge."""
    kind: Literal["created", "ended"]
    owner: str
    task_id: str


class PushConfigs(PushNotificationConfigStore):
    """The webhooks of tasks, and whether each has been told of its task's end."""

    @abstractmethod
    async def told(self, task_id: str, config_id: str) -> None:
        """The webhook knows the end of the task, or was given up."""

    @abstractmethod
    async def untold(self) -> Sequence[Task]:
        """Ended tasks with a webhook that does not know it, at most 1,000."""


class Store(TaskStore):
    """Tasks and their push configurations, in storage that belongs to this bridge alone.

    `save` stores the task as it is when it is called, and returns when that would survive a crash
    of the process. Every call ends within `call_limit` seconds: it raises `StorageFailure` if the
    storage fails or does not answer. A call that took too long may still take effect, but
    not after a later call. `unfinished` and `prune` take several steps, each of which is bounded.
    """

    push_configs: PushConfigs
    on_deleted: OnDeleted = staticmethod(_ignore)

    async def __aenter__(self) -> Self:
        """Raises `StartError` if the storage cannot be used, or another bridge uses it."""
        return self

    async def __aexit__(self, *error: object) -> None:
        """Releases the storage."""

    async def check(self) -> None:
        """Raises the `StorageFailure` that a save would raise now."""

    @abstractmethod
    async def prune(self, before: float, keep: int) -> int:
        """Deletes a batch of tasks that ended before `before`, or before the last `keep` tasks.

        With `keep` 0 only their age counts. Returns how many it deleted; 0 means that none is left.
        """

    @abstractmethod
    async def bytes_by_owner(self) -> Mapping[str, int]:
        """The size of all tasks of each owner."""

    @abstractmethod
    async def save(self, task: Task, context: ServerCallContext, turn: str = "") -> None:
        """`turn` is what another bridge needs to go on with the task; it is kept with the task, and
        no peer sees it."""

    @abstractmethod
    async def remember(self, name: str, conversation: Conversation) -> None:
        """Keeps what Hermes's name for a conversation stands for, until the last task of the
        conversation's context is deleted."""

    @abstractmethod
    async def conversation(self, name: str) -> Conversation | None: ...

    @abstractmethod
    async def delivery_events(
        self, owners: Sequence[str], after: int, limit: int
    ) -> Sequence[DeliveryEvent]:
        """The first events after the number `after`, of the deliveries that are still stored."""

    async def unfinished(self) -> Sequence[Unfinished]:
        """The tasks without a final state, the oldest first."""
        return []

    async def messages(self, since: float) -> Sequence[Sent]:
        """The messages that began tasks after `since`, oldest first.

        Those of REJECTED tasks are left out: they may be sent again.
        """
        return []
