"""What an event does to its task. No I/O."""

from __future__ import annotations

from a2a.server.events import Event
from a2a.types import Artifact, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent

__all__ = ["apply_event", "keep_status_message"]


def apply_event(task: Task, event: Event) -> None:
    """Applies an event to its task in place, as A2A prescribes it for clients."""
    match event:
        case Task():
            task.CopyFrom(event)
        case TaskStatusUpdateEvent():
            keep_status_message(task)
            if event.HasField("metadata"):
                task.metadata.MergeFrom(event.metadata)
            task.status.CopyFrom(event.status)
        case TaskArtifactUpdateEvent():
            _apply_artifact(task, event)


def keep_status_message(task: Task) -> None:
    """Moves the message of the status into the history."""
    if task.status.HasField("message"):
        task.history.append(task.status.message)
        task.status.ClearField("message")


def _apply_artifact(task: Task, event: TaskArtifactUpdateEvent) -> None:
    new = event.artifact
    known = _artifact(task, new.artifact_id)
    if known is None:
        task.artifacts.append(new)
    elif event.append:
        known.parts.extend(new.parts)
        if new.HasField("metadata"):
            known.metadata.MergeFrom(new.metadata)
    else:
        known.CopyFrom(new)


def _artifact(task: Task, artifact_id: str) -> Artifact | None:
    return next((a for a in task.artifacts if a.artifact_id == artifact_id), None)
