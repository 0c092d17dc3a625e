"""The way of a turn through the queue, to Hermes, and back to its peer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from a2a.server.agent_execution import RequestContext

from molecule_hermes.errors import Interrupted, TurnFailure
from molecule_hermes.protocol import status as updates
from molecule_hermes.protocol.active_turn import ActiveTurn
from molecule_hermes.protocol.data_reply import DataReplies
from molecule_hermes.protocol.dialogue import Dialogue
from molecule_hermes.protocol.incoming import is_whole
from molecule_hermes.protocol.prompts import Prompts
from molecule_hermes.protocol.recovery import Resumed
from molecule_hermes.transports.base import NotSentError, Transport
from molecule_hermes.turns.model import Canceled, End, Question, Turn, TurnEvent, is_last
from molecule_hermes.turns.run import State, TurnRun
from molecule_hermes.turns.scheduler import Scheduler, Slot

__all__ = ["TurnWork"]


class TurnWork:
    """`runs` are the turns that have not ended, by task."""

    def __init__(
        self,
        transport: Transport,
        scheduler: Scheduler,
        dialogue: Dialogue,
        *,
        prompts: Prompts,
        data_replies: DataReplies,
        runs: Mapping[str, ActiveTurn],
    ) -> None:
        self._transport = transport
        self._scheduler = scheduler
        self._dialogue = dialogue
        self._prompts = prompts
        self._data_replies = data_replies
        self._runs = runs
        self._last_resumed: dict[str, ActiveTurn] = {}
        """By conversation: the last turn of an earlier bridge that is being resumed."""
        dialogue.on_question = self._explain_wait

    async def run(
        self, active: ActiveTurn, context: RequestContext, before: ActiveTurn | None = None
    ) -> End:
        """Takes a new turn to its end. Raises a `TurnFailure` if it has another one.

        It comes after the turn `before` it, although its files may be read sooner."""
        models = active.policy.models
        active.turn, active.output = await self._prompts.complete(active.turn, context, models)
        if before is not None:
            await before.placed.wait()
        return await self._schedule(active)

    async def hand_over(self, active: ActiveTurn) -> End:
        """Takes a turn to its end that no message began. Raises a `TurnFailure`."""
        return await self._schedule(active)

    async def resume(self, active: ActiveTurn, context: RequestContext, resumed: Resumed) -> End:
        """Goes on with a turn of an earlier bridge, or runs it if Hermes never got it."""
        conversation = self._lane(active)
        before = self._last_resumed.get(conversation)
        self._last_resumed[conversation] = active
        try:
            return await self._resume(active, context, resumed, before)
        finally:
            active.placed.set()
            if self._last_resumed.get(conversation) is active:
                del self._last_resumed[conversation]

    async def _resume(
        self,
        active: ActiveTurn,
        context: RequestContext,
        resumed: Resumed,
        before: ActiveTurn | None,
    ) -> End:
        try:
            if active.sent:
                with contextlib.suppress(NotSentError):
                    return await self._attach(active, context, resumed)
            if context.message is None:
                if active.delivery:
                    raise Interrupted("what the agent began to say is lost")
                raise Interrupted("the agent was restarted before the conversation was handed over")
            if not is_whole(context.message):
                gone = "the agent was restarted before the turn began, and the files are gone"
                raise Interrupted.before_it_began(gone)
        finally:
            active.resuming = False
            resumed.settle()
            active.found.set()
        return await self.run(active, context, before)

    async def _attach(self, active: ActiveTurn, context: RequestContext, resumed: Resumed) -> End:
        turn, record = active.turn, resumed.record
        # First of all: the queued turns of the conversation come after it.
        slot = self._enter(active, runs=True)
        async with slot as active.slot:
            active.placed.set()
            if not await slot.wait():
                return Canceled()
            active.output = await self._prompts.output(context, turn.peer)
            # The time until Hermes is found does not count for the turn's limit.
            left = active.seconds_left
            active.deadline.reschedule(None)
            attached = await self._transport.attach(turn, record.place)
            active.deadline.reschedule(asyncio.get_running_loop().time() + left)
            active.run = TurnRun.resumed(record.asked, active.run.stop)
            active.resuming = False
            resumed.settle()
            async with aclosing(attached.events) as events:
                if active.run.stop is not None:  # there was nothing to cancel until now
                    await self._transport.cancel(turn)
                if resumed.asks:
                    unsure = resumed.answer(attached.questions)
                    await self._dialogue.restore(active, resumed.asks, unsure)
                active.found.set()
                last = await self._follow(active, events)
            return await self._data_replies.settle(active, last, self._relay)

    async def _schedule(self, active: ActiveTurn) -> End:
        turn = active.turn
        if isinstance(active.run.stop, Canceled):
            return Canceled()
        # At shutdown the scheduler is closed and refuses the turn, which the peer may send again.
        async with self._enter(active) as active.slot:
            active.placed.set()
            if not active.slot.started:
                await updates.waiting(active.updater, *self._asking_before(turn))
            if not await active.slot.wait():
                return Canceled()
            # Stored before the message is sent: another bridge must not send it again.
            active.sent = not active.run.stop
            await updates.working(active.updater)
            return Canceled() if active.run.stop else await self._forward(active)

    def _lane(self, active: ActiveTurn) -> str:
        """What the scheduler runs one by one: a conversation's turns. Hermes itself puts a delivery
        among them, in a place that only it knows."""
        return active.turn.message_id if active.delivery else active.turn.conversation

    def _enter(self, active: ActiveTurn, *, runs: bool = False) -> Slot:
        turn = active.turn
        # Hermes may keep deliveries waiting, and peers must not wait for these.
        return self._scheduler.enter(
            self._lane(active),
            turn.peer,
            turn.size,
            agent=turn.agent,
            runs=runs,
            counts=not active.delivery,
        )

    def _asking_before(self, turn: Turn) -> tuple[str, Question | None]:
        """The task of the same conversation that waits for an answer, and its question."""
        for other in self._runs.values():
            if other.turn.conversation == turn.conversation and other.run.question is not None:
                return other.turn.task_id, other.run.question
        return "", None

    async def _explain_wait(self, asking: ActiveTurn) -> None:
        """Tells the queued turns of the conversation that they wait for the answer."""
        for other in list(self._runs.values()):
            same = other.turn.conversation == asking.turn.conversation
            if same and other.slot is not None and other.run.state is State.QUEUED:
                # The other turn has just ended, or its status cannot be stored. Neither concerns
                # the turn that asks.
                with contextlib.suppress(RuntimeError, TurnFailure):
                    await updates.waiting(other.updater, *self._asking_before(other.turn))

    async def _forward(self, active: ActiveTurn) -> End:
        active.complete()
        active.run.send()
        return await self._data_replies.settle(active, await self._relay(active), self._relay)

    async def _relay(self, active: ActiveTurn) -> End:
        async with aclosing(self._transport.run(active.turn)) as events:
            return await self._follow(active, events)

    async def _follow(self, active: ActiveTurn, events: AsyncGenerator[TurnEvent, None]) -> End:
        async for event in events:
            await self._dialogue.show(active, event)
            if is_last(event):
                return event
        raise Interrupted("the transport ended without a result")
