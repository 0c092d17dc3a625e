"""The servers under test, each in its own process: `python -m benchmark.servers NAME PORT`.

floor         the plain SDK with an echo executor and tasks in memory
sdk-sqlite    the same with the SDK's own SQLite store, one update per delta
earlier       a bridge that creates a new HTTP client for every turn
chat, plugin  the bridge with its durable store, over either transport
chat-memory, plugin-memory   the same with tasks in memory
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import uvicorn
import uvloop
from a2a.helpers import new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskStore, TaskUpdater
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    Task,
    TaskState,
    TaskStatus,
)
from starlette.applications import Starlette

from molecule_hermes.config import Settings
from molecule_hermes.server.bridge import Bridge
from molecule_hermes.transports.base import Transport
from molecule_hermes.transports.chat.transport import ChatTransport
from molecule_hermes.transports.plugin.transport import PluginTransport

from .fakes import KEY, SECRET, TOKENS, reply_to

HELD = 40.0
"""Seconds that the floor keeps a turn in flight while its memory is measured."""
BASELINES = ("floor", "sdk-sqlite", "earlier")
BRIDGES = ("chat", "plugin", "chat-memory", "plugin-memory")


class Echo(AgentExecutor):
    """Emits the bridge's events for a short reply: Task, WORKING, one artifact, COMPLETED."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        task_id, context_id = context.task_id or "", context.context_id or ""
        status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
        history = [context.message] if context.message else []
        await event_queue.enqueue_event(
            Task(id=task_id, context_id=context_id, status=status, history=history)
        )
        updater = TaskUpdater(event_queue, task_id, context_id)
        await updater.start_work()
        first = True
        for piece in await self.reply(context.get_user_input()):
            await updater.add_artifact(
                [new_text_part(piece)], artifact_id="reply", name="reply", append=not first
            )
            first = False
        await updater.complete()

    async def reply(self, text: str) -> list[str]:
        if text.startswith("flight"):
            await asyncio.sleep(HELD)
        return list(reply_to(text))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


class Earlier(Echo):
    async def reply(self, text: str) -> list[str]:
        body = {"model": "hermes", "messages": [{"role": "user", "content": text}]}
        async with httpx.AsyncClient(timeout=60) as client:
            url = f"{os.environ['FAKE_CHAT']}/chat/completions"
            answer = await client.post(url, json=body, headers={"Authorization": f"Bearer {KEY}"})
        return [answer.json()["choices"][0]["message"]["content"]]


@asynccontextmanager
async def _sdk_store(name: str, folder: str) -> AsyncIterator[TaskStore]:
    if name != "sdk-sqlite":
        yield InMemoryTaskStore()
        return
    from a2a.server.tasks import DatabaseTaskStore
    from sqlalchemy.ext.asyncio import create_async_engine

    patience = {"timeout": 60}  # a busy disk should only slow it down
    engine = create_async_engine(f"sqlite+aiosqlite:///{folder}/tasks.db", connect_args=patience)
    store = DatabaseTaskStore(engine)
    await store.initialize()
    try:
        yield store
    finally:
        await engine.dispose()


async def _baseline(name: str, port: int, folder: str) -> None:
    card = AgentCard(
        name=name,
        description="a baseline",
        version="1",
        supported_interfaces=[
            AgentInterface(
                url=f"http://127.0.0.1:{port}/", protocol_binding="JSONRPC", protocol_version="1.0"
            )
        ],
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="echo", name="echo", description="says it again", tags=["echo"])],
    )
    async with _sdk_store(name, folder) as store:
        handler = DefaultRequestHandler(Earlier() if name == "earlier" else Echo(), store, card)
        app = Starlette(routes=create_jsonrpc_routes(handler, "/"))
        config = uvicorn.Config(
            app,
            port=port,
            http="httptools",
            log_level="error",
            access_log=False,
            lifespan="off",
            timeout_keep_alive=75,
        )
        await uvicorn.Server(config).serve()


async def _bridge(name: str, port: int, folder: str) -> None:
    settings = Settings.from_env(
        os.environ
        | {
            "MOLECULE_HERMES_PORT": str(port),
            "MOLECULE_HERMES_STATE_DIR": folder,
            "MOLECULE_HERMES_STORE": "memory" if name.endswith("-memory") else "sqlite",
            "MOLECULE_HERMES_PEER_TOKENS": ",".join(f"{n}:{t}" for n, t in TOKENS.items()),
            "MOLECULE_HERMES_MAX_RUNNING": "4000",
            "MOLECULE_HERMES_MAX_CONNECTIONS": "10000",
            "MOLECULE_HERMES_MAX_CONNECTIONS_OF_ADDRESS": "10000",
        }
    )
    async with Bridge(settings, _transport(name)):
        await asyncio.Event().wait()


def _transport(name: str) -> Transport:
    if name.startswith("chat"):
        return ChatTransport(os.environ["FAKE_CHAT"], KEY)
    return PluginTransport(os.environ["FAKE_PLUGIN"], secret=SECRET)


def main() -> None:
    name, port = sys.argv[1], int(sys.argv[2])
    run = _bridge if name in BRIDGES else _baseline
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(run(name, port, folder))


if __name__ == "__main__":
    main()
