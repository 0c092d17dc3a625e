"""A workspace platform: it runs an adapter's executor under the SDK's request handler and an
in-memory store, sends 0.3 messages without a contextId, and reads the first part of the reply."""

from __future__ import annotations

import asyncio
import importlib
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn
from a2a.server.agent_execution import AgentExecutor, RequestContext, RequestContextBuilder
from a2a.server.events import EventQueue
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


class Reply:
    """The result of a `message/send`, as the platform reads it."""

    def __init__(self, response: dict[str, Any]) -> None:
        assert "result" in response, response
        self.result: dict[str, Any] = response["result"]

    @property
    def text(self) -> str:
        """What a reader shows: the first part's text and nothing else."""
        assert self.result["kind"] == "message", self.result
        text = self.result["parts"][0]["text"]
        assert isinstance(text, str)
        assert text.strip(), "a blank bubble"
        return text

    @property
    def kinds(self) -> list[str]:
        return [part["kind"] for part in self.result["parts"]]

    @property
    def failure(self) -> dict[str, Any]:
        return next(dict(part["data"]) for part in self.result["parts"] if part["kind"] == "data")

    @property
    def metadata(self) -> dict[str, Any]:
        return dict(self.result.get("metadata") or {})


class Recorder(AgentExecutor):
    """The adapter's executor, with the calls that the request handler makes."""

    def __init__(self, executor: AgentExecutor) -> None:
        self._executor = executor
        self.calls: list[tuple[RequestContext, EventQueue]] = []

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        self.calls.append((context, event_queue))
        await self._executor.execute(context, event_queue)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await self._executor.cancel(context, event_queue)


class Workspace:
    """A running workspace, and the canvas and other workspaces that write to it."""

    def __init__(
        self,
        url: str,
        http: httpx.AsyncClient,
        adapter: Any = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.url = url
        self.adapter = adapter
        self._recorder = recorder
        self._http = http

    async def cancel(self) -> None:
        """Cancels the last turn as a runtime does it that gives up on a message."""
        assert self._recorder is not None
        await self._recorder.cancel(*self._recorder.calls[-1])

    async def send(
        self,
        text: str,
        *parts: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        context_id: str | None = None,
    ) -> Reply:
        more = {"metadata": metadata, "contextId": context_id}
        return Reply(await self.call("message/send", text, *parts, **more))

    async def call(self, method: str, text: str, *parts: dict[str, Any], **more: Any) -> Any:
        message = {
            "kind": "message",
            "role": "user",
            "messageId": str(uuid.uuid4()),
            "parts": [{"kind": "text", "text": text}, *parts],
            **{key: value for key, value in more.items() if value is not None},
        }
        request = {"jsonrpc": "2.0", "id": "1", "method": method, "params": {"message": message}}
        response = await self._http.post(self.url, json=request)
        return response.json() if method == "message/send" else response.text


def workspace_file(path: str, name: str = "") -> dict[str, Any]:
    """A file part as the platform sends it: a path in the workspace."""
    about = {"name": name} if name else {}
    return {"kind": "file", "file": {"uri": f"workspace:{path}", **about}}


@asynccontextmanager
async def platform(
    config: AdapterConfig, module: str = "molecule_hermes.adapter"
) -> AsyncIterator[Workspace]:
    """Loads the adapter, sets it up and serves its executor."""
    adapter = importlib.import_module(module).Adapter()
    await adapter.setup(config)
    executor = await adapter.create_executor(config)
    try:
        recorder = Recorder(executor)
        async with served(recorder) as url, httpx.AsyncClient(timeout=120) as http:
            yield Workspace(url, http, adapter, recorder)
    finally:
        await executor.stop()


@asynccontextmanager
async def served(
    executor: AgentExecutor,
    store: TaskStore | None = None,
    builder: RequestContextBuilder | None = None,
) -> AsyncIterator[str]:
    """Serves the executor as JSON-RPC by the SDK's means, also for 0.3; yields the URL."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    handler = DefaultRequestHandler(
        executor, store or InMemoryTaskStore(), card(url), request_context_builder=builder
    )
    routes = [
        *create_agent_card_routes(card(url)),
        *create_jsonrpc_routes(handler, "/", enable_v0_3_compat=True),
    ]
    config = uvicorn.Config(
        Starlette(routes=routes),
        port=port,
        lifespan="off",
        log_config=None,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    async with asyncio.timeout(300), asyncio.TaskGroup() as group:
        group.create_task(server.serve())
        await until(lambda: server.started)
        try:
            yield url
        finally:
            server.should_exit = True
    await handler.aclose()
