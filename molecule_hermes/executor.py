"""A2A request in, turn events to A2A events out.

The SDK's contract, as probed: an executor that emits nothing hangs the caller for ever, one that
raises leaks the exception's text to the peer, and a status before the Task is an error. So
`execute` emits a Task first, exactly one terminal state last, and never raises.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from typing import Any

from a2a.helpers import new_data_part, new_raw_part, new_text_part, new_url_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import Message, Task, TaskState, TaskStatus

from molecule_hermes.artifacts import ReplyArtifact
from molecule_hermes.conversations import Conversations, Slot
from molecule_hermes.errors import (
    BadRequest,
    Busy,
    Draining,
    InternalFailure,
    Interrupted,
    TurnFailure,
    TurnTimeout,
)
from molecule_hermes.transports.base import Transport
from molecule_hermes.turns import (
    Cancelled,
    Completed,
    Failed,
    FileProduced,
    Notice,
    TextDelta,
    ToolProgress,
    Turn,
    TurnEvent,
)

__all__ = ["HermesAgentProxyExecutor"]

logger = logging.getLogger(__name__)

NOTHING_TO_DO = "empty prompt — nothing to do"


@dataclass(eq=False, slots=True)
class _Run:
    """A turn in progress, from its Task to its terminal state."""

    turn: Turn
    updater: TaskUpdater
    reply: ReplyArtifact
    slot: Slot | None = None
    cancelled: bool = False
    cut: TurnFailure | None = None
    """Why the bridge itself stops the turn; the peer did not ask for that."""
    accepted: bool = False
    over: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    began: float = field(default_factory=time.monotonic)
    first_text: float | None = None


class HermesAgentProxyExecutor(AgentExecutor):
    """Forwards each peer turn to Hermes through a transport it does not know by name."""

    def __init__(
        self,
        transport: Transport,
        conversations: Conversations | None = None,
        *,
        turn_timeout: float = 600.0,
        cancel_timeout: float = 10.0,
    ) -> None:
        self._transport = transport
        self._conversations = conversations or Conversations()
        self._turn_timeout = turn_timeout
        self._cancel_timeout = cancel_timeout
        self._runs: dict[str, _Run] = {}

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        turn = _turn(context)
        updater = TaskUpdater(event_queue, turn.task_id, turn.context_id)
        run = _Run(turn, updater, ReplyArtifact(updater))
        self._runs[turn.task_id] = run
        try:
            if context.current_task is None:
                await event_queue.enqueue_event(_submitted(turn, context.message))
            last = await self._run(run, context.message)
            await self._end(run, last)
        finally:
            del self._runs[turn.task_id]
            run.ended.set()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Stops the turn; returns when its task is CANCELED or ended on its own.

        Without a turn the task just ended and its last state is on its way to the store, where
        a second one would replace it; the SDK itself cancels a task that gets none.
        """
        run = self._runs.get(context.task_id or "")
        if run is not None and not await self._stop(run):
            # Whatever keeps Hermes from stopping, the peer's task ends now; the SDK cancels
            # `execute` as soon as this returns.
            await self._end(run, Cancelled())

    async def drain(self, timeout: float) -> None:
        """Takes no new turns, lets the running ones end within `timeout`, and cuts the rest."""
        self._conversations.close()
        await self._all_ended(timeout)
        for run in self._runs.values():
            run.cut = Interrupted("the agent was shut down during the turn")
        await asyncio.gather(*(self._stop(run) for run in list(self._runs.values())))

    async def _all_ended(self, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                for run in list(self._runs.values()):
                    await run.ended.wait()
        except TimeoutError:
            logger.warning("%d turns did not end in %g s", len(self._runs), timeout)

    async def _stop(self, run: _Run) -> bool:
        """Whether the turn ended within the time a cancel may take."""
        run.cancelled = True
        if run.slot is not None:
            run.slot.withdraw()
        try:
            async with asyncio.timeout(self._cancel_timeout):
                await self._transport.cancel(run.turn)
                await run.ended.wait()
        except Exception:
            logger.warning("turn %s did not stop", run.turn.message_id, exc_info=True)
            return False
        return True

    async def _run(self, run: _Run, message: Message | None) -> TurnEvent:
        try:
            _refuse_what_cannot_be_passed_on(message)
            async with asyncio.timeout(self._turn_timeout), run.reply:
                return await self._in_line(run)
        except TimeoutError:
            return Failed(TurnTimeout(f"the turn took longer than {self._turn_timeout:g} s"))
        except TurnFailure as failure:
            return Failed(failure)
        except Exception:
            logger.exception("turn %s failed", run.turn.message_id)
            return Failed(InternalFailure())

    async def _in_line(self, run: _Run) -> TurnEvent:
        async with self._conversations.enter(run.turn.conversation) as run.slot:
            if not run.slot.started:
                await _working(run, "waiting for its turn", {"waiting": True})
            if not await run.slot.wait():
                return Cancelled()
            run.accepted = True
            await _working(run)
            if run.cancelled:
                return Cancelled()
            return await self._forward(run)

    async def _forward(self, run: _Run) -> TurnEvent:
        async with aclosing(self._transport.run(run.turn)) as events:
            async for event in events:
                match event:
                    case TextDelta():
                        run.first_text = run.first_text or time.monotonic()
                        await run.reply.add(event.text, replace=event.replace)
                    case ToolProgress():
                        await run.reply.flush()
                        await _working(run, _describe(event), {"tool": _without_none(event)})
                    case Notice():
                        await run.reply.flush()
                        await _working(run, event.text, {"notice": event.text})
                    case FileProduced():
                        await run.reply.flush()
                        await _file(run, event)
                    case _:
                        return event
        raise Interrupted("the transport stopped without an end")

    async def _end(self, run: _Run, last: TurnEvent) -> None:
        """Emits the one terminal state."""
        if run.over:
            return
        run.over = True
        if run.cut is not None and isinstance(last, Cancelled):
            last = Failed(run.cut)
        match last:
            case Completed():
                await run.reply.finish(last.text)
                await run.updater.update_status(
                    TaskState.TASK_STATE_COMPLETED, metadata=_figures(run, last)
                )
            case Failed():
                await run.reply.keep()
                await run.updater.update_status(
                    _failed_state(run, last.failure), _explain(run, last.failure)
                )
            case _:
                await run.reply.keep()
                await run.updater.update_status(TaskState.TASK_STATE_CANCELED)


def _failed_state(run: _Run, failure: TurnFailure) -> TaskState:
    """REJECTED is for what never began: nothing to do, no room, shutting down."""
    if not run.accepted and isinstance(failure, BadRequest | Busy | Draining):
        return TaskState.TASK_STATE_REJECTED
    return TaskState.TASK_STATE_FAILED


def _turn(context: RequestContext) -> Turn:
    user = context.call_context.user
    return Turn(
        message_id=uuid.uuid4().hex,
        peer=user.user_name if user.is_authenticated else "",
        context_id=context.context_id or "",
        task_id=context.task_id or "",
        text=context.get_user_input().strip(),
    )


def _submitted(turn: Turn, message: Message | None) -> Task:
    status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
    status.timestamp.GetCurrentTime()
    history = [message] if message is not None else []
    return Task(id=turn.task_id, context_id=turn.context_id, status=status, history=history)


def _refuse_what_cannot_be_passed_on(message: Message | None) -> None:
    """Raises `BadRequest` for parts other than text, by name, and for no text at all."""
    parts = message.parts if message is not None else ()
    for number, part in enumerate(parts, 1):
        if part.WhichOneof("content") not in ("text", None):
            what = part.filename or part.media_type or part.WhichOneof("content")
            raise BadRequest(
                f"part {number} ({what}) is not text; this agent takes text only",
                hint="send the content as a text part",
            )
    if not any(part.text.strip() for part in parts):
        raise BadRequest(NOTHING_TO_DO, hint="send a text part")


async def _working(run: _Run, text: str = "", data: dict[str, Any] | None = None) -> None:
    message = None
    if text:
        parts = [new_text_part(text), new_data_part(data or {})]
        message = run.updater.new_agent_message(parts)
    await run.updater.update_status(TaskState.TASK_STATE_WORKING, message)


async def _file(run: _Run, file: FileProduced) -> None:
    """An artifact of its own for each file."""
    if file.data is not None:
        part = new_raw_part(file.data, media_type=file.media_type, filename=file.name)
    else:
        part = new_url_part(file.url, media_type=file.media_type, filename=file.name)
    parts = [part, new_text_part(file.caption)] if file.caption else [part]
    await run.updater.add_artifact(parts, name=file.name, last_chunk=True)


def _describe(progress: ToolProgress) -> str:
    preview = f": {progress.preview}" if progress.preview else ""
    if progress.phase == "start":
        return f"{progress.tool}{preview}"
    outcome = "failed" if progress.ok is False else "done"
    took = f" in {progress.duration:.1f} s" if progress.duration is not None else ""
    return f"{progress.tool} {outcome}{took}"


def _without_none(progress: ToolProgress) -> dict[str, Any]:
    return {key: value for key, value in asdict(progress).items() if value is not None}


def _figures(run: _Run, completed: Completed) -> dict[str, Any]:
    now = time.monotonic()
    figures: dict[str, Any] = {
        "usage": asdict(completed.usage),
        "duration_seconds": round(now - run.began, 3),
    }
    if run.first_text is not None:
        figures["first_text_seconds"] = round(run.first_text - run.began, 3)
    return figures


def _explain(run: _Run, failure: TurnFailure) -> Message:
    text = f"{failure.message} ({failure.hint})" if failure.hint else failure.message
    parts = [new_text_part(text), new_data_part(failure.as_dict())]
    return run.updater.new_agent_message(parts)
