"""A workspace platform that runs an adapter's executor under a handler and store of its own."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskStore
from a2a.types import AgentCapabilities, AgentCard, AgentInterface
from starlette.applications import Starlette

from tests.support.serving import free_port
from tests.support.waiting import until


@dataclass
class AdapterConfig:
    """The fields that the platform passes to every adapter."""

    model: str = "hermes-agent"
    system_prompt: str | None = None
    tools: list[str] = field(default_factory=list)
    runtime_config: dict[str, Any] = field(default_factory=dict)
    config_path: str = "/configs"
    workspace_id: str = "workspace"
    prompt_files: list[str] = field(default_factory=list)
    a2a_port: int = 8000
    heartbeat: Any = None


def card(url: str) -> AgentCard:
    return AgentCard(
        name="workspace",
        description="a workspace",
        version="1",
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        supported_interfaces=[
            AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version="1.0")
        ],
    )


@asynccontextmanager
async def platform(
    config: AdapterConfig, module: str = "molecule_hermes.adapter"
) -> AsyncIterator[str]:
    """Loads the adapter, sets it up and serves its executor; yields the URL."""
    adapter = importlib.import_module(module).Adapter()
    await adapter.setup(config)
    executor = await adapter.create_executor(config)
    try:
        async with served(executor) as url:
            yield url
    finally:
        await executor.stop()


@asynccontextmanager
async def served(executor: AgentExecutor, store: TaskStore | None = None) -> AsyncIterator[str]:
    """Serves the executor as JSON-RPC by the SDK's means; yields the URL."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    handler = DefaultRequestHandler(executor, store or InMemoryTaskStore(), card(url))
    routes = [*create_agent_card_routes(card(url)), *create_jsonrpc_routes(handler, "/")]
    config = uvicorn.Config(
        Starlette(routes=routes),
        port=port,
        lifespan="off",
        log_config=None,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(server.serve())
        await until(lambda: server.started)
        try:
            yield url
        finally:
            server.should_exit = True
    await handler.aclose()
