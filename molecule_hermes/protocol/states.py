"""The states of a task, in sets that have a name."""

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
    """Such as `input_required`."""
    return TaskState.Name(state).removeprefix("TASK_STATE_").lower()


def ends(event: object) -> bool:
    """Whether nothing can follow the event."""
    if isinstance(event, Task | TaskStatusUpdateEvent):
        return event.status.state in TERMINAL
    return isinstance(event, Message)


def rests(event: object) -> bool:
    """Whether the task does nothing after the event until its peer does, or ever."""
    if isinstance(event, Task | TaskStatusUpdateEvent):
        return event.status.state in TERMINAL or event.status.state in INTERRUPTED
    return isinstance(event, Message)
