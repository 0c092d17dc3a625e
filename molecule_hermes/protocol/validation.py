"""Checks of requests before anything is done with them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from a2a.types import Message, Role, SendMessageRequest, Task, TaskState
from a2a.utils.errors import (
    ContentTypeNotSupportedError,
    InvalidParamsError,
    UnsupportedOperationError,
)

from molecule_hermes.errors import Busy
from molecule_hermes.protocol.output_modes import accepts_json, accepts_text
from molecule_hermes.protocol.schema_process import SchemaProcesses, UnusableSchemaError
from molecule_hermes.protocol.states import TERMINAL, WORKING
from molecule_hermes.protocol.structured_output import BadSchemaError, requested_output

__all__ = [
    "MAX_ANSWERS",
    "MAX_ID",
    "MAX_STEERS",
    "require_heard",
    "require_known_status",
    "require_open",
    "require_page_token",
    "require_same_context",
    "require_schema",
    "require_sound",
    "require_takes",
]

MAX_ID = 256
MAX_PAGE_TOKEN = 1024
_MAX_DIGITS = 9
MAX_ANSWERS = 2**20
"""Bytes of all further messages to one task. They stay in its history."""
MAX_STEERS = 64
"""Messages that one turn takes while it works."""


def require_sound(params: SendMessageRequest) -> None:
    """Checks the role and the ids of a message, and that its client accepts a reply."""
    _require_reply_accepted(params.configuration.accepted_output_modes)
    message = params.message
    if message.role != Role.ROLE_USER:
        raise InvalidParamsError("a message to an agent must have the role ROLE_USER")
    for name in ("message_id", "context_id", "task_id"):
        value = getattr(message, name)
        camel = name.replace("_id", "Id")
        if len(value) > MAX_ID:
            raise InvalidParamsError(f"a {camel} must not be longer than {MAX_ID} characters")
        if "\0" in value:
            raise InvalidParamsError(f"a {camel} must not contain a NUL character")


def _require_reply_accepted(accepted: Sequence[str]) -> None:
    """An agent replies with text or data, so a client that accepts neither gets no reply."""
    if not accepts_text(accepted) and not accepts_json(accepted):
        raise ContentTypeNotSupportedError(
            "the agent replies with text or data; acceptedOutputModes must include text/plain or "
            "application/json"
        )


async def require_schema(params: SendMessageRequest, schemas: SchemaProcesses, peer: str) -> None:
    """Checks the schema of a message that asks for data. If too many wait for that, the executor
    refuses the message."""
    try:
        output = requested_output(params.message, params.configuration.accepted_output_modes)
        if output is not None and output.schema is not None:
            with contextlib.suppress(Busy):
                await schemas.require_sound(output.schema, peer)
    except (BadSchemaError, UnusableSchemaError) as error:
        raise InvalidParamsError(f"the schema cannot be used: {error}") from error


def require_page_token(token: str) -> None:
    """The SDK decodes a token of any length, and fails on one that is nested deeply."""
    if len(token) > MAX_PAGE_TOKEN:
        raise InvalidParamsError("Invalid page token")


def require_known_status(status: object) -> None:
    """Takes the filter of ListTasks as JSON or a query string holds it.

    The SDK drops an unknown name while it parses the request, and lists all tasks.
    """
    if status in (None, ""):
        return
    is_name = status in TaskState.keys()  # noqa: SIM118 - not a dict
    if isinstance(status, str) and len(status) <= _MAX_DIGITS and status.isdecimal():
        status = int(status)
    is_number = not isinstance(status, bool) and status in TaskState.values()
    if not is_name and not is_number:
        names = ", ".join(TaskState.keys()[1:])
        raise InvalidParamsError(f"unknown status {str(status)[:50]!r}; use one of {names}")


def require_takes(task: Task, message: Message, no_steering: str) -> None:
    """Checks that the task takes a message now: an answer while it asks, and while it works one
    that steers it, unless `no_steering` says why that is not possible."""
    require_open(task)
    further = [m.ByteSize() for m in task.history[1:] if m.role == Role.ROLE_USER]
    if task.status.state in WORKING:
        _require_steerable(task, no_steering, len(further))
    # A message that does not answer the question leaves it open, so a peer could send any number.
    if sum(further) + message.ByteSize() > MAX_ANSWERS:
        raise InvalidParamsError(
            f"the further messages to a task exceed {MAX_ANSWERS:,} bytes in all; send a longer "
            "text as a new message, without taskId"
        )


def _require_steerable(task: Task, no_steering: str, further: int) -> None:
    instead = "wait for it or cancel it, or send the message without taskId to queue it"
    if no_steering:
        raise UnsupportedOperationError(
            f"task {task.id} is still working ({no_steering}); {instead}"
        )
    if further >= MAX_STEERS:
        raise UnsupportedOperationError(
            f"task {task.id} has taken {MAX_STEERS} further messages, the most a task takes while "
            f"it works; {instead}"
        )


def require_heard(task: Task, message: Message) -> None:
    """Checks that the task says whether it took the message that was to steer it. It does not if
    it ended before."""
    for said in (*task.history, task.status.message):
        about = said.metadata.fields["steered"].struct_value if _is_verdict(said) else None
        if about is not None and about.fields["messageId"].string_value == message.message_id:
            return
    raise UnsupportedOperationError(
        f"task {task.id} ended before the message reached it; send the message without taskId"
    )


def _is_verdict(message: Message) -> bool:
    return message.role == Role.ROLE_AGENT and "steered" in message.metadata.fields


def require_same_context(message: Message, task: Task) -> None:
    if message.context_id and message.context_id != task.context_id:
        raise InvalidParamsError(
            f"Context {message.context_id} does not match context {task.context_id} of task "
            f"{task.id}"
        )


def require_open(task: Task) -> None:
    """A task in a terminal state takes no message and no subscriber."""
    if task.status.state in TERMINAL:
        raise UnsupportedOperationError(
            f"Task {task.id} is in terminal state: {TaskState.Name(task.status.state)}"
        )
