"""The executor for your own A2A server, created from a config object and the environment."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Literal, Protocol, Self

from molecule_hermes.agents.connections import (
    address_of,
    create_transport,
    transport_to_running_hermes,
)
from molecule_hermes.config import Settings
from molecule_hermes.errors import StartError
from molecule_hermes.executor import HermesAgentProxyExecutor
from molecule_hermes.hermes.credentials import known_credentials
from molecule_hermes.protocol.workspace_messages import WorkspaceMessages
from molecule_hermes.server.assembly import executor_options

__all__ = ["EmbeddedExecutor", "ExecutorConfig", "create_executor"]


class ExecutorConfig(Protocol):
    """What a config object needs. With None or "", the environment counts."""

    @property
    def model(self) -> str | None: ...

    @property
    def system_prompt(self) -> str | None: ...


def create_executor(
    config: ExecutorConfig, environ: Mapping[str, str] = os.environ
) -> EmbeddedExecutor:
    """Creates an executor that reaches a running Hermes as `molecule-hermes serve` does.

    Raises `ConfigError` for a bad setting. Opens nothing before `start`.
    """
    return EmbeddedExecutor(
        Settings.from_env(
            environ, model=config.model or None, system_prompt=config.system_prompt or None
        )
    )


class EmbeddedExecutor(HermesAgentProxyExecutor):
    """An executor that owns its transport: `start` it before the first turn, `stop` it at the end.

    Both are idempotent, and `async with` calls both. A stopped executor cannot be started again.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.transport_name = transport_to_running_hermes(settings)
        transport = create_transport(self.transport_name, settings, known_credentials(settings))
        workspace = settings.workspace_id
        super().__init__(
            transport,
            **executor_options(settings, transport),
            replies_with_message=settings.reply == "message",
            complete=WorkspaceMessages(workspace).complete if workspace else None,
        )
        self._state: Literal["new", "started", "stopped"] = "new"
        self._changing = asyncio.Lock()

    @property
    def address(self) -> str:
        """The URL where Hermes is expected."""
        return address_of(self.transport_name, self.settings)

    async def start(self) -> None:
        """Opens the transport. Raises `StartError` if the callback port is not available."""
        async with self._changing:
            if self._state == "stopped":
                raise StartError("the executor was stopped", "create another with create_executor")
            if self._state == "new":
                await self._transport.__aenter__()
                self._state = "started"

    async def stop(self) -> None:
        """Refuses new turns, waits for running ones within the drain timeout, and closes."""
        async with self._changing:
            before, self._state = self._state, "stopped"
            if before == "started":
                try:
                    await self.drain(self.settings.drain_timeout)
                finally:
                    await self._transport.__aexit__(None, None, None)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def check(self) -> None:
        """Raises the `TurnFailure` that a turn would end with now."""
        await self._transport.check()
