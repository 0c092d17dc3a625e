"""A turn in progress: its state, and what it takes to show it to the peer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Self

from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import Part

from molecule_hermes.errors import Busy, Interrupted
from molecule_hermes.protocol import status as updates
from molecule_hermes.protocol.output_modes import accepts
from molecule_hermes.protocol.policy import Policy
from molecule_hermes.protocol.reply import REASONING, ReplyArtifact
from molecule_hermes.protocol.structured_output import StructuredOutput
from molecule_hermes.protocol.turn_queue import TurnQueue
from molecule_hermes.protocol.turn_record import TurnRecord
from molecule_hermes.turns import model
from molecule_hermes.turns.model import (
    FileProduced,
    Notice,
    Place,
    Question,
    Reasoning,
    Spent,
    SubagentProgress,
    TextDelta,
    ToolProgress,
    Turn,
    TurnEvent,
)
from molecule_hermes.turns.run import State, TurnRun
from molecule_hermes.turns.scheduler import Slot

__all__ = ["ActiveTurn", "Expiry"]


@dataclass(frozen=True, slots=True)
class Expiry:
    """The end of the wait for an answer."""

    at: str
    """As RFC 3339 has it."""
    task: asyncio.Task[None]
    """Answers in the peer's place at that time."""


@dataclass(eq=False, slots=True)
class ActiveTurn:
    """A turn from its Task to its terminal state."""

    turn: Turn
    queue: TurnQueue
    updater: TaskUpdater
    reply: ReplyArtifact
    reasoning: ReplyArtifact
    deadline: asyncio.Timeout
    accepted: tuple[str, ...] = ()
    """The media types that the peer accepts; empty if it accepts everything."""
    policy: Policy = Policy()  # noqa: RUF009 - it cannot be changed
    output: StructuredOutput | None = None
    """The data that the peer wants as its answer. No text is shown then: half JSON is none."""
    data: Part | None = None
    """The answer, if it is data."""
    run: TurnRun = field(default_factory=TurnRun)
    delivery: bool = False
    """Whether the agent began the turn, and not a message of its peer."""
    resuming: bool = False
    """Whether an earlier bridge left the turn, and it is not known yet what became of it."""
    sent: bool = False
    """Whether Hermes has, or may have, the message."""
    task: asyncio.Task[None] | None = None
    slot: Slot | None = None
    showing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while something is shown to the peer, so that events keep their order."""
    expiries: dict[str, Expiry] = field(default_factory=dict)
    """When each question expires, by its id; a settled one stays until `forget_questions`."""
    resting: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while a question waits, and when the turn has ended: `execute` may return."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    found: asyncio.Event = field(default_factory=asyncio.Event)
    """Set unless an earlier bridge has sent the turn, and this one has not attached to it yet."""
    placed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the turn has its place in the queue, or will not get one."""
    steered: set[str] = field(default_factory=set)
    """The ids of the messages that were to steer the turn, taken or not."""
    additions: list[str] = field(default_factory=list)
    """What the peer added before Hermes got the turn."""
    began: float = field(default_factory=time.monotonic)
    first_text: float | None = None
    spent: Spent | None = None
    """What Hermes has reported of the turn's usage, for an end that comes without figures."""
    _time_left: float = 0.0

    @classmethod
    def create(
        cls,
        turn: Turn,
        event_queue: EventQueue,
        *,
        seconds: float,
        accepted: tuple[str, ...] = (),
        policy: Policy = Policy(),  # noqa: B008 - it cannot be changed
        text: str = "",
        thought: str = "",
    ) -> Self:
        """A turn with that many seconds left. `text` is what the peer has of the reply already,
        `thought` what it has of the reasoning."""
        queue = TurnQueue(event_queue)
        updater = TaskUpdater(queue, turn.task_id, turn.context_id)
        reply = ReplyArtifact(updater, text=text, on_flush=queue.advance)
        reasoning = ReplyArtifact(updater, REASONING, text=thought, on_flush=queue.advance)
        active = cls(
            turn, queue, updater, reply, reasoning, asyncio.timeout(seconds), accepted, policy
        )
        active.found.set()
        return active

    @property
    def seconds_left(self) -> float:
        """Until the turn's time limit; the clock stands still while a question waits."""
        if self.run.question is not None:
            return self._time_left
        return max(0.0, (self.deadline.when() or _now()) - _now())

    def restore(self, record: TurnRecord) -> None:
        """Goes on where an earlier bridge stopped."""
        self.resuming = True
        self.delivery = record.delivery
        self.queue.seq, self.sent = record.place.seq, record.sent
        if record.sent:
            self.found.clear()
        self.steered.update(record.steered)
        self.additions += record.additions
        self.began -= max(0.0, time.time() - record.began)
        if record.first_text is not None:
            self.first_text = self.began + record.first_text

    def record(self, place: Place, seq: int) -> TurnRecord:
        """What another bridge needs to go on with the turn."""
        age = time.monotonic() - self.began
        first = self.first_text - self.began if self.first_text is not None else None
        return TurnRecord(
            message_id=self.turn.message_id,
            place=replace(place, seq=seq),
            sent=self.sent,
            began=time.time() - age,
            seconds_left=self.seconds_left,
            first_text=first,
            accepted=self.accepted,
            extensions=tuple(self.turn.extensions),
            steered=tuple(self.steered),
            additions=tuple(self.additions),
            questions=tuple(self._open_questions()),
            asked=tuple(self.run.asked),
            conversation=self.turn.conversation if not self.delivery else "",
            delivery=self.delivery,
        )

    def _open_questions(self) -> Iterator[tuple[Question, str]]:
        for name, question in self.run.open.items():
            if expiry := self.expiries.get(name):
                yield question, expiry.at

    def interrupted(self, message: str) -> Interrupted:
        if self.run.state is State.QUEUED and not self.sent:
            return Interrupted.before_it_began(message)
        return Interrupted(message)

    def complete(self) -> None:
        """Adds to the turn's text what the peer said while the turn waited."""
        texts = [text for text in (self.turn.text, *self.additions) if text]
        self.turn = replace(self.turn, text="\n\n".join(texts))

    async def show(self, event: TurnEvent) -> None:
        """Shows the peer an event that is not a question."""
        match event:
            case Spent():
                self.spent = event
            case TextDelta():
                if self.output is None:
                    await self.reasoning.flush()
                    self.first_text = self.first_text or time.monotonic()
                    await self.reply.add(event.text, replace=event.replace, seq=event.seq)
            case Reasoning():
                if model.REASONING in self.turn.extensions:
                    await self.reply.flush()
                    await self.reasoning.add(event.text, seq=event.seq)
            case _:
                await self.reasoning.flush()
                await self.reply.flush()
                self.queue.advance(self.run.reached(event.seq))
                await self._update(event)

    async def _update(self, event: TurnEvent) -> None:
        match event:
            case ToolProgress():
                await updates.tool(self.updater, event)
            case SubagentProgress():
                await updates.subagent(self.updater, event)
            case Notice(text=""):
                pass  # it only settles a question
            case Notice():
                await updates.notice(self.updater, event)
            case FileProduced():
                if accepts(self.accepted, event.media_type):
                    await updates.file(self.updater, event)
                else:
                    await updates.withheld_file(self.updater, event)

    def pause(self, question: Question) -> None:
        """Stops the turn's clock and frees its slot until its questions are settled.

        Raises `Busy` when too many questions wait for their peers.
        """
        if self.run.full:
            raise Busy("too many questions of this turn wait for an answer")
        if not self.run.open:
            if self.slot is not None:
                self.slot.pause()
            self._time_left = max(0.0, (self.deadline.when() or 0.0) - _now())
            self.deadline.reschedule(None)
        self.run.ask(question)

    def settle(self, question: Question) -> bool:
        """Closes a question; False if it does not wait. The turn goes on when none waits."""
        if not self.run.settle(question):
            return False
        expiry = self.expiries.get(question.question_id)
        if expiry is not None and expiry.task is not asyncio.current_task():
            expiry.task.cancel()
        if not self.run.open:
            self.resting.clear()
            if self.slot is not None:
                self.slot.resume()
            self.deadline.reschedule(_now() + self._time_left)
        return True

    async def forget_questions(self) -> None:
        """Ends the clocks of the questions, and waits for what they still do."""
        tasks = {expiry.task for expiry in self.expiries.values()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def abandon(self) -> None:
        """Cancels the task that runs the turn."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait({self.task}, timeout=5.0)


def _now() -> float:
    return asyncio.get_running_loop().time()
