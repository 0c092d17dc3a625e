"""Status updates of a turn in A2A terms: a text part for people, metadata for programs.

Status messages hold no data parts: several clients show them to people as JSON, or fail on them.
`docs/extensions.md` describes the metadata.
"""

from __future__ import annotations

import uuid
from dataclasses import asdict
from typing import Any

from a2a.helpers import new_raw_part, new_text_part, new_url_part
from a2a.server.tasks import TaskUpdater
from a2a.types import Message, Role, Task, TaskState, TaskStatus, TaskStatusUpdateEvent

from molecule_hermes.errors import TurnFailure
from molecule_hermes.protocol.questions import describe
from molecule_hermes.text import one_line, shorten
from molecule_hermes.turns.model import FileProduced, Notice, Question, ToolProgress, Turn, Usage
from molecule_hermes.wire import Steered

__all__ = [
    "asking",
    "canceled",
    "explain",
    "fail",
    "file",
    "notice",
    "status_of",
    "steered",
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


async def working(updater: TaskUpdater, text: str = "", data: dict[str, Any] | None = None) -> None:
    message = updater.new_agent_message([new_text_part(text)], data) if text else None
    await updater.update_status(TaskState.TASK_STATE_WORKING, message)


async def waiting(updater: TaskUpdater, task_id: str, question: Question | None) -> None:
    """Says that the turn waits for its turn, or for the answer to a question before it."""
    if question is None:
        await working(updater, "waiting for its turn", {"waiting": True})
        return
    text = (
        f"waiting for an answer: task {task_id} of this conversation asks: "
        f"{shorten(one_line(question.text))} To answer, send a message with taskId {task_id}"
        + (f" ({' / '.join(question.choices)})" if question.choices else "")
    )
    await working(updater, text, {"waiting": {"taskId": task_id, **describe(question)}})


async def tool(updater: TaskUpdater, progress: ToolProgress) -> None:
    known = {key: value for key, value in asdict(progress).items() if value is not None}
    if not progress.output:
        del known["output"]
    await working(updater, _line(progress), {"tool": known})


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
        about = {"accepted": False, "reason": remark.text}
        await working(updater, f"not taken: {remark.text}", {"steered": about})
        return
    await working(updater, remark.text, {"notice": remark.text, "kind": remark.kind})


async def asking(
    updater: TaskUpdater, question: Question, expires_at: str, remark: str = ""
) -> None:
    """Asks the question (INPUT_REQUIRED). The remark says why the last answer was not accepted."""
    asked = describe(question) | {"expiresAt": expires_at}
    if remark:
        asked["remark"] = remark
    text = f"{remark}\n\n{question.text}" if remark else question.text
    if question.choices:
        text += f"\n\n({' / '.join(question.choices)})"
    message = updater.new_agent_message([new_text_part(text)], {"question": asked})
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
    return {
        "inputTokens": spent.input_tokens,
        "outputTokens": spent.output_tokens,
        "totalTokens": spent.total_tokens,
        "model": spent.model,
    }


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
    outcome = "failed" if progress.ok is False else "done"
    took = f" in {progress.duration:.1f} s" if progress.duration is not None else ""
    return f"{progress.tool} {outcome}{took}"
