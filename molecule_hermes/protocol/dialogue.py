"""The exchange with the peer during a turn: events out, questions out, answers in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from a2a.server.agent_execution import RequestContext
from a2a.types import Message

from molecule_hermes.errors import Busy, TurnFailure
from molecule_hermes.protocol import status as updates
from molecule_hermes.protocol.active_turn import ActiveTurn, Expiry
from molecule_hermes.protocol.questions import (
    NotAnAnswerError,
    asked_in,
    meant,
    read_answer,
    refusal,
)
from molecule_hermes.transports.base import QuestionGoneError, Transport
from molecule_hermes.turns.model import Notice, Question, TurnEvent, is_last

__all__ = ["Dialogue"]

logger = logging.getLogger(__name__)


class Dialogue:
    """Shows turns to their peers and passes the peers' answers to Hermes."""

    def __init__(
        self,
        transport: Transport,
        *,
        question_timeout: float,
        asks: bool = True,
    ) -> None:
        """Without `asks`, no question reaches the peer, because nobody would answer it."""
        self.on_question: Callable[[ActiveTurn], Awaitable[None]] | None = None
        """Called when a turn has asked its peer."""
        self._transport = transport
        self._asks = asks
        self._question_timeout = question_timeout

    async def show(self, active: ActiveTurn, event: TurnEvent) -> None:
        """Shows the peer an event of Hermes, after those that wait behind a question."""
        active.run.receive(event)
        if isinstance(event, Notice) and event.withdraws:
            await self._withdraw(active, event)
        elif is_last(event):
            for question in list(active.run.open.values()):
                active.settle(question)
        await self._show_pending(active)

    async def take_answer(self, active: ActiveTurn, context: RequestContext) -> None:
        """Takes the peer's next message on the task as the answer to an open question."""
        async with active.showing:
            seen = asked_in(context.current_task) if context.current_task else ""
            question = meant(active.run.open, context.message, seen)
            if question is not None:
                await self._pass_on(active, question, context.message, seen)
            elif not active.run.ended:
                data = {"answer": "not taken"}
                await updates.working(active.updater, "no question is waiting for an answer", data)
        await self._show_pending(active)

    async def _show_pending(self, active: ActiveTurn) -> None:
        async with active.showing:
            while (event := active.run.next_event()) is not None:
                if isinstance(event, Question):
                    await self._ask(active, event)
                else:
                    await active.show(event)

    async def _ask(self, active: ActiveTurn, question: Question) -> None:
        await active.reply.flush()
        active.queue.advance(active.run.reached(question.seq))
        if active.run.asks_no_more:
            return
        if not self._asks:
            await self._refuse(active, question, "nobody can be asked here")
            return
        if question.kind == "approval" and active.policy.approvals == "deny":
            await self._refuse(
                active, question, "the operator does not allow peers to approve commands"
            )
            return
        try:
            active.pause(question)
        except Busy as busy:
            await self._refuse(active, question, busy.message)
            return
        self._await_answer(active, question, self._end_of_patience(), self._question_timeout)
        await self.show_open(active)
        if question.question_id in active.run.open:
            active.resting.set()
            if self.on_question is not None:
                await self.on_question(active)

    def _await_answer(
        self, active: ActiveTurn, question: Question, expires_at: str, seconds: float
    ) -> None:
        expiring = self._expire(active, question, seconds)
        task = asyncio.create_task(expiring, name="question-expiry")
        active.expiries[question.question_id] = Expiry(expires_at, task)

    async def restore(
        self, active: ActiveTurn, asked: Sequence[tuple[Question, str]], message: Message | None
    ) -> None:
        """Waits again for the answers to questions that an earlier bridge has asked, each until
        its time. `message` is an answer that it took, and that may not have reached Hermes."""
        async with active.showing:
            for question, expires_at in asked:
                try:
                    active.pause(question)
                except Busy as busy:
                    await self._refuse(active, question, busy.message)
                else:
                    seconds = _seconds_until(expires_at)
                    self._await_answer(active, question, expires_at, seconds)
            if active.run.open:
                active.resting.set()
            if message is not None and (answered := meant(active.run.open, message)):
                await self._pass_on(active, answered, message, "")
        await self._show_pending(active)

    async def show_open(
        self,
        active: ActiveTurn,
        said: str = "",
        data: dict[str, Any] | None = None,
        remarks: Mapping[str, str] | None = None,
    ) -> None:
        """Shows the open questions, or WORKING if none is left: `said` and `data` tell what became
        of another question, `remarks` why an answer was not taken."""
        if not active.run.open:
            await updates.working(active.updater, said, data)
            return
        asked = [
            updates.Asked(question, active.expiries[name].at, (remarks or {}).get(name, ""))
            for name, question in active.run.open.items()
        ]
        await updates.asking(active.updater, asked, said, data)

    def _end_of_patience(self) -> str:
        end = datetime.now(UTC) + timedelta(seconds=self._question_timeout)
        return end.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    async def _expire(self, active: ActiveTurn, question: Question, patience: float) -> None:
        await asyncio.sleep(patience)
        async with active.showing:
            if active.settle(question):
                why = f"no answer within {self._question_timeout:g} s"
                await self._refuse(active, question, why)
        await self._show_pending(active)

    async def _refuse(self, active: ActiveTurn, question: Question, why: str) -> None:
        """Answers in the peer's place, so that the turn goes on."""
        answer = refusal(question)
        try:
            await self._transport.answer(active.turn, question.question_id, answer)
        except (QuestionGoneError, TurnFailure) as error:
            logger.warning("question %s could not be refused (%s)", question.question_id, error)
        if active.run.ended:
            return
        denied = question.kind == "approval"
        outcome = "denied" if denied else "left to the agent"
        data = {
            "questionId": question.question_id,
            "answer": answer,
            "question": question.text,
            "denied": denied,
        }
        await self.show_open(active, f"{outcome}: {why}", {"refused": data})

    async def _withdraw(self, active: ActiveTurn, notice: Notice) -> None:
        """Hermes no longer waits for that answer. If there is one, an earlier bridge gave it."""
        async with active.showing:
            active.run.discard(notice.withdraws)
            question = active.run.open.get(notice.withdraws)
            if question is None or not active.settle(question):
                return
            if notice.answer:
                active.queue.advance(active.run.reached(notice.seq))
                data = {"questionId": question.question_id, "answer": notice.answer}
                await self.show_open(active, f"answered: {notice.answer}", {"answered": data})
            # The notice itself is shown when no question waits any more.
            elif active.run.open:
                await self.show_open(active)

    async def _pass_on(
        self, active: ActiveTurn, question: Question, message: Message | None, seen: str
    ) -> None:
        """`seen` is the question that the peer has seen."""
        answer = remark = ""
        outcome = "Hermes no longer waited for an answer"
        try:
            answer = read_answer(question, message, seen)
            await self._transport.answer(active.turn, question.question_id, answer)
            outcome = f"answered: {answer}"
        except NotAnAnswerError as error:
            remark = str(error)
        except TurnFailure as failure:
            remark = f"the answer did not reach Hermes: {failure.message}"
        except QuestionGoneError:
            answer = ""
        if active.run.ended:  # the terminal state was sent while the answer was on its way
            return
        name = question.question_id
        if remark and name in active.run.open:
            await self.show_open(active, remarks={name: remark})
        elif active.settle(question):
            data = {"questionId": name, "answer": answer}
            await self.show_open(active, outcome, {"answered": data})


def _seconds_until(moment: str) -> float:
    """0 for a moment that has passed, or that cannot be read."""
    try:
        return max(0.0, (datetime.fromisoformat(moment) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return 0.0
