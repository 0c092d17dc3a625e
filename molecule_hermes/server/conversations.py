"""Finds the conversation of a context, and keeps it free for the operator."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager

from a2a.server.context import ServerCallContext
from a2a.types import ListTasksRequest

from molecule_hermes.agents.request_handler import Chooses
from molecule_hermes.agents.roster import Agent, Roster
from molecule_hermes.errors import BadRequest, Busy
from molecule_hermes.protocol.caller import Caller
from molecule_hermes.protocol.task_registry import TaskRegistry
from molecule_hermes.transports.base import Transport
from molecule_hermes.turns.model import Turn
from molecule_hermes.turns.scheduler import Scheduler

__all__ = ["ANONYMOUS", "Conversations", "NoConversation"]

ANONYMOUS = "anonymous"
"""The name of the only peer where there are no tokens."""

_MID_TURN = "the agent is mid-turn in this conversation; try again when it has answered"


class NoConversation(BadRequest):
    """No peer talks in the context."""


class Conversations:
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

    @asynccontextmanager
    async def held(
        self, context_id: str, peer: str, name: str
    ) -> AsyncIterator[tuple[Turn, Transport]]:
        """Within it, no turn of the conversation begins in this bridge. Yields what stands for such
        a turn, and the transport to its agent. Raises a `TurnFailure`."""
        peer, agent = await self._find(context_id, peer, name)
        profile = agent.executor.policy_of(peer).profile
        turn = Turn(uuid.uuid4().hex, peer, context_id, "", "", agent=agent.name, profile=profile)
        slot = self._scheduler.enter(turn.conversation, peer, 0, agent=agent.name)
        with agent.in_use():
            async with slot:
                if not slot.started:
                    raise Busy(_MID_TURN, hint="")
                slot.pause()  # the conversation stays taken, and others can run
                yield turn, agent.transport

    async def _find(self, context_id: str, peer: str, agent: str) -> tuple[str, Agent]:
        """The peer and the agent that talk in this context."""
        found = [
            (name, each)
            for name, each in self._candidates(peer, agent)
            if await self._has_tasks(context_id, name, each.name)
        ]
        if not found:
            message = f"there is no conversation in context {context_id!r}"
            raise NoConversation(f"{message}; check its ID, --peer and --agent", hint="")
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
