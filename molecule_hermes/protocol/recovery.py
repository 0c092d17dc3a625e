"""Tasks that an earlier bridge left without an end: their turns go on, or they end as FAILED."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from a2a.server.agent_execution import RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events import EventQueue
from a2a.types import Message, Role, SendMessageConfiguration, SendMessageRequest, Task, TaskState
from a2a.utils.errors import A2AError

from molecule_hermes.errors import Draining, Interrupted
from molecule_hermes.protocol.caller import Caller
from molecule_hermes.protocol.questions import meant
from molecule_hermes.protocol.references import referenced_tasks
from molecule_hermes.protocol.task_log import TaskLog
from molecule_hermes.protocol.task_registry import TaskRegistry
from molecule_hermes.protocol.turn_record import TurnRecord
from molecule_hermes.protocol.webhooks import PushSender
from molecule_hermes.storage.base import Unfinished
from molecule_hermes.storage.contents import is_delivery

__all__ = ["Recovery", "Resumed", "Resumes"]

logger = logging.getLogger(__name__)

_AT_ONCE = 64


class Resumed:
    """A turn of an earlier bridge."""

    def __init__(self, task: Task, record: TurnRecord) -> None:
        self.record = record
        asks = task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        self.asks = record.questions if asks else ()
        """The questions that wait for the peer's answers, and when each expires."""
        self._answer = None if task.status.HasField("message") else _last_of_peer(task)
        self._settled = asyncio.Event()

    @property
    def settled(self) -> bool:
        """Whether it is known if Hermes still has the turn."""
        return self._settled.is_set()

    def settle(self) -> None:
        self._settled.set()

    def answer(self, open_questions: frozenset[str]) -> Message | None:
        """The peer's answer, if the earlier bridge took one that did not reach Hermes."""
        asked = {question.question_id: question for question, _ in self.asks}
        question = meant(asked, self._answer)
        return self._answer if question and question.question_id in open_questions else None


class Resumes(Protocol):
    """What resumes turns; the executor."""

    def resume(
        self, context: RequestContext, record: TurnRecord, event_queue: EventQueue
    ) -> Resumed: ...


class Recovery:
    """Takes over the unfinished tasks of a store."""

    def __init__(
        self,
        tasks: TaskRegistry,
        executor_of: Callable[[str], Resumes | None],
        webhooks: PushSender,
    ) -> None:
        """`executor_of` returns the executor of an agent, or None if there is no such agent."""
        self._tasks = tasks
        self._executor_of = executor_of
        self._webhooks = webhooks
        self._resumed: list[Resumed] = []

    async def take_over(self, unfinished: Sequence[Unfinished]) -> None:
        """Returns when each task has a log, and its turn is being resumed or has ended.

        Turns that Hermes has come first: the queued ones of a conversation come after them.
        """
        await self._announce_ends()
        found = [(item, TurnRecord.parse(item.turn)) for item in unfinished]
        found.sort(key=lambda pair: pair[1] is None or not pair[1].sent)
        for start in range(0, len(found), _AT_ONCE):
            batch = found[start : start + _AT_ONCE]
            prepared = await asyncio.gather(*(self._take(item, record) for item, record in batch))
            # In this order: a queued turn that overtook the running one of its conversation would
            # hold the place for which that one waits.
            self._resumed += [
                executor.resume(context, record, log)
                for executor, context, record, log in filter(None, prepared)
            ]
        if unfinished:
            logger.warning(
                "the last bridge left %d tasks without an end; %d of them go on if Hermes has them",
                len(unfinished),
                len(self._resumed),
            )

    async def _announce_ends(self) -> None:
        for task in await self._webhooks.configs.untold():
            if await self._webhooks.configs.recall(task.id):
                await self._webhooks.notify(task, task)

    async def check(self) -> None:
        """Raises `Draining` until it is known of each turn whether it goes on."""
        if waiting := sum(not resumed.settled for resumed in self._resumed):
            turns = "1 turn is" if waiting == 1 else f"{waiting} turns are"
            raise Draining(f"{turns} being resumed")
        self._resumed.clear()

    async def _take(
        self, item: Unfinished, record: TurnRecord | None
    ) -> tuple[Resumes, RequestContext, TurnRecord, TaskLog] | None:
        """What resumes the turn, and with what; None if its task has ended instead."""
        caller = Caller.from_scope(item.owner)
        call = ServerCallContext(user=caller)
        log = self._tasks.adopt(item.task, call)
        followed = await self._webhooks.configs.recall(item.task.id)
        executor = self._executor_of(caller.agent)
        if executor is None:
            await log.end(Interrupted(f"the agent {caller.agent} is no longer configured"))
            return None
        if record is None:
            await log.end(Interrupted("the agent was restarted during the turn"))
            return None
        log.turn = record
        if followed:
            # What was on its way to a webhook is lost; the whole task makes up for it.
            await self._webhooks.notify(item.task, log.copy())
        context = await self._context(item.task, record, call)
        return executor, context, record, log

    async def _context(
        self, task: Task, record: TurnRecord, call: ServerCallContext
    ) -> RequestContext:
        """The request that began the task. None began what the agent began."""
        if is_delivery(task):
            return RequestContext(call, None, task.id, task.context_id, task)
        params = SendMessageRequest(
            message=task.history[0] if task.history else None,
            configuration=SendMessageConfiguration(accepted_output_modes=record.accepted),
        )
        related: list[Task] = []
        # A task that was named may have been deleted meanwhile.
        with contextlib.suppress(A2AError):
            related = await referenced_tasks(params.message, call, self._tasks.get)
        return RequestContext(call, params, task.id, task.context_id, task, related)


def _last_of_peer(task: Task) -> Message | None:
    own: Iterable[Message] = reversed(task.history[1:])
    return next((message for message in own if message.role == Role.ROLE_USER), None)
