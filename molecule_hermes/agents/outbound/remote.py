"""Another agent: the SDK's client for it, and what it sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

import httpx
from a2a.client import Client, ClientCallContext, ClientConfig, ClientFactory
from a2a.client.service_parameters import ServiceParametersFactory, with_a2a_extensions
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    GetTaskRequest,
    Message,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    Task,
)

from molecule_hermes.agents.outbound.cards import BINDINGS, Cards
from molecule_hermes.agents.outbound.credentials import credentials_of
from molecule_hermes.agents.outbound.failures import failure_of, is_before_sending
from molecule_hermes.backoff import Backoff
from molecule_hermes.config import PeerConfig
from molecule_hermes.errors import AuthFailure, TurnFailure
from molecule_hermes.protocol.chain import CHAIN_URI

__all__ = ["Remote"]

_T = TypeVar("_T")
_BACKOFF = Backoff(first=0.2, longest=1.0)
_ATTEMPTS = 3
_TIMEOUT = 20.0
"""Of a request that no agent needs long for."""


class Remote:
    """An agent of the configuration or of the registry. Its methods raise `TurnFailure` only."""

    def __init__(self, config: PeerConfig, http: httpx.AsyncClient) -> None:
        self.config = config
        self._http = http
        self._cards = Cards(config, http)
        self._credentials = credentials_of(config, http)
        self._client: tuple[AgentCard, Client] | None = None
        self.running = 0
        """Calls that wait for the agent."""

    @property
    def name(self) -> str:
        return self.config.name

    async def card(self) -> AgentCard:
        try:
            return await self._cards.get()
        except Exception as error:
            raise failure_of(self.name, error) from error

    async def send(
        self, message: Message, *, immediately: bool = False
    ) -> AsyncGenerator[StreamResponse, None]:
        """Sends the message once it can be sent, and yields the agent's events."""
        request = SendMessageRequest(
            message=message,
            configuration=SendMessageConfiguration(return_immediately=immediately),
        )
        for attempt in range(1, _ATTEMPTS + 1):
            begun = False
            try:
                client, context = await self._prepared()
                async with aclosing(_events(client, request, context)) as events:
                    async for event in events:
                        begun = True
                        yield event
            except Exception as error:
                failure = failure_of(self.name, error)
                if begun or attempt == _ATTEMPTS or not self._may_repeat(error, failure):
                    raise failure from error
                await asyncio.sleep(_BACKOFF.delay(attempt))
            else:
                return

    async def get(self, task_id: str) -> Task:
        async def get(client: Client, context: ClientCallContext) -> Task:
            return await client.get_task(GetTaskRequest(id=task_id), context=context)

        return await self._call(get)

    async def cancel(self, task_id: str) -> Task:
        async def cancel(client: Client, context: ClientCallContext) -> Task:
            return await client.cancel_task(CancelTaskRequest(id=task_id), context=context)

        return await self._call(cancel)

    async def _call(self, call: Callable[[Client, ClientCallContext], Awaitable[_T]]) -> _T:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                async with asyncio.timeout(_TIMEOUT):
                    return await call(*await self._prepared())
            except Exception as error:
                failure = failure_of(self.name, error)
                if attempt == _ATTEMPTS or not self._may_repeat(error, failure):
                    raise failure from error
                await asyncio.sleep(_BACKOFF.delay(attempt))
        raise AssertionError("the last attempt returns or raises")

    def _may_repeat(self, error: Exception, failure: TurnFailure) -> bool:
        """Whether the agent has not taken the request, and might take it next time."""
        if isinstance(failure, AuthFailure):
            return self._credentials.refused()
        return is_before_sending(error)

    async def _prepared(self) -> tuple[Client, ClientCallContext]:
        card = await self._cards.get()
        if self._client is None or self._client[0] is not card:
            config = ClientConfig(
                httpx_client=self._http, streaming=True, supported_protocol_bindings=BINDINGS
            )
            self._client = card, ClientFactory(config).create(card)
        headers = dict(await self._credentials.headers())
        parameters = ServiceParametersFactory.create_from(
            headers, [with_a2a_extensions([CHAIN_URI])]
        )
        return self._client[1], ClientCallContext(service_parameters=parameters)


async def _events(
    client: Client, request: SendMessageRequest, context: ClientCallContext
) -> AsyncGenerator[StreamResponse, None]:
    async for event in client.send_message(request, context=context):
        yield event
