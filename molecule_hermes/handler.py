"""The SDK's request handler, with its traps closed.

Probed on a2a-sdk 1.3.0: a follow-up with only a taskId gets a new random contextId and then fails;
a message to a task that still works is queued and silently dropped; and whatever is raised reaches
the peer with its text.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any
from weakref import WeakValueDictionary

from a2a.server.agent_execution import RequestContext, SimpleRequestContextBuilder
from a2a.server.context import ServerCallContext
from a2a.server.events import Event
from a2a.server.id_generator import IDGenerator
from a2a.server.owner_resolver import resolve_user_scope
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
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
)
from a2a.utils.errors import (
    A2AError,
    InternalError,
    InvalidParamsError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from a2a.utils.task import apply_history_length

from molecule_hermes.artifacts import last_update
from molecule_hermes.attachments import without_bytes
from molecule_hermes.errors import StorageFailure
from molecule_hermes.questions import ASKED, asked_in
from molecule_hermes.queues import QueueShutDown
from molecule_hermes.retries import Retries, SentBeforeError
from molecule_hermes.store import TaskNotStored
from molecule_hermes.stores.base import ENDED
from molecule_hermes.updates import status_of

__all__ = ["MAX_ID", "BridgeRequestHandler", "StoredContextBuilder"]

logger = logging.getLogger(__name__)

MAX_ID = 256

_CLAIMED = "molecule_hermes.claimed"
"""Under this name a request keeps what it claimed of the retries."""

_WORKING = (TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING)


class StoredContextBuilder(SimpleRequestContextBuilder):
    """Takes the context of the stored task, and refuses a message while that task works.

    A message that was sent before raises `SentBeforeError`.
    """

    def __init__(self, store: TaskStore, retries: Retries | None = None) -> None:
        super().__init__(task_id_generator=store if isinstance(store, IDGenerator) else None)
        self._store = store
        self._retries = Retries(0.0) if retries is None else retries

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
        message_id = params.message.message_id if params is not None else ""
        if task_id and (stored := await self._store.get(task_id, context)):
            if any(message.message_id == message_id for message in stored.history):
                raise SentBeforeError(task_id)
            if stored.status.state in ENDED:
                # As the SDK says it, too, but only after it opened queues that it never closes.
                raise UnsupportedOperationError(
                    f"Task {task_id} is in terminal state: {TaskState.Name(stored.status.state)}"
                )
            if stored.status.state in _WORKING:
                raise UnsupportedOperationError(
                    f"task {task_id} is still working; wait for it or cancel it, or send the "
                    "message without taskId to put it in line"
                )
            context_id = stored.context_id
            context.state[ASKED] = asked_in(stored)
            if params is not None:
                # The SDK puts the answer into the task's history as it is.
                params.message.CopyFrom(without_bytes(params.message))
        built = await super().build(context, params, task_id, context_id, task)
        peer = resolve_user_scope(context)
        claimed = context.state.setdefault(_CLAIMED, [])
        for known_as in {context_id or "", built.context_id or ""}:
            await self._claim((peer, known_as, message_id), built.task_id or "", context)
            claimed.append((peer, known_as, message_id))
        return built

    async def _claim(
        self, message: tuple[str, str, str], task_id: str, context: ServerCallContext
    ) -> None:
        """A message that was REJECTED never ran: its peer was told to send it again."""
        try:
            self._retries.claim(*message, task_id)
        except SentBeforeError as before:
            stored = await self._store.get(before.task_id, context)
            if stored is None or stored.status.state != TaskState.TASK_STATE_REJECTED:
                raise
            self._retries.forget(*message)
            self._retries.claim(*message, task_id)

    def release(self, context: ServerCallContext) -> None:
        """The request was refused: its message may be sent again."""
        for claimed in context.state.pop(_CLAIMED, ()):
            self._retries.forget(*claimed)


class BridgeRequestHandler(DefaultRequestHandler):
    """Peers get the protocol's errors; anything else stays in the log, under a reference."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._cancelling: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def _setup_active_task(
        self, params: SendMessageRequest, call_context: ServerCallContext
    ) -> Any:
        """The SDK checks a message's webhook only after the message was taken for a new one."""
        try:
            return await super()._setup_active_task(params, call_context)
        except BaseException:
            if isinstance(self._request_context_builder, StoredContextBuilder):
                self._request_context_builder.release(call_context)
            raise

    @property
    def active(self) -> int:
        """Tasks that are in memory, because they run or somebody follows them."""
        return len(self._active_task_registry._active_tasks)

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
        """One at a time for a task: a second one would stop the SDK while it closes the queues of
        the first, and whoever subscribed would wait for ever."""
        lock = self._cancelling.setdefault(params.id, asyncio.Lock())
        try:
            async with lock:
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
        except SentBeforeError as before:
            return await self._outcome(before.task_id, params, context)
        return result

    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        try:
            async with aclosing(super().on_message_send_stream(params, context)) as events:
                async for event in _guarded(events):
                    yield event
        except SentBeforeError as before:
            async with aclosing(self._again(before.task_id, context)) as events:
                async for event in events:
                    yield event

    async def _outcome(
        self, task_id: str, params: SendMessageRequest, context: ServerCallContext
    ) -> Task:
        """What the message that was sent before has come to."""
        if not params.configuration.return_immediately:
            async with aclosing(self._again(task_id, context)) as events:
                async for _ in events:
                    pass
        task = await self._begun(task_id, context)
        return apply_history_length(task, params.configuration)

    async def _again(self, task_id: str, context: ServerCallContext) -> AsyncGenerator[Event, None]:
        """The task as it is, and the rest of it up to its end or its next question."""
        task = await self._begun(task_id, context)
        if task.status.state not in _WORKING:
            yield task
            return
        request = SubscribeToTaskRequest(id=task_id)
        try:
            async with aclosing(self.on_subscribe_to_task(request, context)) as events:
                async for event in events:
                    yield event
                    if isinstance(event, Task | TaskStatusUpdateEvent) and (
                        event.status.state not in _WORKING
                    ):
                        return
        except UnsupportedOperationError:  # it ended in between
            yield await self._begun(task_id, context)

    async def _begun(self, task_id: str, context: ServerCallContext) -> Task:
        """The task, which the first request may be about to create."""
        for _ in range(100):
            with contextlib.suppress(TaskNotFoundError):
                if task := await self.on_get_task(GetTaskRequest(id=task_id), context):
                    return task
            await asyncio.sleep(0.05)
        raise TaskNotFoundError(f"Task {task_id} not found")

    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        async with aclosing(super().on_subscribe_to_task(params, context)) as events:
            async for event in _without_repeats(_guarded(events)):
                yield event


