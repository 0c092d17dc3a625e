"""The task of another agent, folded from what it sends. No I/O."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence

from a2a.types import (
    Message,
    Part,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
)

from molecule_hermes.protocol.states import INTERRUPTED, TERMINAL
from molecule_hermes.text import one_line, redact, shorten

__all__ = ["RemoteTask", "text_of"]

_MAX_ARTIFACTS = 256
_MAX_LINE = 300


class _Content:
    """The parts of an artifact. Text continues the text before it: a server that stores a stream
    keeps its pieces as parts."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._pieces: list[Part | list[str]] = []
        self.append(parts)

    def append(self, parts: Sequence[Part]) -> None:
        for part in parts:
            last = self._pieces[-1] if self._pieces else None
            if _is_text(part) and isinstance(last, list):
                last.append(part.text)
            else:
                self._pieces.append([part.text] if _is_text(part) else part)

    @property
    def parts(self) -> Iterator[Part]:
        for piece in self._pieces:
            yield Part(text="".join(piece)) if isinstance(piece, list) else piece


class RemoteTask:
    """The responses that its events come from are bounded, and so is it."""

    def __init__(self, task: Task | None = None) -> None:
        self.task_id = ""
        self.context_id = ""
        self.status = TaskStatus()
        self.known = asyncio.Event()
        """Set when the agent has answered."""
        self._artifacts: dict[str, _Content] = {}
        self._message: Message | None = None
        if task is not None:
            self._take_task(task)

    @property
    def state(self) -> TaskState:
        """Unspecified for a state that is not one of A2A's."""
        known = self.status.state in TaskState.values()
        return self.status.state if known else TaskState.TASK_STATE_UNSPECIFIED

    @property
    def rests(self) -> bool:
        """Whether nothing more happens by itself."""
        return self.ended or self.asks

    @property
    def ended(self) -> bool:
        return self._message is not None or self.state in TERMINAL

    @property
    def asks(self) -> bool:
        return self.state in INTERRUPTED

    @property
    def parts(self) -> Iterator[Part]:
        """The answer so far."""
        if self._message is not None:
            yield from self._message.parts
        for artifact in self._artifacts.values():
            yield from artifact.parts

    def add(self, event: StreamResponse) -> None:
        match event.WhichOneof("payload"):
            case "task":
                self._take_task(event.task)
            case "message":
                self._message = event.message
                self.context_id = event.message.context_id
                self.status = TaskStatus(state=TaskState.TASK_STATE_COMPLETED)
            case "status_update":
                self._name(event.status_update.task_id, event.status_update.context_id)
                self.status = event.status_update.status
            case "artifact_update":
                self._name(event.artifact_update.task_id, event.artifact_update.context_id)
                self._take_artifact(event.artifact_update)
            case _:
                return
        self.known.set()

    def update(self, task: Task) -> None:
        """Takes the task as the agent has stored it."""
        self._take_task(task)

    def line(self) -> str:
        """What the agent says it is doing; empty if it says nothing."""
        return shorten(redact(one_line(text_of(self.status.message.parts))), _MAX_LINE)

    def _take_task(self, task: Task) -> None:
        self._name(task.id, task.context_id)
        self.status = task.status
        self._artifacts = {
            each.artifact_id: _Content(each.parts) for each in task.artifacts[:_MAX_ARTIFACTS]
        }
        self.known.set()

    def _name(self, task_id: str, context_id: str) -> None:
        # The first is the task that was asked for; an agent cannot have another one cancelled.
        self.task_id = self.task_id or task_id
        self.context_id = self.context_id or context_id

    def _take_artifact(self, update: TaskArtifactUpdateEvent) -> None:
        name = update.artifact.artifact_id
        known = self._artifacts.get(name)
        if update.append and known is not None:
            known.append(update.artifact.parts)
        elif known is not None or len(self._artifacts) < _MAX_ARTIFACTS:
            self._artifacts[name] = _Content(update.artifact.parts)


def text_of(parts: Iterable[Part]) -> str:
    return "\n".join(part.text for part in parts if _is_text(part))


def _is_text(part: Part) -> bool:
    return bool(part.WhichOneof("content") == "text")
