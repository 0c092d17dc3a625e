"""A2A request in, turn events to A2A events out.

The SDK's contract, as probed: an executor that emits nothing hangs the caller for ever, one that
raises leaks the exception's text to the peer, and a status before the Task is an error. So a turn
emits a Task first, exactly one terminal state last, and never raises.

A turn runs in a task of its own, because it outlives `execute` when Hermes asks something: the SDK
wants `execute` to return at INPUT_REQUIRED and calls it again with the answer, while the same turn
of Hermes goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import TaskState

from molecule_hermes.errors import (
    BadRequest,
    Busy,
    Draining,
    InternalFailure,
    Interrupted,
    QuotaExceeded,
    TooLarge,
    TurnFailure,
    TurnTimeout,
)
from molecule_hermes.protocol import status as updates
from molecule_hermes.protocol.incoming import Attachments, without_bytes
from molecule_hermes.protocol.questions import NotAnAnswerError, asked_in, read_answer, refusal
from molecule_hermes.protocol.reply import ReplyArtifact
from molecule_hermes.telemetry.metrics import Metrics
from molecule_hermes.transports.base import QuestionGoneError, Transport
from molecule_hermes.turns.model import (
    Canceled,
    Completed,
    Failed,
    FileProduced,
    Notice,
    Question,
    TextDelta,
    ToolProgress,
    Turn,
    TurnEvent,
    is_last,
)
from molecule_hermes.turns.scheduler import Scheduler, Slot

__all__ = ["HermesAgentProxyExecutor"]

logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Run:
    """A turn in progress, from its Task to its terminal state."""

    turn: Turn
    updater: TaskUpdater
    reply: ReplyArtifact
    deadline: asyncio.Timeout
    task: asyncio.Task[None] | None = None
    slot: Slot | None = None
    events: list[TurnEvent] = field(default_factory=list)
    """What the peer has not been shown yet; it waits while a question does."""
    showing: asyncio.Lock = field(default_factory=asyncio.Lock)
    question: Question | None = None
    expiry: asyncio.Task[None] | None = None
    time_left: float = 0.0
    canceled: bool = False
    cut: TurnFailure | None = None
    """Why the bridge itself stops the turn; the peer did not ask for that."""
    accepted: bool = False
    over: bool = False
    rests: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while a question waits, and when the turn has ended: `execute` may return."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    began: float = field(default_factory=time.monotonic)
    first_text: float | None = None

    def interrupted(self, message: str) -> Interrupted:
        return Interrupted(message) if self.accepted else Interrupted.before_it_began(message)

    def pause(self) -> None:
        """While a peer thinks, the turn's time stands still, and its place is others'.

        Raises `Busy` when too many turns wait for their peers.
        """
        if self.slot is not None:
            self.slot.pause()
        self.time_left = max(0.0, (self.deadline.when() or 0.0) - _now())
        self.deadline.reschedule(None)

    def resume(self) -> None:
        if self.slot is not None:
            self.slot.resume()
        self.deadline.reschedule(_now() + self.time_left)

    def settle(self, question: Question) -> bool:
        """Ends the wait for an answer; False if it has ended already."""
        if self.question is not question or self.over:
            return False
        self.question = None
        self.rests.clear()
        self.resume()
        if self.expiry is not None and self.expiry is not asyncio.current_task():
            self.expiry.cancel()
        return True


class HermesAgentProxyExecutor(AgentExecutor):
    """Forwards each peer turn to Hermes through a transport it does not know by name."""

    def __init__(
        self,
        transport: Transport,
        scheduler: Scheduler | None = None,
        *,
        attachments: Attachments | None = None,
        turn_timeout: float = 600.0,
        cancel_timeout: float = 10.0,
        approvals: Literal["ask", "deny"] = "ask",
        question_timeout: float = 300.0,
        metrics: Metrics | None = None,
        admit: Callable[[str], None] | None = None,
    ) -> None:
        self._transport = transport
        self._scheduler = scheduler or Scheduler()
        self._attachments = attachments or Attachments(transport.features)
        self._turn_timeout = turn_timeout
        self._cancel_timeout = cancel_timeout
        self._approvals = approvals
        self._question_timeout = question_timeout
        self._metrics = metrics or Metrics()
        self._admit = admit or (lambda peer: None)
        """Raises the `TurnFailure` for which a peer's turns are not taken now."""
        self._runs: dict[str, _Run] = {}
        self._asked_and_ended: deque[str] = deque(maxlen=1000)
        """Tasks of late that asked something and have ended."""

    @property
    def turns(self) -> int:
        """Turns that run, or wait for their turn or for a peer's answer."""
        return len(self._runs)

    @property
    def questions(self) -> int:
        """Questions that wait for a peer's answer."""
        return sum(run.question is not None for run in self._runs.values())

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        run = self._runs.get(context.task_id or "")
        if run is None and context.task_id in self._asked_and_ended:
            # The turn ended while this answer was on its way: its last state is in the queue,
            # and a second one would replace it.
            return
        if run is None:
            run = await self._begin(context, event_queue)
        else:
            run.updater.event_queue = event_queue
            await self._take_answer(run, context)
        try:
            while not run.rests.is_set():  # a question may be gone before this wakes up
                await run.rests.wait()
        except asyncio.CancelledError:
            # The SDK closes the task, and with it the queue that the turn speaks through.
            await _abandon(run)
            raise

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Stops the turn; returns when its task is CANCELED or ended on its own.

        Without a turn the task just ended and its last state is on its way to the store, where
        a second one would replace it; the SDK itself cancels a task that gets none.
        """
        if run := self._runs.get(context.task_id or ""):
            await self._stop(run)

    async def drain(self, timeout: float) -> None:
        """Takes no new turns, lets the running ones end within `timeout`, and cuts the rest."""
        self._scheduler.close()
        await self._all_ended(timeout)
        for run in self._runs.values():
            run.cut = run.interrupted("the agent was shut down during the turn")
        await asyncio.gather(*(self._stop(run) for run in list(self._runs.values())))

    async def _all_ended(self, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                for run in list(self._runs.values()):
                    await run.ended.wait()
        except TimeoutError:
            logger.warning("%d turns did not end in %g s", len(self._runs), timeout)

    async def _stop(self, run: _Run) -> None:
        """Stops the turn. Whatever keeps Hermes from stopping, the peer's task ends in time."""
        run.canceled = True
        try:
            async with asyncio.timeout(self._cancel_timeout):
                if run.slot is None:
                    with contextlib.suppress(RuntimeError):  # it has not begun at all
                        run.deadline.reschedule(0.0)
                else:
                    run.slot.withdraw()
                    await self._transport.cancel(run.turn)
                await run.ended.wait()
        except Exception as error:
            expected = isinstance(error, TimeoutError | TurnFailure)
            logger.warning("turn %s did not stop", run.turn.message_id, exc_info=not expected)
            await self._end(run, Canceled())
            await _abandon(run)

    # A turn, from its Task to its end.

    async def _begin(self, context: RequestContext, event_queue: EventQueue) -> _Run:
        turn = _turn(context)
        updater = TaskUpdater(event_queue, turn.task_id, turn.context_id)
        deadline = asyncio.timeout(self._turn_timeout)
        run = self._runs[turn.task_id] = _Run(turn, updater, ReplyArtifact(updater), deadline)
        if context.current_task is None:
            kept = without_bytes(context.message) if context.message is not None else None
            await event_queue.enqueue_event(updates.submitted(turn, kept))
        run.task = asyncio.create_task(self._conduct(run, context), name=f"turn:{turn.message_id}")
        return run

    async def _conduct(self, run: _Run, context: RequestContext) -> None:
        try:
            await self._end(run, await self._run(run, context))
        except Exception:
            logger.exception("the end of turn %s could not be told", run.turn.message_id)
        finally:
            self._runs.pop(run.turn.task_id, None)
            if run.expiry is not None:
                self._asked_and_ended.append(run.turn.task_id)
            run.ended.set()
            run.rests.set()
            if run.expiry is not None:
                run.expiry.cancel()
                await asyncio.wait({run.expiry})

    async def _run(self, run: _Run, context: RequestContext) -> TurnEvent:
        try:
            async with run.deadline, run.reply:
                _refuse_an_answer_to_nobody(context)
                self._admit(run.turn.peer)
                text, files = await self._attachments.read(context.message, run.turn.peer)
                run.turn = replace(run.turn, text=text, attachments=files)
                return Canceled() if run.canceled else await self._in_line(run)
        except TimeoutError:
            if run.canceled:
                return Canceled()
            return Failed(TurnTimeout(f"the turn took longer than {self._turn_timeout:g} s"))
        except TurnFailure as failure:
            return Failed(failure)
        except Exception:
            logger.exception("turn %s failed", run.turn.message_id)
            return Failed(InternalFailure())

    async def _in_line(self, run: _Run) -> TurnEvent:
        turn = run.turn
        async with self._scheduler.enter(turn.conversation, turn.peer, turn.size) as run.slot:
            if not run.slot.started:
                await updates.working(run.updater, "waiting for its turn", {"waiting": True})
            if not await run.slot.wait():
                return Canceled()
            run.accepted = True
            await updates.working(run.updater)
            if run.canceled:
                return Canceled()
            return await self._forward(run)

    async def _forward(self, run: _Run) -> TurnEvent:
        async with aclosing(self._transport.run(run.turn)) as events:
            async for event in events:
                if is_last(event):
                    if run.question is not None:
                        run.settle(run.question)
                    run.events = [e for e in run.events if not isinstance(e, Question)]
                    await self._show_events(run)
                    return event
                if isinstance(event, Notice) and event.withdraws:
                    await self._withdraw(run, event.withdraws)
                run.events.append(event)
                await self._show_events(run)
        raise Interrupted("the transport stopped without an end")

    async def _show_events(self, run: _Run) -> None:
        """Shows the peer what has come, in order, up to the next question."""
        async with run.showing:
            while run.events and run.question is None and not run.over:
                await self._show(run, run.events.pop(0))

    async def _show(self, run: _Run, event: TurnEvent) -> None:
        if isinstance(event, TextDelta):
            run.first_text = run.first_text or time.monotonic()
            await run.reply.add(event.text, replace=event.replace)
            return
        await run.reply.flush()
        match event:
            case ToolProgress():
                await updates.tool(run.updater, event)
            case Notice():
                await updates.notice(run.updater, event.text)
            case FileProduced():
                await updates.file(run.updater, event)
            case Question():
                await self._ask(run, event)

    async def _end(self, run: _Run, last: TurnEvent) -> None:
        """Emits the one terminal state."""
        if run.over:
            return
        run.over = True
        if run.cut is not None and isinstance(last, Canceled):
            last = Failed(run.cut)
        state, message = TaskState.TASK_STATE_CANCELED, None
        match last:
            case Completed():
                await run.reply.finish(last.text)
                state = TaskState.TASK_STATE_COMPLETED
            case Failed():
                await run.reply.keep()
                state = _failed_state(run, last.failure)
                message = updates.explain(run.updater, last.failure)
            case _:
                await run.reply.keep()
        figures = _figures(run, last)
        await run.updater.update_status(state, message, metadata=figures)
        self._metrics.turn_ended(
            TaskState.Name(state).removeprefix("TASK_STATE_").lower(),
            last.failure.kind if isinstance(last, Failed) else "",
            figures["durationSeconds"],
            figures.get("firstTextSeconds"),
        )

    # Questions.

    async def _ask(self, run: _Run, question: Question) -> None:
        if question.kind == "approval" and self._approvals == "deny":
            await self._refuse(run, question, "the operator lets no peer approve commands")
            return
        try:
            run.pause()
        except Busy as busy:
            await self._refuse(run, question, busy.message)
            return
        run.question = question
        run.expiry = asyncio.create_task(self._expire(run, question), name="question-expiry")
        await updates.asking(run.updater, question)
        run.rests.set()

    async def _expire(self, run: _Run, question: Question) -> None:
        await asyncio.sleep(self._question_timeout)
        async with run.showing:
            if run.settle(question):
                why = f"nobody answered within {self._question_timeout:g} s"
                await self._refuse(run, question, why)
        await self._show_events(run)

    async def _refuse(self, run: _Run, question: Question, why: str) -> None:
        """Answers in the peer's name, so that the turn goes on."""
        answer = refusal(question)
        try:
            await self._transport.answer(run.turn, question.question_id, answer)
        except (QuestionGoneError, TurnFailure) as error:
            logger.warning("question %s could not be refused (%s)", question.question_id, error)
        if run.over:
            return
        said = "denied" if question.kind == "approval" else "left to the agent"
        data = {"questionId": question.question_id, "answer": answer}
        await updates.working(run.updater, f"{said}: {why}", {"refused": data})

    async def _withdraw(self, run: _Run, question_id: str) -> None:
        """Hermes waits no longer for that answer."""
        async with run.showing:
            run.events = [e for e in run.events if not _asks(e, question_id)]
            if run.question is not None and _asks(run.question, question_id):
                run.settle(run.question)

    async def _take_answer(self, run: _Run, context: RequestContext) -> None:
        """The peer's next message on the task."""
        async with run.showing:
            if run.question is not None:
                await self._pass_on(run, run.question, context)
            elif not run.over:
                data = {"answer": "not taken"}
                await updates.working(run.updater, "no question waits for an answer", data)
        await self._show_events(run)

    async def _pass_on(self, run: _Run, question: Question, context: RequestContext) -> None:
        answer = remark = ""
        said = "Hermes no longer waited for an answer"
        try:
            seen = asked_in(context.current_task) if context.current_task else ""
            answer = read_answer(question, context.message, seen)
            await self._transport.answer(run.turn, question.question_id, answer)
            said = f"answered: {answer}"
        except NotAnAnswerError as error:
            remark = str(error)
        except TurnFailure as failure:
            remark = f"the answer did not reach Hermes: {failure.message}"
        except QuestionGoneError:
            answer = ""
        if run.over:  # while the answer was on its way; the last state has been told
            return
        if remark and run.question is question:
            await updates.asking(run.updater, question, remark)
        elif run.settle(question):
            data = {"questionId": question.question_id, "answer": answer}
            await updates.working(run.updater, said, {"answered": data})


