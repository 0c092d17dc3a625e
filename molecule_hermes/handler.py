"""The SDK's request handler, with its traps closed.

Probed on a2a-sdk 1.3.0: a follow-up with only a taskId gets a new random contextId and then fails;
a message to a task that still works is queued and silently dropped; and whatever is raised reaches
the peer with its text.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

from a2a.server.agent_execution import RequestContext, SimpleRequestContextBuilder
from a2a.server.context import ServerCallContext
from a2a.server.events import Event
from a2a.server.id_generator import IDGenerator
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import TaskStore
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskState,
    TaskStatusUpdateEvent,
)
from a2a.utils.errors import (
    A2AError,
    InternalError,
    InvalidParamsError,
    UnsupportedOperationError,
)

from molecule_hermes.errors import StorageFailure
from molecule_hermes.questions import ASKED, asked_in
from molecule_hermes.store import TaskNotStored

__all__ = ["MAX_ID", "BridgeRequestHandler", "StoredContextBuilder"]

logger = logging.getLogger(__name__)

MAX_ID = 256

_WORKING = (TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING)


class StoredContextBuilder(SimpleRequestContextBuilder):
    """Takes the context of the stored task, and refuses a message while that task works."""

    def __init__(self, store: TaskStore) -> None:
        super().__init__(task_id_generator=store if isinstance(store, IDGenerator) else None)
        self._store = store

    async def build(
        self,
        context: ServerCallContext,
        params: SendMessageRequest | None = None,
        task_id: str | None = None,
        context_id: str | None = None,
        task: Task | None = None,
    ) -> RequestContext:
        if context_id and len(context_id) > MAX_ID:
            raise InvalidParamsError(f"a contextId has at most {MAX_ID} characters")
        if context_id and "\0" in context_id:
            raise InvalidParamsError("a contextId has no NUL character")
        if task_id and (stored := await self._store.get(task_id, context)):
            if stored.status.state in _WORKING:
                raise UnsupportedOperationError(
                    f"task {task_id} is still working; wait for it or cancel it, or send the "
                    "message without taskId to put it in line"
                )
            context_id = stored.context_id
            context.state[ASKED] = asked_in(stored)
        return await super().build(context, params, task_id, context_id, task)


class BridgeRequestHandler(DefaultRequestHandler):
    """Peers get the protocol's errors; anything else stays in the log, under a reference."""

    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task | None:
        with _nothing_leaks():
            result: Task | None = await super().on_get_task(params, context)
        return result

    async def on_list_tasks(
        self, params: ListTasksRequest, context: ServerCallContext
    ) -> ListTasksResponse:
        with _nothing_leaks():
            result: ListTasksResponse = await super().on_list_tasks(params, context)
        return result

    async def on_cancel_task(
        self, params: CancelTaskRequest, context: ServerCallContext
    ) -> Task | None:
        try:
            with _nothing_leaks():
                result: Task | None = await super().on_cancel_task(params, context)
        except TaskNotStored as failure:
            return failure.task
        return result

    async def on_message_send(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> Message | Task:
        try:
            with _nothing_leaks():
                result: Message | Task = await super().on_message_send(params, context)
        except TaskNotStored as failure:
            return failure.task
        return result

    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        async with aclosing(super().on_message_send_stream(params, context)) as events:
            async for event in _guarded(events):
                yield event

    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        async with aclosing(super().on_subscribe_to_task(params, context)) as events:
            async for event in _guarded(events):
                yield event


async def _guarded(events: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    began = False
    while True:
        try:
            with _nothing_leaks():
                event = await anext(events)
        except StopAsyncIteration:
            return
        except TaskNotStored as failure:
            yield _status(failure.task) if began else failure.task
            return
        yield event
        began = True


def _status(task: Task) -> TaskStatusUpdateEvent:
    return TaskStatusUpdateEvent(task_id=task.id, context_id=task.context_id, status=task.status)


@contextmanager
def _nothing_leaks() -> Iterator[None]:
    try:
        yield
    except (A2AError, TaskNotStored, StopAsyncIteration):
        raise
    except StorageFailure as failure:
        raise InternalError(f"{failure.message} ({failure.hint})") from failure
    except Exception as error:
        reference = uuid.uuid4().hex[:12]
        logger.exception("a request failed (reference %s)", reference)
        raise InternalError(f"internal error, reference {reference}") from error