async def _without_repeats(events: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """What the task at the beginning holds already does not come again.

    The SDK taps the events before it reads the task: an update in between is in both, and a client
    that appends it has the text twice.
    """
    shown: dict[str, int] = {}
    async for event in events:
        if isinstance(event, Task):
            shown = {artifact.artifact_id: last_update(artifact) for artifact in event.artifacts}
        elif isinstance(event, TaskArtifactUpdateEvent):
            before = shown.get(event.artifact.artifact_id, 0)
            if 0 < last_update(event.artifact) <= before:
                continue
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
            yield status_of(failure.task) if began else failure.task
            return
        yield event
        began = True


class _nothing_leaks:  # noqa: N801 - used like a function
    """Turns what is raised inside into an error of the protocol, without the exception's text.

    A class, because a generator would be held by every turn for as long as it runs.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        match error:
            case None | A2AError() | SentBeforeError() | TaskNotStored() | StopAsyncIteration():
                return
            case QueueShutDown():
                raise UnsupportedOperationError("the task has just ended") from error
            case StorageFailure():
                raise InternalError(f"{error.message} ({error.hint})") from error
            case Exception():
                reference = uuid.uuid4().hex[:12]
                logger.error("a request failed (reference %s)", reference, exc_info=error)
                raise InternalError(f"internal error, reference {reference}") from error
