"""A platform's runtime in a workspace's container: it serves the adapter's executor.

The check passes this file's text to `python3 -c` inside the container.
"""

import asyncio
import importlib
import os
import sys
from types import SimpleNamespace

import uvicorn
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import AgentCapabilities, AgentCard, AgentInterface
from starlette.applications import Starlette


async def main(port: int) -> None:
    adapter = importlib.import_module(os.environ["ADAPTER_MODULE"]).Adapter()
    config = SimpleNamespace(
        model="hermes-agent",
        system_prompt=None,
        tools=[],
        runtime_config={},
        config_path="/configs",
        workspace_id="smoke",
        prompt_files=[],
        a2a_port=port,
        heartbeat=None,
    )
    await adapter.setup(config)
    executor = await adapter.create_executor(config)
    card = AgentCard(
        name="smoke",
        description="a workspace",
        version="1",
        capabilities=AgentCapabilities(),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        supported_interfaces=[
            AgentInterface(
                url=f"http://127.0.0.1:{port}", protocol_binding="JSONRPC", protocol_version="1.0"
            )
        ],
    )
    handler = DefaultRequestHandler(executor, InMemoryTaskStore(), card)
    routes = [*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/")]
    try:
        await uvicorn.Server(uvicorn.Config(Starlette(routes=routes), port=port)).serve()
    finally:
        await executor.stop()


asyncio.run(main(int(sys.argv[1])))
