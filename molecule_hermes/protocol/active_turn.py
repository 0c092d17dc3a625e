"""A turn in progress: its state, and what it takes to show it to the peer."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import Self

from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import Part

from molecule_hermes.errors import Interrupted
from molecule_hermes.protocol import status as updates
from molecule_hermes.protocol.output_modes import accepts
from molecule_hermes.protocol.reply import ReplyArtifact
from molecule_hermes.protocol.structured_output import StructuredOutput
from molecule_hermes.protocol.turn_queue import TurnQueue
from molecule_hermes.protocol.turn_record import TurnRecord
from molecule_hermes.turns.model import (
    FileProduced,
    Notice,
    Place,
    Question,
    TextDelta,
    ToolProgress,
    Turn,
    TurnEvent,
)
from molecule_hermes.turns.run import State, TurnRun
from molecule_hermes.turns.scheduler import Slot

__all__ = ["ActiveTurn"]


@dataclass(eq=False, slots=True)
class ActiveTurn:
    """A turn from its Task to its terminal state."""

    turn: Turn
    queue: TurnQueue
    updater: TaskUpdater
    reply: ReplyArtifact
    deadline: asyncio.Timeout
    accepted: tuple[str, ...] = ()
    """The media types that the peer accepts; empty if it accepts everything."""
    output: StructuredOutput | None = None
    """The data that the peer wants as its answer. No text is shown then: half JSON is none."""
    data: Part | None = None
    """The answer, if it is data."""
    run: TurnRun = field(default_factory=TurnRun)
    sent: bool = False
    """Whether Hermes has, or may have, the message."""
    task: asyncio.Task[None] | None = None
    slot: Slot | None = None
    showing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while something is shown to the peer, so that events keep their order."""
    expiry: asyncio.Task[None] | None = None
    """Ends the wait for an answer."""
    expires_at: str = ""
    """When the question expires, as RFC 3339 has it."""
    resting: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while a question waits, and when the turn has ended: `execute` may return."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    began: float = field(default_factory=time.monotonic)
    first_text: float | None = None
    _time_left: float = 0.0

    @classmethod
    def create(
        cls,
        turn: Turn,
        event_queue: EventQueue,
        *,
        seconds: float,
        accepted: tuple[str, ...] = (),
        text: str = "",
    ) -> Self:
        """A turn with that many seconds left. `text` is what the peer has of the reply already."""
        queue = TurnQueue(event_queue)
        updater = TaskUpdater(queue, turn.task_id, turn.context_id)
        reply = ReplyArtifact(updater, text=text, on_flush=queue.advance)
        return cls(turn, queue, updater, reply, asyncio.timeout(seconds), accepted)

    @property
    def seconds_left(self) -> float:
        """Until the turn's time limit; the clock stands still while a question waits."""
        if self.run.question is not None:
            return self._time_left
        return max(0.0, (self.deadline.when() or _now()) - _now())

    def restore(self, record: TurnRecord) -> None:
        """Goes on where an earlier bridge stopped."""
        self.queue.seq, self.sent = record.place.seq, record.sent
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
            question=self.run.question,
            expires_at=self.expires_at,
        )

    def interrupted(self, message: str) -> Interrupted:
        if self.run.state is State.QUEUED:
            return Interrupted.before_it_began(message)
        return Interrupted(message)

    async def show(self, event: TurnEvent) -> None:
        """Shows the peer an event that is not a question."""
        if isinstance(event, TextDelta):
            if self.output is not None:
                return
            self.first_text = self.first_text or time.monotonic()
            await self.reply.add(event.text, replace=event.replace, seq=event.seq)
            return
        await self.reply.flush()
        self.queue.advance(event.seq)
        match event:
            case ToolProgress():
                await updates.tool(self.updater, event)
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
        """Stops the turn's clock and frees its slot until the question is settled.

        Raises `Busy` when too many turns wait for their peers.
        """
        if self.slot is not None:
            self.slot.pause()
        self._time_left = max(0.0, (self.deadline.when() or 0.0) - _now())
        self.deadline.reschedule(None)
        self.run.ask(question)

    def settle(self, question: Question) -> bool:
        """Goes on after a question; False if it is not the one that waits."""
        if not self.run.settle(question):
            return False
        self.resting.clear()
        if self.slot is not None:
            self.slot.resume()
        self.deadline.reschedule(_now() + self._time_left)
        if self.expiry is not None and self.expiry is not asyncio.current_task():
            self.expiry.cancel()
        return True

    async def abandon(self) -> None:
        """Cancels the task that runs the turn."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait({self.task}, timeout=5.0)


def _now() -> float:
    return asyncio.get_running_loop().time()
