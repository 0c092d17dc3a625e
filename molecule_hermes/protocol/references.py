"""Earlier tasks that a message names (`referenceTaskIds`), as text for the agent."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence

from a2a.server.context import ServerCallContext
from a2a.types import Artifact, Message, Task
from a2a.utils.errors import InvalidParamsError
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Value

from molecule_hermes.protocol.incoming import fenced
from molecule_hermes.protocol.numbers import with_whole_numbers
from molecule_hermes.protocol.reply import REPLY
from molecule_hermes.protocol.states import state_name
from molecule_hermes.protocol.validation import MAX_ID

__all__ = ["MAX_REFERENCES", "quoted", "referenced_tasks"]

MAX_REFERENCES = 16
MAX_QUOTED = 32_768
"""Characters of all quoted answers. Over chat completions they share 65,536 with the message."""


async def referenced_tasks(
    message: Message,
    context: ServerCallContext,
    find: Callable[[str, ServerCallContext], Awaitable[Task | None]],
) -> list[Task]:
    """The tasks that the message names. For a peer, a task of another peer does not exist."""
    names = list(dict.fromkeys(message.reference_task_ids))
    if len(names) > MAX_REFERENCES:
        raise InvalidParamsError(f"a message may have at most {MAX_REFERENCES} referenceTaskIds")
    tasks = []
    for name in names:
        task = await find(name, context) if len(name) <= MAX_ID and "\0" not in name else None
        if task is None:
            raise InvalidParamsError(f"referenceTaskIds: task {name[:MAX_ID]} not found")
        tasks.append(task)
    return tasks


def quoted(tasks: Sequence[Task]) -> str:
    """The answers of the tasks, each under its id; a long one is cut. Empty without tasks."""
    share = MAX_QUOTED // max(1, len(tasks))
    return "\n\n".join(_quoted(task, share) for task in tasks)


def _quoted(task: Task, most: int) -> str:
    reply = next((each for each in task.artifacts if each.artifact_id == REPLY), None)
    answer = _text(reply).strip() if reply is not None else ""
    title = f"Earlier result: task {task.id}, {state_name(task.status.state)}"
    if not answer:
        return f"[{title}, without an answer]"
    if len(answer) > most:
        title += f", its first {most:,} of {len(answer):,} characters"
    return f"[{title}]\n{fenced(answer[:most])}"


def _text(reply: Artifact) -> str:
    return "".join(
        _json(part.data) if part.WhichOneof("content") == "data" else part.text
        for part in reply.parts
    )


def _json(data: Value) -> str:
    return json.dumps(with_whole_numbers(json_format.MessageToDict(data)), ensure_ascii=False)
