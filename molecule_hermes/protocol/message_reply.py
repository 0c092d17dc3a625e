"""The reply as a single Message, for clients that do not read tasks.

A turn always emits the events of a task. In message form they are folded into one `Message`: its
first part is the only text part and holds everything that a person must read. If the peer asked for
data, its first part is the data, and a text part follows only if there is something else to say.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from a2a.helpers import get_text_parts, new_data_part, new_text_part
from a2a.server.events import Event, EventQueue
from a2a.types import Artifact, Message, Part, Role, Task, TaskState
from google.protobuf import json_format

from molecule_hermes.protocol.incoming import NOTHING_TO_DO
from molecule_hermes.protocol.reply import REASONING, REPLY
from molecule_hermes.protocol.states import rests
from molecule_hermes.protocol.task_events import apply_event
from molecule_hermes.text import one_line, shorten

__all__ = ["TOOL_TRACE", "MessageQueue", "message_of"]

TOOL_TRACE = "tool_trace"
"""In the message's metadata; the orchestration platform reads it by this name."""
_MAX_TRACE = 100


class MessageQueue(EventQueue):
    """Takes the events of one task and passes on a single Message when the task rests."""

    def __init__(self, queue: EventQueue) -> None:
        self._queue = queue
        self._task = Task()
        self._replied = False

    async def enqueue_event(self, event: Event) -> None:
        apply_event(self._task, event)
        if rests(event) and not self._replied:
            self._replied = True
            await self._queue.enqueue_event(message_of(self._task))


def message_of(task: Task) -> Message:
    """The reply of a task that has ended."""
    failure = _failure(task)
    message = Message(
        role=Role.ROLE_AGENT,
        message_id=str(uuid.uuid4()),
        context_id=task.context_id,
        parts=[*_answer(task, failure), *_files(task)],
    )
    if failure:
        message.parts.append(new_data_part(failure))
    message.metadata.CopyFrom(task.metadata)
    if trace := _tool_trace(task):
        message.metadata.update({TOOL_TRACE: trace})
    return message


def _answer(task: Task, failure: Mapping[str, Any]) -> Iterator[Part]:
    reply = _reply(task)
    data = [part for part in reply.parts if part.HasField("data")] if reply is not None else []
    if not data:
        yield new_text_part(_text(task, failure))
        return
    yield from data
    if remarks := "\n\n".join([*_notes(task), *_denials(task)]):
        yield new_text_part(remarks)


def _reply(task: Task) -> Artifact | None:
    return next((a for a in task.artifacts if a.artifact_id == REPLY), None)


def _text(task: Task, failure: Mapping[str, Any]) -> str:
    reply = _reply(task)
    answer = "".join(get_text_parts(reply.parts)) if reply is not None else ""
    paragraphs = [answer.strip(), *_notes(task), *_denials(task)]
    match task.status.state:
        case TaskState.TASK_STATE_COMPLETED:
            paragraphs[0] = answer or "(the agent did not reply)"
        case TaskState.TASK_STATE_CANCELED:
            paragraphs.append("(canceled)")
        case _ if failure:
            paragraphs.append(_explanation(failure))
        case _:
            paragraphs += get_text_parts(task.status.message.parts)
    return "\n\n".join(filter(None, paragraphs))


def _notes(task: Task) -> list[str]:
    """What stands in the place of files that the client does not accept."""
    texts = (REPLY, REASONING)
    others = (artifact.parts for artifact in task.artifacts if artifact.artifact_id not in texts)
    return ["".join(p.text for p in ps) for ps in others if all(p.HasField("text") for p in ps)]


def _explanation(failure: Mapping[str, Any]) -> str:
    kind, message, hint = (str(failure.get(key, "")) for key in ("kind", "message", "hint"))
    if message == NOTHING_TO_DO:
        return f"({NOTHING_TO_DO})"
    return f"The turn failed ({kind}): {message}" + (f" — {hint}" if hint else "")


def _denials(task: Task) -> list[str]:
    """What the agent wanted to do and was not allowed to."""
    refused = (data["refused"] for data in _data(task) if isinstance(data.get("refused"), dict))
    asked = (one_line(str(each.get("question", ""))) for each in refused if each.get("denied"))
    return [f"(denied, because nobody can be asked here: {shorten(text)})" for text in asked]


def _files(task: Task) -> Iterator[Part]:
    for artifact in task.artifacts:
        for part in artifact.parts:
            if part.WhichOneof("content") in ("raw", "url"):
                yield part


def _tool_trace(task: Task) -> list[dict[str, str]]:
    trace: list[dict[str, str]] = []
    running: list[tuple[str, dict[str, str]]] = []
    for tool in (data["tool"] for data in _data(task) if isinstance(data.get("tool"), dict)):
        name = str(tool.get("tool", ""))
        call = str(tool.get("id") or name)
        entry = next((each for started, each in running if started == call), None)
        if tool.get("phase") != "end" or entry is None:
            entry = {"tool": name, "input": str(tool.get("preview", "")), "output_preview": ""}
            trace.append(entry)
            running.append((call, entry))
        if tool.get("phase") == "end":
            entry["output_preview"] = _output(tool)
            running.remove((call, entry))
    return trace[-_MAX_TRACE:]


def _output(tool: Mapping[str, Any]) -> str:
    return str(tool.get("output") or ("failed" if tool.get("ok") is False else ""))


def _failure(task: Task) -> dict[str, Any]:
    if task.status.state not in (TaskState.TASK_STATE_FAILED, TaskState.TASK_STATE_REJECTED):
        return {}
    failure = _data_of(task.status.message).get("failure")
    return failure if isinstance(failure, dict) else {}


def _data(task: Task) -> Iterator[dict[str, Any]]:
    for message in task.history:
        if message.role == Role.ROLE_AGENT:
            yield _data_of(message)


def _data_of(message: Message) -> dict[str, Any]:
    """What a status message holds for programs."""
    metadata: dict[str, Any] = json_format.MessageToDict(message.metadata)
    return metadata