async def _abandon(run: _Run) -> None:
    if run.task is not None:
        run.task.cancel()
        await asyncio.wait({run.task}, timeout=5.0)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _asks(event: TurnEvent, question_id: str) -> bool:
    return isinstance(event, Question) and event.question_id == question_id


def _failed_state(run: _Run, failure: TurnFailure) -> TaskState:
    """REJECTED is for what never began: nothing to do, no room, too large, shutting down. The
    provider's own quota is met by a turn that has begun."""
    if not run.accepted and isinstance(
        failure, BadRequest | Busy | Draining | QuotaExceeded | TooLarge
    ):
        return TaskState.TASK_STATE_REJECTED
    return TaskState.TASK_STATE_FAILED


def _turn(context: RequestContext) -> Turn:
    user = context.call_context.user
    return Turn(
        message_id=uuid.uuid4().hex,
        peer=user.user_name if user.is_authenticated else "",
        context_id=context.context_id or "",
        task_id=context.task_id or "",
        text="",
    )


def _refuse_an_answer_to_nobody(context: RequestContext) -> None:
    """A task that waits for an answer, but its turn is gone: the bridge was restarted."""
    if context.current_task is not None:
        raise Interrupted(
            "the turn that asked is gone",
            hint="it may have run in part: find out what it did, then send a new message, without "
            "taskId",
        )


def _figures(run: _Run, last: TurnEvent) -> dict[str, Any]:
    now = time.monotonic()
    figures: dict[str, Any] = {"durationSeconds": round(now - run.began, 3)}
    if run.first_text is not None:
        figures["firstTextSeconds"] = round(run.first_text - run.began, 3)
    if isinstance(last, Completed):
        figures["usage"] = updates.usage(last.usage)
    return figures
