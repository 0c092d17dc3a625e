"""Status updates of a turn in A2A terms: a text part for people, metadata for programs.

Status messages hold no data parts: several clients show them to people as JSON, or fail on them.
`docs/extensions.md` describes the metadata.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from a2a.helpers import new_raw_part, new_text_part, new_url_part
from a2a.server.tasks import TaskUpdater
from a2a.types import Message, Role, Task, TaskState, TaskStatus, TaskStatusUpdateEvent

from molecule_hermes.errors import TurnFailure
from molecule_hermes.protocol.questions import describe
from molecule_hermes.storage.contents import INITIATED_BY
from molecule_hermes.text import one_line, shorten
from molecule_hermes.turns.model import (
    Context,
    FileProduced,
    Notice,
    Question,
    SubagentProgress,
    ToolProgress,
    Turn,
    Usage,
)
from molecule_hermes.wire import Steered

__all__ = [
    "Asked",
    "asking",
    "canceled",
    "context",
    "explain",
    "fail",
    "file",
    "handed_over",
    "notice",
    "status_of",
    "steered",
    "subagent",
    "submitted",
    "tool",
    "usage",
    "waiting",
    "withheld_file",
    "working",
]


def submitted(turn: Turn, message: Message | None) -> Task:
    status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
    status.timestamp.GetCurrentTime()
    history = [message] if message is not None else []
    return Task(id=turn.task_id, context_id=turn.context_id, status=status, history=history)


def handed_over(turn: Turn) -> Task:
    """The task of a turn that its agent begins, because a conversation is handed over."""
    task = submitted(turn, None)
    task.metadata[INITIATED_BY] = "agent"
    task.metadata["cause"] = "handoff"
    return task


async def working(updater: TaskUpdater, text: str = "", data: dict[str, Any] | None = None) -> None:
    message = updater.new_agent_message([new_text_part(text)], data) if text else None
    await updater.update_status(TaskState.TASK_STATE_WORKING, message)


async def waiting(updater: TaskUpdater, task_id: str, question: Question | None) -> None:
    """Says that the turn waits for its turn, or for the answer to a question before it."""
    if question is None:
        text = "waiting for its turn"
        await working(updater, text, {"waiting": True, "notice": text, "kind": "waiting"})
        return
    text = (
        f"waiting for an answer: task {task_id} of this conversation asks: "
        f"{shorten(one_line(question.text))} To answer, send a message with taskId {task_id}"
        + (f" ({' / '.join(question.choices)})" if question.choices else "")
    )
    asked = {"taskId": task_id, **describe(question)}
    await working(updater, text, {"waiting": asked, "notice": text, "kind": "waiting"})


async def tool(updater: TaskUpdater, progress: ToolProgress) -> None:
    data = {"tool": progress.tool, "phase": progress.phase, "preview": progress.preview}
    data |= _known(
        id=progress.call_id,
        args=dict(progress.args),
        duration=progress.duration,
        ok=progress.ok,
        output=progress.output,
        error=progress.error,
        result=progress.result,
    )
    await working(updater, _line(progress), {"tool": data})


async def subagent(updater: TaskUpdater, progress: SubagentProgress) -> None:
    data = {"id": progress.subagent_id, "goal": progress.goal, "phase": progress.phase}
    data |= _known(duration=progress.duration, ok=progress.ok)
    text = f"subagent: {progress.goal}"
    if progress.phase == "end":
        text = f"subagent {_outcome(progress.ok, progress.duration)}: {progress.goal}"
    await working(updater, text, {"subagent": data})


async def steered(updater: TaskUpdater, message_id: str, outcome: Steered, text: str) -> None:
    """Says whether the running turn takes the peer's message."""
    about: dict[str, Any] = {"messageId": message_id, "accepted": outcome.accepted}
    if outcome.reason:
        about["reason"] = outcome.reason
    await working(updater, text, {"steered": about})


async def notice(updater: TaskUpdater, remark: Notice) -> None:
    if remark.kind == "interim":
        await working(updater, remark.text, {"interim": True})
        return
    if remark.kind == "unheard":
        refused = {"accepted": False, "reason": remark.text}
        await working(updater, f"not taken: {remark.text}", {"steered": refused})
        return
    about = _known(attempt=remark.attempt, of=remark.of, to=remark.to_model)
    about |= {"from": remark.from_model} if remark.from_model else {}
    await working(updater, remark.text, {"notice": remark.text, "kind": remark.kind, **about})


@dataclass(frozen=True, slots=True)
class Asked:
    """An open question as the peer sees it."""

    question: Question
    expires_at: str
    remark: str = ""
    """Why the last answer was not accepted."""

    def describe(self) -> dict[str, Any]:
        remark = {"remark": self.remark} if self.remark else {}
        return describe(self.question) | {"expiresAt": self.expires_at} | remark

    def text(self) -> str:
        choices = f"({' / '.join(self.question.choices)})" if self.question.choices else ""
        return "\n\n".join(filter(None, (self.remark, self.question.text, choices)))


