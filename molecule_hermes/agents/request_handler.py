"""Decides which agent a request is for, and passes it to the handler of that agent.

An agent is a tenant of A2A. A request names it by `tenant` (in the params, or in a REST path), or
by the path `/agents/NAME`; a request without a tenant goes to the agent that the routes choose. The
caller becomes a `Caller` of that agent, so everything that is known by its user's name is kept
apart: tasks, contexts, webhooks, resends and stored bytes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from a2a.server.context import ServerCallContext
from a2a.server.events import Event
from a2a.server.request_handlers import RequestHandler
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
)
from a2a.utils.errors import InvalidParamsError

from molecule_hermes.agents.roster import Agent, Roster
from molecule_hermes.protocol.caller import Caller
from molecule_hermes.protocol.error_mapping import nothing_leaks
from molecule_hermes.protocol.task_registry import TaskRegistry
from molecule_hermes.storage.base import OWNERS
from molecule_hermes.text import shorten

__all__ = ["PATH_AGENT", "Chooses", "RoutingRequestHandler"]

PATH_AGENT = "agent"
"""In the state of a call's context: the agent that the request's path names."""
_SKILL = ("skillId", "skill")
"""In the metadata of a message."""
_MAX_SHOWN = 100


class Chooses(Protocol):
    """What knows the routes."""

    def choose(self, peer: str, tenant: str, context: str, skill: str) -> str | None:
        """The agent for a new message; None if the peer reaches none under that tenant."""

    def reachable(self, peer: str, tenant: str) -> tuple[str, ...]:
        """The agents that the peer's messages under that tenant can get."""

    def allows(self, peer: str, agent: str) -> bool:
        """Whether the peer may reach the agent at all."""


class _Tenanted(Protocol):
    """The params of each request."""

    @property
    def tenant(self) -> str: ...


