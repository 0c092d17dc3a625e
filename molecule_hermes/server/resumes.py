"""Lends conversations to the operator, who goes on with them in Hermes's own CLI.

The command holds a connection for as long as it runs; when that ends, however it ends, the peer's
messages, which have waited, go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from molecule_hermes.agents.fleet_transport import FleetTransport
from molecule_hermes.errors import BadRequest
from molecule_hermes.hermes.terminal import Terminal
from molecule_hermes.server.conversations import Conversations

__all__ = ["Resumes"]

_KEEPALIVE = 2.0


class Resumes:
    def __init__(self, conversations: Conversations) -> None:
        self._conversations = conversations
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
        async with self._conversations.held(context_id, peer, name) as (turn, transport):
            if not isinstance(transport, FleetTransport):
                message = "this bridge does not run the agent's Hermes; use the CLI where that runs"
                raise BadRequest(message, hint="")
            async with transport.lend(turn) as terminal:
                yield terminal


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
