"""Takes the bridge's requests to Hermes and Hermes's output to the bridge.

Each message gets exactly one final. The dispatcher knows Hermes only through `Gateway`, and runs
on the event loop only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid

from molecule_hermes.errors import Busy, Draining, InternalFailure, Interrupted, TurnFailure
from molecule_hermes.keyed_tasks import KeyedTasks
from molecule_hermes.plugin.callbacks import require_same_bridge
from molecule_hermes.plugin.deliveries import Deliveries
from molecule_hermes.plugin.gateway import Gateway
from molecule_hermes.plugin.hermes_api import State
from molecule_hermes.plugin.journal import Journal
from molecule_hermes.plugin.ledger import Ledger
from molecule_hermes.plugin.lending import Lending
from molecule_hermes.plugin.outbox import Outbox
from molecule_hermes.plugin.prompts import handed_on, refusals, steering, undelivered
from molecule_hermes.plugin.questions import NotFoundError, Questions
from molecule_hermes.plugin.turn import Turn
from molecule_hermes.plugin.verdict import final_of
from molecule_hermes.text import redact
from molecule_hermes.wire import (
    Answer,
    Attach,
    Body,
    Callback,
    Final,
    HandOn,
    Inbound,
    Lend,
    Notice,
    Reasoning,
    Spent,
    Steer,
    Steered,
    Usage,
)

__all__ = ["Dispatcher"]

log = logging.getLogger(__name__)

_POLL = 0.01
_LOST_AFTER = 3
"""Seconds without a session in Hermes after which a turn counts as lost."""
_STOP_TIMEOUT = 10.0
_REMARK = Notice()
_FALLBACK = ("🔄 Primary model failed", "🔄 Switched to fallback model")
"""How Hermes reports a fallback (agent/chat_completion_helpers.py:1871), after the fact."""
_STEER_TIMEOUT = 5.0
"""Seconds that a text waits for the agent that it is to steer."""
_MAX_STEERS = 64
"""Texts that one turn is steered with. Hermes keeps all of them in the conversation."""
_UNHEARD = (
    "the agent ended its answer before it read this message; send it as a new message, without "
    "taskId"
)


class Dispatcher:
    def __init__(
        self, gateway: Gateway, ledger: Ledger, outbox: Outbox, **max_deliveries: int
    ) -> None:
        self._gateway = gateway
        self._ledger = ledger
        self._outbox = outbox
        self.questions = Questions(gateway, self.emit)
        self._chats = KeyedTasks(ledger.begin, self._run)
        self._stops: set[asyncio.Task[None]] = set()
        self._lending = Lending()
        self.deliveries = Deliveries(
            ledger, outbox, wake=self._chats.wake, stop=self._cancel, **max_deliveries
        )
        self.instance = uuid.uuid4().hex
        """Identifies this run of Hermes. Messages that an earlier run accepted are lost."""

    # Called for the bridge's requests.

    @property
    def active(self) -> int:
        """The messages that wait or run, and the deliveries that a bridge is to get."""
        return len(self._ledger) + self.deliveries.waiting

    def state(self) -> State:
        return self._gateway.state()

    def accept(self, inbound: Inbound) -> bool:
        """Queues a message; False if it is known already. Raises `Busy` or `ProfileError`."""
        self._gateway.require_profile(inbound.profile)
        turn = self._ledger.accept(inbound)
        if turn is None:
            return False
        self.deliveries.origins.spoken(inbound)
        self._chats.wake(turn.chat_id)
        return True

    def require_profile(self, profile: str) -> None:
        """Raises `ProfileError` unless Hermes serves the profile, if there is one."""
        self._gateway.require_profile(profile)

    def warm(self) -> bool:
        """Whether Hermes has loaded what its first turn needs."""
        return self._gateway.warm()

    def knows(self, message_id: str) -> bool:
        return self._ledger.knows(message_id)

    def attach(self, attach: Attach) -> dict[str, object]:
        """Has a message's callbacks sent to another address. Returns the state of its turn."""
        journal = self._ledger.journals.find(attach.message_id)
        if journal is None:
            raise NotFoundError("no such message is known")
        require_same_bridge(journal.bridge, attach.bridge, journal.former)
        self._outbox.attach(journal, attach.callback_url, attach.after)
        return self._describe(journal)

    def turns(self) -> list[dict[str, object]]:
        """The messages that wait, run, or have ended and are still known."""
        return [self._describe(journal) for journal in self._ledger.journals]

    def _describe(self, journal: Journal) -> dict[str, object]:
        turn = self._ledger.find(journal.message_id)
        asked = turn.questions.values() if turn else ()
        questions = [question.question_id for question in asked if not question.answer]
        state = "ended" if turn is None else "running" if turn.started else "waiting"
        return {
            "message_id": journal.message_id,
            "chat_id": journal.chat_id,
            "state": "asking" if questions else state,
            "seq": journal.last_seq,
            "acknowledged": journal.acknowledged,
            "questions": questions,
        }

    def cancel(self, message_id: str, bridge: str = "") -> None:
        self._cancel(self._turn_of(message_id, bridge))

    def _turn_of(self, message_id: str, bridge: str) -> Turn:
        """The turn of a message, for the bridge that it belongs to."""
        turn = self._ledger.find(message_id)
        if turn is None:
            raise NotFoundError("no such message is waiting or running")
        require_same_bridge(turn.journal.bridge, bridge, turn.journal.former)
        return turn

    def _cancel(self, turn: Turn) -> None:
        if turn.canceled:
            return
        turn.canceled = True
        # Hermes does not have it yet; what is running in its chat is another turn.
        if not turn.started:
            self.finish(turn)
            return
        task = asyncio.get_running_loop().create_task(self._stop(turn))
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)

    def answer(self, answer: Answer) -> None:
        turn = self._turn_of(answer.message_id, answer.bridge)
        # A bridge that was restarted repeats an answer that may not have arrived.
        if turn.answers.get(answer.question_id) == answer.answer:
            return
        self.questions.answer(turn, answer)

    async def lend(self, lend: Lend) -> str:
        """Keeps the turns of a chat waiting. Returns the id of its session in Hermes; raises `Busy`
        if it is in use."""
        if not lend.seconds:
            if self._lending.has(lend.chat_id, lend.lease):
                await self._gateway.close_session(lend.chat_id)
                self._lending.give_back(lend.chat_id, lend.lease)
            return ""
        renewed = self._lending.is_lent(lend.chat_id)
        if not renewed and self._ledger.is_busy(lend.chat_id):
            raise Busy("the agent is mid-turn in this conversation")
        self._lending.lend(lend.chat_id, lend.lease, lend.seconds)
        return "" if renewed else await self._gateway.open_session(lend)

    async def hand_on(self, request: HandOn) -> None:
        """Gives a chat's conversation to another platform. Raises `Busy` or `NotBoundError`."""
        with self._lending.passing(request.chat_id, request.lease, request.platform):
            await self._gateway.hand_on(request)

    async def steer(self, steer: Steer) -> Steered:
        """Passes a text to the agent of a running message, once that agent has begun."""
        turn = self._turn_of(steer.message_id, steer.bridge)
        text = steering(steer.text)
        if not text:
            return Steered(False, "the message is empty")
        begun = await self._until_stoppable(turn, _STEER_TIMEOUT)
        if turn.steers >= _MAX_STEERS:
            return Steered(False, f"a turn takes at most {_MAX_STEERS} messages while it runs")
        if turn.canceled:
            return Steered(False, "the turn is being canceled")
        if turn.answer is not None or turn.ended.is_set():
            return Steered(False, _UNHEARD)
        if not begun or not self._gateway.steer(turn, text):
            return Steered(False, "the agent has not begun yet; send a new message in a moment")
        turn.steered(text)
        return Steered(True)

    # Called for what Hermes does.

    def find(self, message_id: str) -> Turn | None:
        return self._ledger.find(message_id)

    def running(self) -> list[Turn]:
        return [turn for turn in self._ledger.unfinished() if turn.started]

    def owner(self, chat_id: str, *message_ids: str | None) -> Turn | None:
        """The turn to which something sent to a chat belongs; None if it is over.

        A message id takes precedence over the chat: late output of a stopped turn must not
        appear in the next turn, nor what the agent of one chat sends to another chat.
        """
        for message_id in filter(None, message_ids):
            turn = self._ledger.find(message_id)
            if turn is not None and turn.chat_id == chat_id:
                return turn
            if self._ledger.knows(message_id):
                return None
        return self._ledger.running(chat_id)

    def emit(self, turn: Turn, callback: Callback | None) -> None:
        if callback is not None and not turn.canceled:
            self._post(turn, callback)

    def notice(self, turn: Turn, text: str, about: Notice = _REMARK) -> None:
        self.emit(turn, turn.callback(about, redact(text)))

    def remark(self, turn: Turn, text: str) -> None:
        """Passes on what Hermes itself says about the turn, unless the peer knows it."""
        known = turn.fell_back and text.startswith(_FALLBACK)
        if not known and not turn.is_kept(text):
            self.notice(turn, text)

    def offer(self, turn: Turn, body: Body, text: str = "") -> None:
        """Emits what only a bridge gets that wants it."""
        if turn.wants(body.type):
            self.emit(turn, turn.callback(body, text))

    def model_called(self, turn: Turn, usage: Usage | None) -> None:
        """The turn's agent has got an answer of its model."""
        if piece := turn.reasoning.end_call():
            self.offer(turn, Reasoning(), piece)
        turn.model_called(usage)
        turn.context = self._gateway.context(turn) or turn.context
        self._report_usage(turn)

    def subagent_called(self, turn: Turn, usage: Usage) -> None:
        turn.spending.add(usage, of_agent=False)
        self._report_usage(turn)

    def _report_usage(self, turn: Turn) -> None:
        if (usage := turn.usage) is not None:
            self.offer(turn, Spent(usage, turn.context))

    def reason(self, turn: Turn, text: str) -> None:
        """The model thinks."""
        if piece := turn.reasoning.add(text):
            self.offer(turn, Reasoning(), piece)

    def end_reasoning(self, turn: Turn) -> None:
        """The model does not go on thinking for now."""
        if piece := turn.reasoning.rest():
            self.offer(turn, Reasoning(), piece)

    def refuse(self, turn: Turn, reason: str) -> None:
        """Reports a file that is not delivered: now to the peer, with the next message to the
        agent."""
        turn.refused.append(reason)
        self.notice(turn, reason)

    def notes_before(self, turn: Turn) -> list[str]:
        """What the agent is told with this turn: which files of the turn before were refused, and
        which deliveries did not reach the peer."""
        previous = self._ledger.last(turn.chat_id)
        undelivered_since = undelivered(self._ledger.take_notes(turn.chat_id))
        return refusals(previous.refused if previous else ()) + undelivered_since

    def is_late(self, *message_ids: str | None) -> bool:
        """Whether output belongs to a message whose turn is over, so that nobody waits for it."""
        known = [each for each in message_ids if each and self._ledger.knows(each)]
        return bool(known) and not any(map(self._ledger.find, known))

    def agent_runs(self, turn: Turn, prompt: str) -> None:
        """The agent begins to work on this prompt."""
        if turn.runs_again(prompt):
            interim = self._gateway.shown(turn.interim[-1])
            self.emit(turn, turn.callback(Notice(interim=True), interim))

    def finish(self, turn: Turn, failure: TurnFailure | None = None) -> None:
        """Ends the turn and posts its final; does nothing if it has ended."""
        if failure is not None and turn.failure is None:
            turn.failure = failure
        self.end_reasoning(turn)
        self._report_unheard(turn)
        final = final_of(turn)
        if self._ledger.finish(turn):
            turn.failed = not (isinstance(final.body, Final) and final.body.status == "completed")
            self._post(turn, final)
            if turn.started:
                self._gateway.release(turn)

    def _report_unheard(self, turn: Turn) -> None:
        """What is left must not steer the chat's next turn."""
        if turn.steers and not turn.ended.is_set():
            self._gateway.take_unheard(turn)
            if turn.unheard and turn.answer is not None:
                self.emit(turn, turn.callback(Notice(unheard=True), _UNHEARD))

    async def close(self) -> None:
        """Ends every unfinished message."""
        for turn in self._ledger.unfinished():
            self.finish(turn, Interrupted("Hermes was stopped") if turn.started else Draining())
        await self._chats.close()
        for task in self._stops:
            task.cancel()
        await asyncio.gather(*self._stops, return_exceptions=True)

    async def _run(self, turn: Turn) -> None:
        failure: TurnFailure | None = None
        try:
            await self._until_free(turn)
            if self._gateway.state() == "draining":
                failure = Draining()
            elif not turn.canceled:
                turn.started = True
                await self._gateway.start(turn)
                if platform := self._lending.take_passed(turn.chat_id):
                    self.notice(turn, handed_on(platform))
                await self._until_ended(turn)
        except TurnFailure as error:
            failure = error
        except Exception:
            log.exception("the turn of %s failed", turn)
            failure = InternalFailure()
        finally:
            self.finish(turn, failure)
        await self._gateway.conclude(turn)

    async def _until_free(self, turn: Turn) -> None:
        # A second message into a busy session would interrupt it and be answered under the
        # first one's id (base.py:4762), so Hermes must have left the session.
        while self._is_taken(turn) and not turn.canceled:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(_POLL)

    def _is_taken(self, turn: Turn) -> bool:
        return self._lending.is_lent(turn.chat_id) or self._gateway.busy(turn)

    async def _until_ended(self, turn: Turn) -> None:
        """Returns when the turn has ended, or when Hermes has lost it."""
        idle = 0
        while not turn.ended.is_set() and idle < _LOST_AFTER:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(turn.ended.wait(), 1.0)
            idle = 0 if self._gateway.busy(turn) else idle + 1

    async def _stop(self, turn: Turn) -> None:
        # A /stop into a session that has not begun would run as a message of its own. One that
        # comes before the agent is made ends the session, but the agent still runs.
        await self._until_stoppable(turn, _STOP_TIMEOUT)
        try:
            if not turn.ended.is_set():
                async with asyncio.timeout(_STOP_TIMEOUT):
                    await self._gateway.stop(turn)
                    await turn.ended.wait()
        except TimeoutError:
            log.warning("Hermes did not stop %s in time", turn)
        except Exception:
            log.exception("stopping %s failed", turn)
        finally:
            self.finish(turn)

    async def _until_stoppable(self, turn: Turn, timeout: float) -> bool:
        """Waits for an agent that works on the turn; False if there is none in time."""
        for _ in range(int(timeout / _POLL)):
            if turn.started and self._gateway.stoppable(turn):
                return True
            if turn.ended.is_set():
                break
            await asyncio.sleep(_POLL)
        return False

    def _post(self, turn: Turn, callback: Callback) -> None:
        self._outbox.put(turn.journal, callback)
