"""Tasks that a crashed bridge left unfinished."""

from __future__ import annotations

from a2a.types import Task, TaskStatusUpdateEvent

from molecule_hermes.errors import Interrupted
from molecule_hermes.protocol.status import fail, status_of

__all__ = ["InterruptedTasks"]


class InterruptedTasks:
    """Ends such tasks as FAILED and keeps the events for their webhooks."""

    def __init__(self) -> None:
        self.events: list[TaskStatusUpdateEvent] = []

    def end(self, task: Task) -> None:
        fail(task, Interrupted("the agent was restarted during the turn"))
        self.events.append(status_of(task))
