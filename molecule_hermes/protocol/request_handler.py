"""Handles A2A requests.

An implementation of the SDK's public `RequestHandler` interface. An active task has a `TaskLog` in
memory; all other tasks are read from the store.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events import Event
from a2a.server.owner_resolver import resolve_user_scope
from a2a.server.request_handlers import RequestHandler
from a2a.server.request_handlers.request_handler import validate, validate_request_params
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import (
    ExtendedAgentCardNotConfiguredError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from a2a.utils.task import apply_history_length, validate_history_length, validate_page_size

from molecule_hermes.protocol.accepted import Accepted, first_event, has_webhook, shown
from molecule_hermes.protocol.error_mapping import nothing_leaks
from molecule_hermes.protocol.executor_calls import ExecutorCalls
from molecule_hermes.protocol.incoming import without_bytes
from molecule_hermes.protocol.references import referenced_tasks
from molecule_hermes.protocol.resends import Resends
from molecule_hermes.protocol.schema_process import SchemaProcesses
from molecule_hermes.protocol.states import rests
from molecule_hermes.protocol.status import canceled
from molecule_hermes.protocol.task_log import Subscription, TaskLog
from molecule_hermes.protocol.task_registry import TaskRegistry
from molecule_hermes.protocol.validation import (
    require_known_status,
    require_open,
    require_page_token,
    require_same_context,
    require_schema,
    require_sound,
    require_takes,
)
from molecule_hermes.protocol.webhooks import PushSender
from molecule_hermes.storage.quota import StorageQuota
from molecule_hermes.telemetry.metrics import Metrics
from molecule_hermes.turns.idempotency import IdempotencyIndex

__all__ = ["BridgeRequestHandler"]

_streams = validate(
    lambda self: self.card.capabilities.streaming, "Streaming is not supported by the agent"
)
_pushes = validate(
    lambda self: self.card.capabilities.push_notifications,
    error_message="Push notifications are not supported by the agent",
    error_type=PushNotificationNotSupportedError,
)


class BridgeRequestHandler(RequestHandler):
    """Runs the executor for messages, and answers all other requests from logs and the store."""

    def __init__(
        self,
        executor: AgentExecutor,
        tasks: TaskRegistry,
        card: AgentCard,
        webhooks: PushSender,
        *,
        idempotency: IdempotencyIndex | None = None,
        quota: StorageQuota | None = None,
        max_events: int = 1024,
        no_steering: str = "",
        close_timeout: float = 10.0,
        metrics: Metrics | None = None,
        schemas: SchemaProcesses | None = None,
    ) -> None:
        """`no_steering` says why tasks take no messages while they work; "" if they do."""
        self.card = card
        self._executor = executor
        self._tasks = tasks
        self._webhooks = webhooks
        index = IdempotencyIndex(0.0) if idempotency is None else idempotency
        self._resends = Resends(index)
        self._quota = quota
        self._max_events = max_events
        self._no_steering = no_steering
        self._metrics = metrics or Metrics()
        self._schemas = schemas or SchemaProcesses()
        self._calls = ExecutorCalls(executor, close_timeout=close_timeout)

    @property
    def active(self) -> int:
        """Tasks in memory: those that are running or wait for their peer."""
        return len(self._tasks)

    async def aclose(self) -> None:
        """Waits for the executor's calls, which its own `drain` has ended. Cancels those that do
        not return within `close_timeout` seconds."""
        await self._calls.aclose()

    # Reading.

    @validate_request_params
    @nothing_leaks
    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task:
        validate_history_length(params)
        return apply_history_length(await self._task(params.id, context), params)

    @validate_request_params
    @nothing_leaks
    async def on_list_tasks(
        self, params: ListTasksRequest, context: ServerCallContext
    ) -> ListTasksResponse:
        validate_history_length(params)
        if params.HasField("page_size"):
            validate_page_size(params.page_size)
        require_page_token(params.page_token)
        require_known_status(params.status)
        page = await self._tasks.list(params, context)
        for task in page.tasks:
            if not params.include_artifacts:
                task.ClearField("artifacts")
            if (shown := apply_history_length(task, params)) is not task:
                task.CopyFrom(shown)
        return page

    async def _task(self, task_id: str, context: ServerCallContext) -> Task:
        task = await self._tasks.get(task_id, context)
        if task is None:
            raise TaskNotFoundError(f"Task {task_id} not found")
        return task

    async def _log(self, task_id: str, context: ServerCallContext) -> TaskLog:
        """The log of an existing task. Waits for a task that is being created."""
        task = await self._task(task_id, context)
        return self._tasks.log(task_id, context) or self._tasks.adopt(task, context)

    # Sending.

    @validate_request_params
    @nothing_leaks
    async def on_message_send(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> Task | Message:
        accepted = await self._accept(params, context)
        log = accepted.log
        seen = log.version if accepted.request is not None else 0
        call = self._call_for(accepted)
        if params.configuration.return_immediately:
            await first_event(log, seen, call)
            task = await log.snapshot()
        else:
            if call is not None:
                await asyncio.wait({call})
            task = await log.rested()
        accepted.require_heard()
        return apply_history_length(task, params.configuration)

    @validate_request_params
    @_streams
    @nothing_leaks
    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        accepted = await self._accept(params, context)
        log = accepted.log
        async with self._reader(log) as reader:
            if accepted.request is None:
                yield apply_history_length(await log.subscribe(reader), params.configuration)
            else:
                log.follow(reader)
            if (call := self._call_for(accepted)) is not None:
                call.add_done_callback(lambda _: reader.close() if log.rests else None)
            elif log.rests:
                return
            async for event in reader:
                yield shown(event, params)
                if rests(event):
                    break
            accepted.require_heard()

    async def _accept(self, params: SendMessageRequest, context: ServerCallContext) -> Accepted:
        """Finds or creates the log of the message's task. Does not call the executor."""
        validate_history_length(params.configuration)
        message = params.message
        require_sound(params)
        if message.task_id:
            return await self._accept_further(params, context)
        if self._quota is not None:
            self._quota.require_room_for_refusal(resolve_user_scope(context))
        await require_schema(params, self._schemas, resolve_user_scope(context))
        resent = self._resends.find(message, context)
        related = [] if resent else await referenced_tasks(message, context, self._tasks.get)
        task_id, context_id = str(uuid.uuid4()), message.context_id or str(uuid.uuid4())
        if before := await self._claim(params, context, task_id, context_id):
            return Accepted(await self._log(before, context))
        log = self._tasks.begin(Task(id=task_id, context_id=context_id), context)
        return Accepted(log, RequestContext(context, params, task_id, context_id, None, related))

    async def _claim(
        self, params: SendMessageRequest, context: ServerCallContext, task_id: str, context_id: str
    ) -> str | None:
        """Assigns the message to a new task, or returns the task of the message if it is a resend.

        The webhook is registered first: a message whose webhook is refused can be sent again.
        """
        message = params.message
        if before := self._resends.find(message, context):
            return before
        await self._register_webhook(task_id, params, context)
        if before := self._resends.find(message, context):  # the same message arrived meanwhile
            if has_webhook(params):
                await self._webhooks.configs.delete_info(task_id, context)
            return before
        self._resends.claim(message, task_id, context_id, context)
        return None

    async def _accept_further(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> Accepted:
        accepted = await self._find_task(params, context)
        task = accepted.log.task
        if accepted.request is not None and has_webhook(params):
            await self._register_webhook(task.id, params, context)
            accepted = await self._find_task(params, context)  # the task may have gone on
        if accepted.request is not None:
            self._resends.claim_answer(params.message, task, context)
        return accepted

    async def _find_task(self, params: SendMessageRequest, context: ServerCallContext) -> Accepted:
        """Finds the task that the message answers or steers. Raises if it takes none now."""
        message = params.message
        task = await self._task(message.task_id, context)
        require_same_context(message, task)
        log = self._tasks.log(task.id, context) or self._tasks.adopt(task, context)
        if self._resends.is_resent_answer(message, task, context):
            return Accepted(log)
        require_takes(task, without_bytes(message), self._no_steering)
        if log.canceling is not None and log.canceling.locked():
            raise UnsupportedOperationError(f"task {task.id} is being canceled")
        return Accepted(log, RequestContext(context, params, task.id, task.context_id, task))

    def _call_for(self, accepted: Accepted) -> asyncio.Task[None] | None:
        """The executor's call: a new one, or for a resend that of the message itself."""
        log = accepted.log
        if accepted.request is None:
            return self._calls.find(log.task.id)
        return self._calls.start(log, accepted.request)

    # Following and canceling.

    @validate_request_params
    @_streams
    @nothing_leaks
    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        log = await self._log(params.id, context)
        async with self._reader(log) as reader:
            task = await log.subscribe(reader)
            require_open(task)
            yield task
            async for event in reader:
                yield event
                if rests(event):
                    return

    @validate_request_params
    @nothing_leaks
    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> Task:
        log = await self._log(params.id, context)
        task = log.task
        if log.canceling is None:
            log.canceling = asyncio.Lock()
        async with log.canceling:
            if log.ended:
                raise TaskNotCancelableError(
                    f"task {task.id} has ended: {TaskState.Name(log.task.status.state)}"
                )
            request = RequestContext(context, None, task.id, task.context_id, task)
            await self._executor.cancel(request, log)
            if not log.ended:
                await log.enqueue_event(canceled(task))
        return await log.snapshot()

    def _reader(self, log: TaskLog) -> Subscription:
        return Subscription(log, self._max_events, self._metrics.subscriber_dropped)

    # Webhooks.

    async def _register_webhook(
        self, task_id: str, params: SendMessageRequest, context: ServerCallContext
    ) -> None:
        if has_webhook(params):
            config = params.configuration.task_push_notification_config
            await self._require_allowed(config.url)
            await self._webhooks.configs.set_info(task_id, config, context)

    async def _require_allowed(self, url: str) -> None:
        if not await self._webhooks.accepts(url):
            raise InvalidParamsError("Invalid push notification URL")

    @validate_request_params
    @_pushes
    @nothing_leaks
    async def on_create_task_push_notification_config(
        self, params: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        await self._task(params.task_id, context)
        await self._require_allowed(params.url)
        stored = await self._webhooks.configs.set_info(params.task_id, params, context)
        return stored or params

    @validate_request_params
    @_pushes
    @nothing_leaks
    async def on_get_task_push_notification_config(
        self, params: GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        await self._task(params.task_id, context)
        for config in await self._webhooks.configs.get_info(params.task_id, context):
            if config.id == params.id:
                return config
        raise TaskNotFoundError(f"task {params.task_id} has no push configuration {params.id}")

    @validate_request_params
    @_pushes
    @nothing_leaks
    async def on_list_task_push_notification_configs(
        self, params: ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        await self._task(params.task_id, context)
        configs = await self._webhooks.configs.get_info(params.task_id, context)
        return ListTaskPushNotificationConfigsResponse(configs=configs)

    @validate_request_params
    @_pushes
    @nothing_leaks
    async def on_delete_task_push_notification_config(
        self, params: DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        await self._task(params.task_id, context)
        await self._webhooks.configs.delete_info(params.task_id, context, params.id)

    @validate_request_params
    @validate(
        lambda self: self.card.capabilities.extended_agent_card,
        error_message="The agent does not support authenticated extended cards",
    )
    async def on_get_extended_agent_card(
        self, params: GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> AgentCard:
        raise ExtendedAgentCardNotConfiguredError
