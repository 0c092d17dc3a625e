"""A turn in progress: its state, and what it takes to show it to the peer."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from a2a.server.tasks import TaskUpdater

from molecule_hermes.errors import Busy, Interrupted
from molecule_hermes.protocol import status as updates
from molecule_hermes.protocol.output_modes import accepts
from molecule_hermes.protocol.reply import ReplyArtifact
from molecule_hermes.turns.model import (
    FileProduced,
    Notice,
    Question,
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
    updater: TaskUpdater
    reply: ReplyArtifact
    deadline: asyncio.Timeout
    accepted: tuple[str, ...] = ()
    """The media types that the peer accepts; empty if it accepts everything."""
    run: TurnRun = field(default_factory=TurnRun)
    task: asyncio.Task[None] | None = None
    slot: Slot | None = None
    showing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while something is shown to the peer, so that events keep their order."""
    expiries: dict[str, Expiry] = field(default_factory=dict)
    """When each question expires, by its id; a settled one stays until `forget_questions`."""
    resting: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while a question waits, and when the turn has ended: `execute` may return."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    began: float = field(default_factory=time.monotonic)
    first_text: float | None = None
    _time_left: float = 0.0

    def interrupted(self, message: str) -> Interrupted:
        if self.run.state is State.QUEUED:
            return Interrupted.before_it_began(message)
        return Interrupted(message)

    async def show(self, event: TurnEvent) -> None:
        """Shows the peer an event that is not a question."""
        if isinstance(event, TextDelta):
            self.first_text = self.first_text or time.monotonic()
            await self.reply.add(event.text, replace=event.replace)
            return
        await self.reply.flush()
        match event:
            case ToolProgress():
                await updates.tool(self.updater, event)
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
