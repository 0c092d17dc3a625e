"""Lends conversations to the operator, who goes on with them in Hermes's own CLI.

The command holds a connection for as long as it runs; when that ends, however it ends, the peer's
messages, which have waited, go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager

from a2a.server.context import ServerCallContext
from a2a.types import ListTasksRequest
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from molecule_hermes.agents.fleet_transport import FleetTransport
from molecule_hermes.agents.request_handler import Chooses
from molecule_hermes.agents.roster import Agent, Roster
from molecule_hermes.errors import BadRequest, Busy
from molecule_hermes.hermes.terminal import Terminal
from molecule_hermes.protocol.caller import Caller
from molecule_hermes.protocol.task_registry import TaskRegistry
from molecule_hermes.server.handoffs import ANONYMOUS
from molecule_hermes.turns.model import Turn
from molecule_hermes.turns.scheduler import Scheduler

__all__ = ["Resumes"]

_KEEPALIVE = 2.0


class Resumes:
    """`known` are the peers and the routes of the configuration as it is now."""

    def __init__(
        self,
        roster: Roster,
        tasks: TaskRegistry,
        scheduler: Scheduler,
        known: Callable[[], tuple[Collection[str], Chooses]],
    ) -> None:
        self._roster = roster
        self._tasks = tasks
        self._scheduler = scheduler
        self._known = known
        self._closed = asyncio.Event()

    def close(self) -> None:
        """Ends all of them."""
        self._closed.set()

    async def respond(self, context_id: str, peer: str, agent: str) -> StreamingResponse:
        """A response that lends the conversation until it ends. Raises a `TurnFailure`."""
        stack = contextlib.AsyncExitStack()
        try:
            terminal = await stack.enter_async_context(self._lent(context_id, peer, agent))
        except BaseException:
            await stack.aclose()
            raise
        return _Held(self._lines(terminal), stack)

    async def _lines(self, terminal: Terminal) -> AsyncIterator[str]:
        yield json.dumps(terminal.to_json()) + "\n"
        while not self._closed.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_KEEPALIVE):
                    await self._closed.wait()
            yield "\n"

    @asynccontextmanager
    async def _lent(self, context_id: str, peer: str, name: str) -> AsyncIterator[Terminal]:
        peer, agent = await self._find(context_id, peer, name)
        transport = agent.transport
        if not isinstance(transport, FleetTransport):
            raise BadRequest("its Hermes is not run by this bridge", hint="")
        profile = agent.executor.policy_of(peer).profile
        turn = Turn(uuid.uuid4().hex, peer, context_id, "", "", agent=agent.name, profile=profile)
        slot = self._scheduler.enter(turn.conversation, peer, 0, agent=agent.name)
        with agent.in_use():
            async with slot:
                if not slot.started:
                    raise Busy("the agent is mid-turn in this conversation", hint="")
                slot.pause()  # the conversation stays taken, and others can run
                async with transport.lend(turn) as terminal:
                    yield terminal

    async def _find(self, context_id: str, peer: str, agent: str) -> tuple[str, Agent]:
        """The peer and the agent that talk in this context."""
        found = [
            (name, each)
            for name, each in self._candidates(peer, agent)
            if await self._has_tasks(context_id, name, each.name)
        ]
        if not found:
            raise BadRequest(f"there is no conversation in context {context_id!r}", hint="")
        if len(found) > 1:
            raise BadRequest(
                "there is more than one conversation in this context; say which with --peer or "
                "--agent",
                hint="",
            )
        return found[0]

    def _candidates(self, peer: str, agent: str) -> Iterator[tuple[str, Agent]]:
        peers, _ = self._known()
        named = {"" if peer == ANONYMOUS else peer} if peer else set(peers) or {""}
        for name, each in self._roster.agents.items():
            if agent in ("", name):
                yield from ((peer_name, each) for peer_name in sorted(named))

    async def _has_tasks(self, context_id: str, peer: str, agent: str) -> bool:
        call = ServerCallContext(user=Caller(peer, agent))
        params = ListTasksRequest(context_id=context_id, page_size=1)
        return bool((await self._tasks.list(params, call)).tasks)


class _Held(StreamingResponse):
    """Ends what it holds together with itself, also if it never began."""

    def __init__(self, lines: AsyncIterator[str], stack: contextlib.AsyncExitStack) -> None:
        super().__init__(lines, media_type="application/x-ndjson")
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await asyncio.shield(asyncio.ensure_future(self._stack.aclose()))
