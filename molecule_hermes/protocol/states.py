"""Sets of task states."""

from __future__ import annotations

from a2a.types import Message, Task, TaskState, TaskStatusUpdateEvent

__all__ = ["INTERRUPTED", "TERMINAL", "WORKING", "ends", "rests", "state_name"]

TERMINAL = frozenset(
    {
        TaskState.TASK_STATE_COMPLETED,
        TaskState.TASK_STATE_FAILED,
        TaskState.TASK_STATE_CANCELED,
        TaskState.TASK_STATE_REJECTED,
    }
)
INTERRUPTED = frozenset({TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_AUTH_REQUIRED})
"""The task waits for its peer."""
WORKING = frozenset({TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING})


def state_name(state: TaskState) -> str:
    """The state in lower case, such as `input_required`."""
    return TaskState.Name(state).removeprefix("TASK_STATE_").lower()


def ends(event: object) -> bool:
    """Whether the event is the last one of its task."""
    if isinstance(event, Task | TaskStatusUpdateEvent):
        return event.status.state in TERMINAL
    return isinstance(event, Message)


def rests(event: object) -> bool:
    """Whether the task is in a terminal or an interrupted state after the event."""
    if isinstance(event, Task | TaskStatusUpdateEvent):
        return event.status.state in TERMINAL or event.status.state in INTERRUPTED
    return isinstance(event, Message)
