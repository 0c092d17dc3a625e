"""A2A request in, turn events to A2A events out.

The SDK's contract, as measured: an executor that emits nothing leaves the caller waiting for ever,
one that raises leaks the exception's text to the peer, and a status before the Task is an error.
So a turn emits a Task first, exactly one terminal state last, and never raises.

A turn runs in a task of its own, because it outlives `execute` when Hermes asks something: the SDK
expects `execute` to return at INPUT_REQUIRED and calls it again with the answer, while the same
turn of Hermes goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from typing import Any

from a2a.server.agent_execution import AgentExecutor, RequestContext, RequestContextBuilder
from a2a.server.events import EventQueue
from a2a.types import Message, Task, TaskState
from a2a.utils.errors import UnsupportedOperationError

from molecule_hermes.errors import (
    BadRequest,
    Busy,
    Draining,
    Forbidden,
    InternalFailure,
    QuotaExceeded,
    TooLarge,
    TurnFailure,
    TurnTimeout,
)
from molecule_hermes.protocol import status as updates
from molecule_hermes.protocol.active_turn import ActiveTurn
from molecule_hermes.protocol.chain import Chain
from molecule_hermes.protocol.data_reply import DataReplies
from molecule_hermes.protocol.dialogue import Dialogue
from molecule_hermes.protocol.extensions import requested
from molecule_hermes.protocol.figures import figures_of, spent_by
from molecule_hermes.protocol.incoming import Attachments, without_bytes
from molecule_hermes.protocol.message_reply import MessageQueue
from molecule_hermes.protocol.policy import Approvals, Policy
from molecule_hermes.protocol.prompts import Prompts, handoff_notice
from molecule_hermes.protocol.recovery import Resumed
from molecule_hermes.protocol.reply import REASONING, artifact_text
from molecule_hermes.protocol.schema_process import SchemaProcesses
from molecule_hermes.protocol.states import INTERRUPTED, state_name
from molecule_hermes.protocol.steering import Steering, SteeringContextBuilder
from molecule_hermes.protocol.turn_record import TurnRecord
from molecule_hermes.protocol.turn_request import (
    caller_of,
    refuse_an_orphaned_answer,
    turn_of,
)
from molecule_hermes.protocol.turn_work import TurnWork
from molecule_hermes.telemetry.metrics import Metrics
from molecule_hermes.transports.base import Transport
from molecule_hermes.turns.model import Canceled, Completed, End, Failed, Turn
from molecule_hermes.turns.run import State
from molecule_hermes.turns.scheduler import Scheduler
from molecule_hermes.wire import Transcript

__all__ = ["HermesAgentProxyExecutor"]

logger = logging.getLogger(__name__)

_REJECTED = (BadRequest, Busy, Draining, Forbidden, QuotaExceeded, TooLarge)
"""Failures that mean REJECTED for a turn that Hermes never got; after that they are its own."""


_LEAST_SECONDS = 10.0
"""What a turn that is resumed gets at least: its end may be waiting in Hermes."""


class HermesAgentProxyExecutor(AgentExecutor):
    """Forwards each peer turn to Hermes through a transport that it does not know by name."""

    def __init__(
        self,
        transport: Transport,
        scheduler: Scheduler | None = None,
        *,
        attachments: Attachments | None = None,
        system_prompt: str = "",
        models: Collection[str] = (),
        turn_timeout: float = 600.0,
        cancel_timeout: float = 10.0,
        approvals: Approvals = "ask",
        policy_of: Callable[[str], Policy] | None = None,
        question_timeout: float = 300.0,
        asks: bool = True,
        replies_with_message: bool = False,
        metrics: Metrics | None = None,
        admit: Callable[[str], None] | None = None,
        complete: Callable[[Turn, Message], Turn] | None = None,
        schemas: SchemaProcesses | None = None,
    ) -> None:
        """`admit` raises a `TurnFailure` for a caller whose turns are refused at present. Without
        `asks`, Hermes's questions are refused at once. With `replies_with_message`, a turn emits
        one Message instead of a task; its questions must be refused then. `models` are those that
        a message may choose. `policy_of` replaces them, the system prompt and `approvals` by what
        is right for a peer. `complete` adds what a platform's messages say about their turns."""
        self._transport = transport
        self._scheduler = scheduler or Scheduler()
        for_all = Policy(system_prompt, models, approvals)
        self.policy_of = policy_of or (lambda peer: for_all)
        """Can be replaced; a turn that runs keeps the policy that it began with."""
        self._turn_timeout = turn_timeout
        self._cancel_timeout = cancel_timeout
        self._runs: dict[str, ActiveTurn] = {}
        self._dialogue = Dialogue(transport, question_timeout=question_timeout, asks=asks)
        schemas = schemas or SchemaProcesses()
        reader = attachments or Attachments(transport.features)
        self._work = TurnWork(
            transport,
            self._scheduler,
            self._dialogue,
            prompts=Prompts(reader, schemas, transport.features),
            data_replies=DataReplies(schemas),
            runs=self._runs,
        )
        self._steering = Steering(transport, self._dialogue.show_open)
        self._metrics = metrics or Metrics()
        self._replies_with_message = replies_with_message
        self._admit = admit or (lambda peer: None)
        self._complete = complete or (lambda turn, message: turn)
        self._ended: deque[str] = deque(maxlen=1000)
        """The last tasks that have ended."""

    @property
    def turns(self) -> int:
        """Turns that run, are queued, or wait for a peer's answer."""
        return len(self._runs)

    @property
    def questions(self) -> int:
        """Questions that wait for a peer's answer."""
        return sum(len(active.run.open) for active in self._runs.values())

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        active = self._runs.get(context.task_id or "")
        if active is None and context.current_task is not None and context.task_id in self._ended:
            # The turn ended while this message was on its way: its last state is in the queue,
            # and a second one would replace it.
            return
        if active is None:
            queue = MessageQueue(event_queue) if self._replies_with_message else event_queue
            active = await self._begin(context, queue)
        else:
            if not self._replies_with_message:
                active.queue.inner = event_queue
            await self._take(active, context)
        try:
            while not active.resting.is_set():  # a question may be settled before this wakes up
                await active.resting.wait()
        except asyncio.CancelledError:
            # The SDK closes the task, and with it the queue that the turn speaks through.
            await active.abandon()
            raise

    async def _take(self, active: ActiveTurn, context: RequestContext) -> None:
        """Takes a further message. It is an answer if its peer has seen a question."""
        task, message = context.current_task, context.message
        if message is None or message.message_id in active.steered:
            return
        await active.found.wait()
        if task is not None and task.status.state in INTERRUPTED:
            await self._dialogue.take_answer(active, context)
        else:
            await self._steering.take(active, message)

    @property
    def request_context_builder(self) -> RequestContextBuilder:
        """For the SDK's `DefaultRequestHandler`: with it, messages steer turns there, too."""
        return SteeringContextBuilder(self._steer)

    async def _steer(self, task_id: str, message: Message) -> str:
        active = self._runs.get(task_id)
        if active is None:
            return ""
        if active.run.question is None:
            if not self._steering.supported:
                raise UnsupportedOperationError(f"task {task_id} is still working")
            await self._steering.take(active, message)
        return active.turn.context_id

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Stops the turn; returns when its task is CANCELED or ended on its own.

        A task without a turn has just ended and its last state is on its way to the store, where
        a second one would replace it; the SDK itself cancels a task that gets none.
        """
        if active := self._runs.get(context.task_id or ""):
            await self._stop(active)

    def resume(
        self, context: RequestContext, record: TurnRecord, event_queue: EventQueue
    ) -> Resumed:
        """Goes on with the turn of a task that an earlier bridge has left. The context is that of
        the message that began it."""
        task = context.current_task or Task()
        policy = self.policy_of(caller_of(context).peer)
        turn = self._turn(context, policy)
        extensions = frozenset(record.extensions)
        active = ActiveTurn.create(
            replace(turn, message_id=record.message_id, extensions=extensions),
            event_queue,
            policy=policy,
            seconds=max(_LEAST_SECONDS, record.seconds_left),
            accepted=record.accepted,
            text=artifact_text(task),
            thought=artifact_text(task, REASONING),
        )
        active.restore(record)
        resumed = Resumed(task, record)
        self._start(active, self._work.resume(active, context, resumed))
        return resumed

    async def hand_over(
        self, context: RequestContext, handed: Transcript, begin: Callable[[], EventQueue]
    ) -> None:
        """Hands a conversation over to the peer of the context, which has no message. Returns when
        that task has ended. Raises a `TurnFailure` if it cannot begin."""
        self._admit(caller_of(context).user_name)
        policy = self.policy_of(caller_of(context).peer)
        turn = replace(self._turn(context, policy), text=handoff_notice(handed), handoff=handed)
        if any(other.turn.conversation == turn.conversation for other in self._runs.values()):
            message = "the agent is mid-turn in this conversation; try again when it has answered"
            raise Busy(message, hint="")
        active = ActiveTurn.create(turn, begin(), policy=policy, seconds=self._turn_timeout)
        self._register(active)
        await active.queue.enqueue_event(updates.handed_over(turn))
        self._start(active, self._work.hand_over(active))
        await active.ended.wait()

    async def drain(self, timeout: float, *, leave: bool = False) -> None:
        """Refuses new turns, gives running ones `timeout` seconds to end, and stops the rest.

        With `leave`, the rest goes on in Hermes, and another bridge resumes it.
        """
        queued = [a for a in self._runs.values() if a.run.state is State.QUEUED]
        for active in queued if leave else ():
            active.queue.leave()
        self._scheduler.close()
        await self._all_ended(timeout, leave=leave)
        left = list(self._runs.values())
        if leave:
            self._transport.leave_turns()
        # What became of a turn that is still being resumed is for the next bridge to find out.
        others = [active for active in left if leave or active.resuming]
        await asyncio.gather(*map(self._leave, others))
        left = [active for active in left if active not in others]
        for active in left:
            failure = active.interrupted("the agent was shut down during the turn")
            active.run.request_stop(Failed(failure))
        await asyncio.gather(*(self._stop(active) for active in left))

    async def idle(self) -> None:
        """Returns when no turn is left."""
        while self._runs:
            await next(iter(self._runs.values())).ended.wait()

    async def _all_ended(self, timeout: float, *, leave: bool) -> None:
        try:
            async with asyncio.timeout(timeout):
                for active in list(self._runs.values()):
                    await active.ended.wait()
        except TimeoutError:
            turns = "1 turn" if self.turns == 1 else f"{self.turns} turns"
            what = "leaving to Hermes" if leave else "stopping"
            logger.warning("%s %s that did not end within %g s", what, turns, timeout)

    async def _leave(self, active: ActiveTurn) -> None:
        active.queue.leave()
        await active.abandon()

    async def _stop(self, active: ActiveTurn) -> None:
        """Stops the turn. The peer's task ends in time even if Hermes does not stop."""
        active.run.request_stop(Canceled())
        try:
            async with asyncio.timeout(self._cancel_timeout):
                if active.slot is None:
                    with contextlib.suppress(RuntimeError):  # the deadline is not in effect yet
                        active.deadline.reschedule(0.0)
                else:
                    active.slot.withdraw()
                    await self._transport.cancel(active.turn)
                await active.ended.wait()
        except Exception as error:
            expected = isinstance(error, TimeoutError | TurnFailure)
            logger.warning("%s did not stop", _name(active), exc_info=not expected)
            await self._end(active, Canceled())
            await active.abandon()

    async def _begin(self, context: RequestContext, event_queue: EventQueue) -> ActiveTurn:
        wants = requested(context.requested_extensions, self._transport.features)
        policy = self.policy_of(caller_of(context).peer)
        turn = replace(self._turn(context, policy), extensions=wants)
        config = context.configuration
        active = ActiveTurn.create(
            turn,
            event_queue,
            policy=policy,
            seconds=self._turn_timeout,
            accepted=tuple(config.accepted_output_modes) if config is not None else (),
        )
        self._register(active)
        if context.current_task is None:
            kept = without_bytes(context.message) if context.message is not None else None
            await active.queue.enqueue_event(updates.submitted(turn, kept))
        self._start(active, self._run(active, context))
        return active

    def _turn(self, context: RequestContext, policy: Policy) -> Turn:
        turn = turn_of(context, policy)
        return self._complete(turn, context.message) if context.message is not None else turn

    def _register(self, active: ActiveTurn) -> None:
        self._runs[active.turn.task_id] = active
        active.queue.describe = lambda seq: active.record(self._transport.place(active.turn), seq)

    def _start(self, active: ActiveTurn, work: Coroutine[Any, Any, End]) -> None:
        self._register(active)
        conducting = self._conduct(active, self._bounded(active, work))
        active.task = asyncio.create_task(conducting, name=f"turn:{active.turn.message_id}")

    async def _conduct(self, active: ActiveTurn, work: Coroutine[Any, Any, End]) -> None:
        try:
            await self._end(active, await work)
        except Exception:
            logger.exception("the end of %s could not be stored", _name(active))
        finally:
            self._runs.pop(active.turn.task_id, None)
            self._ended.append(active.turn.task_id)
            active.ended.set()
            active.found.set()
            active.resting.set()
            await active.forget_questions()

    async def _run(self, active: ActiveTurn, context: RequestContext) -> End:
        refuse_an_orphaned_answer(context)
        active.policy.loops.refuse(Chain.of(context.message))
        self._admit(caller_of(context).user_name)
        return await self._work.run(active, context)

    async def _bounded(self, active: ActiveTurn, work: Coroutine[Any, Any, End]) -> End:
        """The turn's end, whatever happens to the work."""
        try:
            async with active.deadline, active.reply, active.reasoning:
                return await work
        except TimeoutError:
            if active.run.stop:
                return Canceled()
            return Failed(TurnTimeout(f"the turn took longer than {self._turn_timeout:g} s"))
        except TurnFailure as failure:
            return Failed(failure)
        except Exception:
            logger.exception("%s failed", _name(active))
            return Failed(InternalFailure())

    async def _end(self, active: ActiveTurn, last: End) -> None:
        """Emits the one terminal state."""
        if active.run.ended:
            return
        begun = active.sent or active.run.state is not State.QUEUED
        last = active.run.end(last)
        state, message = TaskState.TASK_STATE_CANCELED, None
        await active.reasoning.keep()
        match last:
            case Completed():
                if active.data is None:
                    await active.reply.finish(last.text)
                else:
                    await active.reply.finish_with(active.data)
                state = TaskState.TASK_STATE_COMPLETED
            case Failed(failure):
                await active.reply.keep()
                rejected = not begun and isinstance(failure, _REJECTED)
                state = TaskState.TASK_STATE_REJECTED if rejected else TaskState.TASK_STATE_FAILED
                message = updates.explain(active.updater, failure)
            case Canceled():
                await active.reply.keep()
        figures = figures_of(active, last)
        await active.updater.update_status(state, message, metadata=figures)
        self._metrics.turn_ended(
            active.turn.agent,
            state_name(state),
            last.failure.kind if isinstance(last, Failed) else "",
            figures["durationSeconds"],
            figures.get("firstTextSeconds"),
        )
        if usage := spent_by(active, last)[0]:
            self._metrics.spent(active.turn.agent, usage)


def _name(active: ActiveTurn) -> str:
    """For the log."""
    return f"turn {active.turn.message_id} of agent {active.turn.agent}"
