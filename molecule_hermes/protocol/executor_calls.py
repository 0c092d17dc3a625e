"""The calls of the executor: each ends with a task that rests, whatever the executor does."""

from __future__ import annotations

import asyncio
import logging

from a2a.server.agent_execution import AgentExecutor, RequestContext

from molecule_hermes.errors import InternalFailure, Interrupted, TurnFailure
from molecule_hermes.protocol.incoming import without_bytes
from molecule_hermes.protocol.task_log import TaskLog

__all__ = ["ExecutorCalls"]

logger = logging.getLogger(__name__)


class ExecutorCalls:
    """Runs each call in a task of its own, so that a client that disconnects does not stop it."""

    def __init__(self, executor: AgentExecutor, *, close_timeout: float = 10.0) -> None:
        self._executor = executor
        self._close_timeout = close_timeout
        self._running: dict[asyncio.Task[None], str] = {}
        """The id of the A2A task of each call, the oldest call first."""

    async def aclose(self) -> None:
        """Waits for the calls, and cancels those that do not return in time. Their tasks end as
        FAILED."""
        await self._wait()
        for call in self._running:
            call.cancel()
        await self._wait()

    async def _wait(self) -> None:
        if self._running:
            await asyncio.wait(self._running, timeout=self._close_timeout)

    def start(self, log: TaskLog, request: RequestContext) -> asyncio.Task[None]:
        name = f"execute:{log.task.id}"
        call = asyncio.create_task(self._call(log, request), name=name)
        self._running[call] = log.task.id
        call.add_done_callback(self._running.pop)
        return call

    def find(self, task_id: str) -> asyncio.Task[None] | None:
        """Returns the last call for the task, if one is running."""
        calls = [call for call, known in self._running.items() if known == task_id]
        return calls[-1] if calls else None

    async def _call(self, log: TaskLog, request: RequestContext) -> None:
        """Raises nothing, and leaks nothing that the executor raises."""
        failure: TurnFailure = InternalFailure()
        try:
            if request.current_task is not None and request.message is not None:
                await log.add_message(without_bytes(request.message))
            await self._executor.execute(request, log)
        except asyncio.CancelledError:
            logger.warning("the executor did not return from task %s in time", log.task.id)
            failure = Interrupted("the agent was shut down during the turn")
        except Exception:
            logger.exception("the executor failed in task %s", log.task.id)
        if not log.rests and not log.left_open:
            await log.end(failure)
