"""Deliveries: tasks that the agent begins, in a conversation of its peer.

A delivery is a turn that Hermes runs by itself. It is stored before Hermes is told that it was
taken, and from then on it is followed as a turn of an earlier bridge is.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from a2a.server.agent_execution import RequestContext
from a2a.server.context import ServerCallContext
from a2a.types import Message, Part, Role, Task, TaskState, TaskStatus
from a2a.utils.errors import A2AError

from molecule_hermes.errors import (
    BadRequest,
    Busy,
    Draining,
    Forbidden,
    RateLimited,
    TurnFailure,
)
from molecule_hermes.protocol.caller import Caller
from molecule_hermes.protocol.chain import Chain, hops_of
from molecule_hermes.protocol.recovery import Resumes
from molecule_hermes.protocol.states import TERMINAL
from molecule_hermes.protocol.task_log import TaskLog
from molecule_hermes.protocol.task_registry import TaskRegistry
from molecule_hermes.protocol.turn_record import TurnRecord
from molecule_hermes.protocol.webhooks import PushSender
from molecule_hermes.storage.base import Conversation, Unfinished
from molecule_hermes.storage.contents import INITIATED_BY, is_delivery
from molecule_hermes.storage.quota import StorageQuota
from molecule_hermes.telemetry.metrics import Metrics
from molecule_hermes.text import one_line, redact, shorten
from molecule_hermes.transports.deliveries import Opening, Received
from molecule_hermes.wire import Cause

__all__ = ["AgentDeliveries", "Bounds", "Deliveries", "DeliveryLimits"]

logger = logging.getLogger(__name__)

_IDS = uuid.UUID("9d3a5c1e-6f0b-4b6e-8a1c-2f4a7d0c9b11")
_HOUR = 3600.0
_MAX_JOB = 200
_TEXTS: dict[Cause, str] = {
    "background": "the agent reports on a job of its own",
    "cron": "a scheduled job reports",
    "handoff": "a conversation was handed over",
}


@dataclass(frozen=True, slots=True)
class DeliveryLimits:
    """Of deliveries without an end, and of how many one peer gets in an hour."""

    total: int = 256
    of_peer: int = 16
    per_hour: int = 120


class Deliveries:
    """Stores what Hermes opens, and has it followed."""

    def __init__(
        self,
        tasks: TaskRegistry,
        executor_of: Callable[[str], Resumes | None],
        webhooks: PushSender,
        *,
        allows: Callable[[str, str | None], bool] = lambda agent, peer: True,
        shares: Callable[[str, str], bool] = lambda agent, other: False,
        limits: DeliveryLimits = DeliveryLimits(),  # noqa: B008 - it cannot be changed
        quota: StorageQuota | None = None,
        turn_timeout: float = 600.0,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`allows` says whether an agent may speak unasked to a peer, or to anyone (None), and
        `shares` whether two agents are the same Hermes, which tells one of them about both."""
        self._tasks = tasks
        self._executor_of = executor_of
        self._webhooks = webhooks
        self.allows = allows
        """Can be replaced."""
        self._shares = shares
        self._quota = quota
        self._turn_timeout = turn_timeout
        self._metrics = metrics or Metrics()
        self._bounds = Bounds(limits, clock)
        self._open = False
        self._receiving: set[str] = set()
        """The tasks of deliveries that are being stored."""

    @property
    def unfinished(self) -> int:
        return len(self._bounds)

    def of_agent(self, agent: str) -> AgentDeliveries:
        """The receiver for the transport of an agent."""
        return AgentDeliveries(self, agent)

    def recall(self, unfinished: Iterable[Unfinished]) -> None:
        """Counts those that an earlier bridge has left."""
        for item in unfinished:
            if is_delivery(item.task):
                self._bounds.add(item.owner, item.task.id)

    def task_ended(self, log: TaskLog) -> None:
        self._bounds.remove(log.owner, log.task.id)

    def open(self) -> None:
        """Takes them from now on: those of an earlier bridge are being followed, or have ended."""
        self._open = True

    def close(self) -> None:
        """Takes no more; Hermes keeps them for the next bridge."""
        self._open = False

    async def receive(self, opening: Opening, agent: str, peer: str | None) -> Received:
        """For a Hermes of the agent that serves all of its peers (None), or one. Raises a
        `TurnFailure`, as `transports.deliveries.Receiver` says."""
        if not self._open:
            raise Draining()
        try:
            return await self._receive(opening, agent, peer)
        except TurnFailure as failure:
            self._metrics.delivery_refused(agent, failure.kind)
            raise

    async def _receive(self, opening: Opening, agent: str, peer: str | None) -> Received:
        found = await self._tasks.conversation(opening.conversation)
        if found is None:
            raise BadRequest("there is no such conversation", hint="its last task may be deleted")
        caller = Caller.from_scope(found.owner)
        others = caller.agent != agent
        foreign = others and not self._shares(caller.agent, agent)
        if foreign or (peer is not None and caller.peer != peer):
            logger.warning("agent %s spoke into a conversation of another", agent)
            raise Forbidden("the conversation is not one of this agent and peer")
        task_id = str(uuid.uuid5(_IDS, f"{found.owner}\n{opening.push_id}"))
        if task_id in self._receiving:
            raise Draining("the delivery is being stored")
        self._receiving.add(task_id)
        try:
            received = await self._store(opening, task_id, found, caller)
        finally:
            self._receiving.discard(task_id)
        # The transport of another agent follows it, and gets all that comes after the opening.
        return "known" if others and received == "new" else received

    async def _store(
        self, opening: Opening, task_id: str, found: Conversation, caller: Caller
    ) -> Received:
        call = ServerCallContext(user=caller)
        if (task := await self._tasks.get(task_id, call)) is not None:
            return "over" if task.status.state in TERMINAL else "known"
        executor = self._admit(caller)
        # Counted from now on, so that others that are being stored see it.
        self._bounds.take(caller.user_name, task_id)
        try:
            await self._begin(
                opening, executor, Task(id=task_id, context_id=found.context_id), call
            )
        except BaseException:
            self._bounds.give_back(caller.user_name, task_id)
            raise
        self._metrics.delivery_received(caller.agent, opening.cause)
        return "new"

    def _admit(self, caller: Caller) -> Resumes:
        """Raises the `TurnFailure` that says why the delivery is not taken."""
        if not self.allows(caller.agent, caller.peer):
            raise Forbidden("the agent may not speak to this peer unasked")
        executor = self._executor_of(caller.agent)
        if executor is None:
            raise Forbidden(f"the agent {caller.agent} is no longer configured")
        if self._quota is not None:
            self._quota.admit(caller.user_name)
        return executor

    async def _begin(
        self, opening: Opening, executor: Resumes, task: Task, call: ServerCallContext
    ) -> None:
        found = await self._origin(opening, call)
        origin = found.id if found is not None else ""
        _describe(task, opening, origin)
        if found is not None and (hops := hops_of(found)):
            # Without the names: an agent may well get the late result of what it asked for.
            Chain(hops=hops).mark_task(task)
        await self._webhooks.follow_delivery(task.id, origin, call)
        record = TurnRecord(
            opening.push_id,
            replace(opening.place, seq=max(0, opening.place.seq)),
            sent=True,
            began=time.time(),
            seconds_left=self._turn_timeout,
            delivery=True,
        )
        log = self._tasks.begin(Task(id=task.id, context_id=task.context_id), call)
        try:
            await log.begin(task, record)
        except BaseException:
            self._tasks.abandon(log)
            raise
        context = RequestContext(call, None, task.id, task.context_id, log.task)
        executor.resume(context, record, log)

    async def _origin(self, opening: Opening, call: ServerCallContext) -> Task | None:
        """The task that the delivery comes from, if its peer still has it."""
        name = opening.origin.a2a_task_id
        if not name:
            return None
        try:
            return await self._tasks.get(name, call)
        except A2AError:
            return None