class RoutingRequestHandler(RequestHandler):
    def __init__(self, roster: Roster, tasks: TaskRegistry, routes: Chooses) -> None:
        self.routes = routes
        """Can be replaced."""
        self._roster = roster
        self._tasks = tasks

    # Sending.

    @nothing_leaks
    async def on_message_send(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> Task | Message:
        agent, call = await self._for_message(params, context)
        with agent.in_use():
            reply: Task | Message = await agent.handler.on_message_send(params, call)
        return reply

    @nothing_leaks
    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        agent, call = await self._for_message(params, context)
        with agent.in_use():
            async for event in agent.handler.on_message_send_stream(params, call):
                yield event

    # Tasks.

    @nothing_leaks
    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task:
        agent, call = await self._of_task(params.id, params, context)
        task: Task = await agent.handler.on_get_task(params, call)
        return task

    @nothing_leaks
    async def on_list_tasks(
        self, params: ListTasksRequest, context: ServerCallContext
    ) -> ListTasksResponse:
        names = self._reachable(params, context)
        owners = tuple(_call(name, context).user.user_name for name in names)
        call = _call(names[0], context)
        call.state = {**context.state, OWNERS: owners}
        page: ListTasksResponse = await self._roster[names[0]].handler.on_list_tasks(params, call)
        return page

    @nothing_leaks
    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> Task:
        agent, call = await self._of_task(params.id, params, context)
        with agent.in_use():
            task: Task = await agent.handler.on_cancel_task(params, call)
        return task

    @nothing_leaks
    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        agent, call = await self._of_task(params.id, params, context)
        async for event in agent.handler.on_subscribe_to_task(params, call):
            yield event

    # Webhooks.

    @nothing_leaks
    async def on_create_task_push_notification_config(
        self, params: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        agent, call = await self._of_task(params.task_id, params, context)
        handler = agent.handler
        config: TaskPushNotificationConfig = await handler.on_create_task_push_notification_config(
            params, call
        )
        return config

    @nothing_leaks
    async def on_get_task_push_notification_config(
        self, params: GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        agent, call = await self._of_task(params.task_id, params, context)
        handler = agent.handler
        config: TaskPushNotificationConfig = await handler.on_get_task_push_notification_config(
            params, call
        )
        return config

    @nothing_leaks
    async def on_list_task_push_notification_configs(
        self, params: ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        agent, call = await self._of_task(params.task_id, params, context)
        configs: ListTaskPushNotificationConfigsResponse = (
            await agent.handler.on_list_task_push_notification_configs(params, call)
        )
        return configs

    @nothing_leaks
    async def on_delete_task_push_notification_config(
        self, params: DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        agent, call = await self._of_task(params.task_id, params, context)
        await agent.handler.on_delete_task_push_notification_config(params, call)

    @nothing_leaks
    async def on_get_extended_agent_card(
        self, params: GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> AgentCard:
        name = self._reachable(params, context)[0]
        call = _call(name, context)
        handler = self._roster[name].handler
        card: AgentCard = await handler.on_get_extended_agent_card(params, call)
        return card

    def scopes(self, context: ServerCallContext) -> dict[str, str]:
        """The agents whose tasks the caller can list, and its name at each. Raises `A2AError`."""
        names = self._reachable(ListTasksRequest(), context)
        return {name: _call(name, context).user.user_name for name in names}

    # Finding the agent.

    async def _for_message(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> tuple[Agent, ServerCallContext]:
        message = params.message
        if message.task_id:
            return await self._of_task(message.task_id, params, context)
        tenant, peer = _tenant(params, context), _peer(context)
        name = self.routes.choose(peer, tenant, message.context_id, _skill(message))
        if name is None:
            raise _nobody(tenant)
        return self._roster[name], _call(name, context)

    async def _of_task(
        self, task_id: str, params: _Tenanted, context: ServerCallContext
    ) -> tuple[Agent, ServerCallContext]:
        """The agent that the task belongs to. If there is none, any reports that."""
        names = self._reachable(params, context)
        agents = {name: self._roster[name] for name in names}  # a reload may remove one meanwhile
        calls = [_call(name, context) for name in names]
        found = await self._tasks.find(task_id, calls) if len(calls) > 1 else None
        index = calls.index(found) if found is not None else 0
        return agents[names[index]], calls[index]

    def _reachable(self, params: _Tenanted, context: ServerCallContext) -> tuple[str, ...]:
        """The agents to which the peer's tasks may belong. Without a tenant, these are all that it
        may reach: routes choose by more than the peer, and may have changed since."""
        tenant, peer = _tenant(params, context), _peer(context)
        names = self.routes.reachable(peer, tenant)
        if not tenant:
            names = tuple(name for name in self._roster.agents if self.routes.allows(peer, name))
        if not names:
            raise _nobody(tenant)
        return names


def _tenant(params: _Tenanted, context: ServerCallContext) -> str:
    """The SDK puts the tenant of a REST path into the context, and all others into the params."""
    named = {context.state.get(PATH_AGENT, ""), context.tenant, params.tenant} - {""}
    if len(named) > 1:
        raise InvalidParamsError("the request names more than one tenant")
    return next(iter(named), "")


def _peer(context: ServerCallContext) -> str:
    return context.user.user_name if context.user.is_authenticated else ""


def _call(agent: str, context: ServerCallContext) -> ServerCallContext:
    return context.model_copy(update={"user": Caller(_peer(context), agent)})


def _skill(message: Message) -> str:
    """The skill that the message names, if any."""
    for name in _SKILL:
        if name in message.metadata.fields and (
            skill := message.metadata.fields[name].string_value
        ):
            return skill
    return ""


def _nobody(tenant: str) -> InvalidParamsError:
    """Says the same of an agent that does not exist and of one that the peer may not reach."""
    if not tenant:
        return InvalidParamsError("no agent here takes this request from you; ask the operator")
    return InvalidParamsError(f"unknown tenant {shorten(tenant, _MAX_SHOWN)!r}")
