"""A message that a task has accepted, and what its sender gets to see of the task."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from a2a.server.agent_execution import RequestContext
from a2a.server.events import Event
from a2a.types import SendMessageRequest, Task, TaskState
from a2a.utils.task import apply_history_length

from molecule_hermes.protocol.states import WORKING
from molecule_hermes.protocol.task_log import TaskLog
from molecule_hermes.protocol.validation import require_heard

__all__ = ["Accepted", "first_event", "has_webhook", "shown"]


@dataclass(frozen=True, slots=True)
class Accepted:
    """A message's task and the request for the executor, or None for a resend."""

    log: TaskLog
    request: RequestContext | None = None

    def require_heard(self) -> None:
        """Raises if the message was to steer the task, and the task completed without it."""
        request, task = self.request, self.log.task
        if request is None or request.current_task is None or request.message is None:
            return
        steers = request.current_task.status.state in WORKING
        if steers and task.status.state == TaskState.TASK_STATE_COMPLETED:
            require_heard(task, request.message)


async def first_event(log: TaskLog, seen: int, call: asyncio.Task[None] | None) -> None:
    """Waits for an event after the version `seen`, or until the executor's call has ended without
    one."""
    waiting = asyncio.ensure_future(log.wait(after=seen))
    try:
        await asyncio.wait(
            {waiting, call} if call else {waiting}, return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        waiting.cancel()


def has_webhook(params: SendMessageRequest) -> bool:
    return bool(params.configuration.HasField("task_push_notification_config"))


def shown(event: Event, params: SendMessageRequest) -> Event:
    if isinstance(event, Task):
        return apply_history_length(event, params.configuration)
    return event