async def asking(
    updater: TaskUpdater, asked: Sequence[Asked], said: str = "", data: dict[str, Any] | None = None
) -> None:
    """Asks the open questions (INPUT_REQUIRED), oldest first.

    `said` and `data` tell what became of a question that is no longer open.
    """
    oldest, *others = asked
    metadata: dict[str, Any] = {**(data or {}), "question": oldest.describe()}
    texts = [said, oldest.text()]
    if others:
        metadata["questions"] = [one.describe() for one in asked]
        texts.append("More questions wait for an answer that names its questionId:")
        texts += [f"{one.question.question_id}: {one.text()}" for one in others]
    message = updater.new_agent_message([new_text_part("\n\n".join(filter(None, texts)))], metadata)
    await updater.update_status(TaskState.TASK_STATE_INPUT_REQUIRED, message)


async def file(updater: TaskUpdater, produced: FileProduced) -> None:
    """Sends the file as a separate artifact."""
    about = {"media_type": produced.media_type, "filename": produced.name}
    if produced.data is not None:
        part = new_raw_part(produced.data, **about)
    else:
        part = new_url_part(produced.url, **about)
    parts = [part, new_text_part(produced.caption)] if produced.caption else [part]
    await updater.add_artifact(parts, name=produced.name, last_chunk=True)


async def withheld_file(updater: TaskUpdater, produced: FileProduced) -> None:
    """Sends a note instead of a file whose media type the client does not accept."""
    note = (
        f"file {produced.name} ({produced.media_type}) was not sent: the client does not accept "
        "its media type (acceptedOutputModes)"
    )
    text = f"{produced.caption}\n\n({note})" if produced.caption else f"({note})"
    await updater.add_artifact([new_text_part(text)], name=produced.name, last_chunk=True)


def usage(spent: Usage) -> dict[str, Any]:
    """The metadata `usage`, in camelCase like every name that a peer sees."""
    data: dict[str, Any] = {
        "inputTokens": spent.input_tokens,
        "outputTokens": spent.output_tokens,
        "cachedTokens": spent.cached_tokens,
        "reasoningTokens": spent.reasoning_tokens,
        "totalTokens": spent.total_tokens,
        "model": spent.model,
    }
    models = [usage(model) for model in spent.models]
    return data | _known(provider=spent.provider, costUsd=spent.cost_usd, models=models)


def context(taken: Context) -> dict[str, Any]:
    """The metadata `context`."""
    return {"used": taken.used, "window": taken.window}


def explain(updater: TaskUpdater, failure: TurnFailure) -> Message:
    return updater.new_agent_message([new_text_part(_reason(failure))], _failure(failure))


def fail(task: Task, failure: TurnFailure) -> None:
    """Ends a task that has no turn as FAILED, in place. Its text stays."""
    if task.status.HasField("message"):
        task.history.append(task.status.message)
    message = Message(
        role=Role.ROLE_AGENT,
        message_id=str(uuid.uuid4()),
        task_id=task.id,
        context_id=task.context_id,
        parts=[new_text_part(_reason(failure))],
        metadata=_failure(failure),
    )
    task.status.CopyFrom(TaskStatus(state=TaskState.TASK_STATE_FAILED, message=message))
    task.status.timestamp.GetCurrentTime()


def canceled(task: Task) -> TaskStatusUpdateEvent:
    status = TaskStatus(state=TaskState.TASK_STATE_CANCELED)
    status.timestamp.GetCurrentTime()
    return TaskStatusUpdateEvent(task_id=task.id, context_id=task.context_id, status=status)


def status_of(task: Task) -> TaskStatusUpdateEvent:
    return TaskStatusUpdateEvent(task_id=task.id, context_id=task.context_id, status=task.status)


def _reason(failure: TurnFailure) -> str:
    return f"{failure.message} ({failure.hint})" if failure.hint else failure.message


def _failure(failure: TurnFailure) -> dict[str, Any]:
    return {"failure": failure.as_dict()}


def _line(progress: ToolProgress) -> str:
    preview = f": {progress.preview}" if progress.preview else ""
    if progress.phase == "start":
        return f"{progress.tool}{preview}"
    return f"{progress.tool} {_outcome(progress.ok, progress.duration)}"


def _outcome(ok: bool | None, duration: float | None) -> str:
    took = f" in {duration:.1f} s" if duration is not None else ""
    return ("failed" if ok is False else "done") + took


def _known(**values: Any) -> dict[str, Any]:
    """The values that are known; false and 0 are."""
    return {name: value for name, value in values.items() if value not in (None, "", [], {})}
