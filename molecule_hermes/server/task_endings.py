"""What follows from the end of a task: message ids are released, lost turns are stopped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Self

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from a2a.types import TaskState

from molecule_hermes.protocol.caller import Caller
from molecule_hermes.protocol.task_log import TaskLog
from molecule_hermes.turns.idempotency import IdempotencyIndex

__all__ = ["TaskEndings"]

logger = logging.getLogger(__name__)


class TaskEndings:
    """`async with` it and pass `task_ended` to the registry. On exit it waits for the turns that it
    is stopping."""

    def __init__(
        self, executor_of: Callable[[str], AgentExecutor | None], idempotency: IdempotencyIndex
    ) -> None:
        """`executor_of` returns the executor of an agent, if there is such an agent."""
        self._executor_of = executor_of
        self._idempotency = idempotency
        self._stopping: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.gather(*self._stopping)

    def task_ended(self, log: TaskLog) -> None:
        """A message whose task was REJECTED or could not be stored may be sent again."""
        task = log.task
        if log.lost is not None:
            self._idempotency.release(task.id)
            stopping = asyncio.create_task(self._stop_turn(log), name=f"stop:{task.id}")
            self._stopping.add(stopping)
            stopping.add_done_callback(self._stopping.discard)
        elif task.status.state == TaskState.TASK_STATE_REJECTED:
            for message in task.history:
                self._idempotency.rejected(log.owner, task.context_id, message.message_id, task.id)

    async def _stop_turn(self, log: TaskLog) -> None:
        """Nobody can read the result of a turn whose task could not be stored."""
        try:
            executor = self._executor_of(Caller.from_scope(log.owner).agent)
            if executor is not None:
                context = RequestContext(ServerCallContext(), task_id=log.task.id)
                await executor.cancel(context, log)
        except Exception:
            logger.exception("the turn of task %s could not be stopped", log.task.id)
