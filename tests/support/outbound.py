"""The calls of a turn, as the plugin makes them, without a plugin."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from molecule_hermes.agents.outbound import OutboundCalls
from molecule_hermes.config import AgentConfig, Configuration, PeerConfig, Settings
from molecule_hermes.protocol.chain import Chain
from molecule_hermes.turns.outbound import TurnCalls
from molecule_hermes.wire import Attachment, Called, PeerCall

IDENTITY = b"0123456789abcdef0123456789abcdef"


@dataclass
class Asking:
    """One turn that asks."""

    calls: OutboundCalls
    turn: TurnCalls
    lines: list[str] = field(default_factory=list)
    numbers: Any = field(default_factory=itertools.count)

    async def call(
        self,
        action: Any,
        peer: str = "",
        text: str = "",
        task_id: str = "",
        files: Sequence[Attachment] = (),
        call_id: str = "",
    ) -> Called:
        name = call_id or f"call-{next(self.numbers)}"
        call = PeerCall("message", name, action, peer, text, task_id, tuple(files))
        # What the wire does not carry is not there.
        called = await self.turn.call(PeerCall.parse(call.to_json()))
        return Called.parse(called.to_json())

    async def ask(self, peer: str, text: str, **more: Any) -> dict[str, Any]:
        return dict((await self.call("delegate", peer, text, **more)).result)

    def again(self, conversation: str = "conversation", caller: str = "alice") -> Asking:
        """A later turn."""
        return begin(self.calls, conversation=conversation, caller=caller)


def begin(
    calls: OutboundCalls,
    *,
    agent: AgentConfig | None = None,
    caller: str = "alice",
    chain: Chain = Chain(),  # noqa: B008 - it cannot be changed
    conversation: str = "conversation",
) -> Asking:
    outbound = calls.reach(agent or AgentConfig(), caller).after(chain)
    assert outbound is not None
    lines: list[str] = []
    return Asking(calls, outbound.begin(conversation, lines.append), lines)


@asynccontextmanager
async def asking(*peers: PeerConfig, **variables: Any) -> AsyncIterator[Asking]:
    environ = {f"MOLECULE_HERMES_{name}": str(value) for name, value in variables.items()}
    async with contextlib.AsyncExitStack() as stack:
        calls = OutboundCalls(Settings.from_env(environ), IDENTITY)
        await stack.enter_async_context(calls)
        calls.configure(Configuration(peers={peer.name: peer for peer in peers}))
        turn = begin(calls)
        stack.push_async_callback(turn.turn.close, completed=True)
        yield turn