class AgentDeliveries:
    """Implements `transports.deliveries.Receiver`."""

    def __init__(self, deliveries: Deliveries, agent: str, peer: str | None = None) -> None:
        self._deliveries = deliveries
        self._agent = agent
        self._peer = peer

    @property
    def wanted(self) -> bool:
        return self._deliveries.allows(self._agent, self._peer)

    def of_peer(self, peer: str | None) -> AgentDeliveries:
        return AgentDeliveries(self._deliveries, self._agent, peer)

    async def receive(self, opening: Opening) -> Received:
        return await self._deliveries.receive(opening, self._agent, self._peer)


class Bounds:
    """Counts deliveries by owner."""

    def __init__(self, limits: DeliveryLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._open: dict[str, set[str]] = {}
        self._recent: dict[str, deque[float]] = {}
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def take(self, owner: str, task_id: str) -> None:
        """Raises `Busy`, or `RateLimited`."""
        limits, now = self._limits, self._clock()
        recent = self._recent.setdefault(owner, deque())
        while recent and recent[0] <= now - _HOUR:
            recent.popleft()
        if len(self._open.get(owner, ())) >= limits.of_peer:
            raise Busy(f"{limits.of_peer} deliveries to this peer have not ended", hint=_AGAIN)
        if self._total >= limits.total:
            raise Busy(f"{limits.total} deliveries have not ended", hint=_AGAIN)
        if limits.per_hour and len(recent) >= limits.per_hour:
            raise RateLimited(
                f"this peer has got {limits.per_hour} deliveries within an hour", hint=_AGAIN
            )
        recent.append(now)
        self.add(owner, task_id)

    def add(self, owner: str, task_id: str) -> None:
        tasks = self._open.setdefault(owner, set())
        self._total += task_id not in tasks
        tasks.add(task_id)

    def give_back(self, owner: str, task_id: str) -> None:
        """It could not be stored, and comes again."""
        self.remove(owner, task_id)
        self._recent[owner].pop()

    def remove(self, owner: str, task_id: str) -> None:
        tasks = self._open.get(owner, set())
        self._total -= task_id in tasks
        tasks.discard(task_id)
        if not tasks:
            self._open.pop(owner, None)


_AGAIN = "tell it in the next turn of the conversation, or try again later"


def _describe(task: Task, opening: Opening, origin: str) -> None:
    """Says in the task, and in its first message, where it comes from."""
    job = shorten(redact(one_line(opening.job)), _MAX_JOB)
    about: dict[str, Any] = {INITIATED_BY: "agent", "cause": opening.cause}
    about |= {"job": job} if job else {}
    task.metadata.update(about | ({"referenceTaskIds": [origin]} if origin else {}))
    text = _TEXTS[opening.cause] + (f": {job}" if job else "")
    message = Message(
        message_id=str(uuid.uuid5(_IDS, task.id)),
        role=Role.ROLE_AGENT,
        parts=[Part(text=text)],
        context_id=task.context_id,
        task_id=task.id,
        reference_task_ids=[origin] if origin else [],
    )
    message.metadata.update(about)
    task.status.CopyFrom(TaskStatus(state=TaskState.TASK_STATE_WORKING, message=message))
    task.status.timestamp.GetCurrentTime()
