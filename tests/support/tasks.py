"""Tasks and call contexts of named peers, for tests of the stores and the task log."""

from __future__ import annotations

from a2a.auth.user import User
from a2a.server.context import ServerCallContext
from a2a.types import Task, TaskState, TaskStatus


class NamedUser(User):
    """An authenticated peer."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def user_name(self) -> str:
        return self._name


def context(name: str = "alice") -> ServerCallContext:
    return ServerCallContext(user=NamedUser(name))


def task(
    task_id: str,
    state: TaskState | str = TaskState.TASK_STATE_COMPLETED,
    context_id: str = "c",
    *,
    at: int | None = None,
    text: str = "",
) -> Task:
    """`at` is the timestamp in seconds, `text` the reply."""
    full = f"TASK_STATE_{state}" if isinstance(state, str) else state
    made = Task(id=task_id, context_id=context_id, status=TaskStatus(state=full))
    if at is not None:
        made.status.timestamp.FromSeconds(at)
    if text:
        made.artifacts.add(artifact_id="reply").parts.add(text=text)
    return made
