"""The content of stored tasks: joined text, trimmed messages, values that JSON can express."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from typing import Any, cast

from a2a.types import Message, Part, Role, Task, TaskState
from google.protobuf.struct_pb2 import Struct, Value

__all__ = [
    "INITIATED_BY",
    "content_digest",
    "is_delivery",
    "merge_text",
    "replace_non_finite",
    "trim_rejected",
    "unreadable",
]

INITIATED_BY = "initiatedBy"
"""In the metadata of a delivery's task, where it is "agent". Only the bridge writes a task's."""

MAX_REJECTED = 1024
"""Characters of text to keep; a message of as many bytes is kept whole."""


def is_delivery(task: Task) -> bool:
    """Whether the agent began the task, and not a message of its peer."""
    fields = task.metadata.fields
    return INITIATED_BY in fields and fields[INITIATED_BY].string_value == "agent"


def merge_text(task: Task) -> None:
    """Joins the text parts that streaming left in each artifact into one, in place.

    Streaming appends a part per update. Clients show the parts of an artifact as paragraphs, and
    every save and every snapshot would copy them all.
    """
    for artifact in task.artifacts:
        parts = artifact.parts
        if len(parts) > 1 and all(part.WhichOneof("content") == "text" for part in parts):
            text = "".join(part.text for part in parts)
            del parts[1:]
            parts[0].text = text


def content_digest(kept: Message) -> str:
    """Identifies what a message says: its parts, not its ids or its metadata. A client that sends
    a message again may trace each attempt in the metadata.

    Takes the message as it is stored, without the bytes of large files. Such a part carries the
    hash of its file instead.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in kept.parts:
        encoded = part.SerializeToString(deterministic=True)
        digest.update(len(encoded).to_bytes(8) + encoded)
    return digest.hexdigest()


def trim_rejected(task: Task) -> None:
    """Cuts the messages of a REJECTED task to the beginning of their text, in place."""
    if task.status.state != TaskState.TASK_STATE_REJECTED:
        return
    for message in task.history:
        size = message.ByteSize()
        if message.role == Role.ROLE_USER and size > MAX_REJECTED:
            text = "\n".join(part.text for part in message.parts if part.text)[:MAX_REJECTED]
            for field in ("parts", "metadata", "extensions", "reference_task_ids"):
                message.ClearField(field)
            message.parts.add(text=text)
            message.metadata["omittedBytes"] = size - len(text.encode())


def replace_non_finite(task: Task) -> None:
    """Replaces numbers that JSON cannot express by strings, in place.

    A store may hold such numbers from an older bridge. The SDK can serialize neither such a task
    nor a page that contains it.
    """
    for struct in _structs(task):
        _replace_all(struct.fields.values())
    for part in _parts(task):
        if part.WhichOneof("content") == "data":
            _replace(part.data)


def unreadable(task_id: str, context_id: str, state: int, updated: int | None) -> Task:
    """Replaces a task whose stored form cannot be read. `updated` is in nanoseconds."""
    task = Task(id=task_id, context_id=context_id)
    task.status.state = cast("TaskState", state)
    if updated is not None:
        task.status.timestamp.FromNanoseconds(updated)
    task.status.message.role = Role.ROLE_AGENT
    task.status.message.message_id = f"{task_id}-unreadable"
    task.status.message.parts.add(text="the rest of this task cannot be read any more")
    return task


def _messages(task: Task) -> Iterator[Message]:
    yield from task.history
    if task.status.HasField("message"):
        yield task.status.message


def _parts(task: Task) -> Iterator[Part]:
    for artifact in task.artifacts:
        yield from artifact.parts
    for message in _messages(task):
        yield from message.parts


def _structs(task: Task) -> Iterator[Struct]:
    holders: tuple[Any, ...] = (task, *task.artifacts, *_messages(task), *_parts(task))
    for holder in holders:
        if holder.HasField("metadata"):
            yield holder.metadata


def _replace_all(values: Iterable[Value]) -> None:
    for value in values:
        _replace(value)


def _replace(value: Value) -> None:
    match value.WhichOneof("kind"):
        case "number_value" if not math.isfinite(value.number_value):
            number = value.number_value
            value.string_value = "NaN" if math.isnan(number) else f"{'-' * (number < 0)}Infinity"
        case "struct_value":
            _replace_all(value.struct_value.fields.values())
        case "list_value":
            _replace_all(value.list_value.values)
