"""The states of a turn, and which may follow which. No I/O and no clock.

    queued ──▶ sent ──▶ running ◀──▶ asking
       │         │          │           │
       └─────────┴──────────┴───────────┴──▶ completed, failed or canceled

The executor drives a `TurnRun`: it reports what it did and what Hermes did, and asks what the peer
may be shown next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum
from typing import Self

from molecule_hermes.turns.model import (
    Canceled,
    Completed,
    End,
    Failed,
    Question,
    TurnEvent,
    is_last,
)

__all__ = ["MAX_OPEN", "TRANSITIONS", "IllegalTransition", "State", "TurnRun"]

MAX_OPEN = 16
"""How many questions of one turn can wait at once."""


class State(Enum):
    QUEUED = "queued"
    """Hermes does not know of the turn."""
    SENT = "sent"
    """Hermes has, or may have, the message, and has not reacted to it."""
    RUNNING = "running"
    ASKING = "asking"
    """At least one question waits for the peer's answer."""
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"


_BAD_ENDS = frozenset({State.FAILED, State.CANCELED})

TRANSITIONS: Mapping[State, frozenset[State]] = {
    State.QUEUED: _BAD_ENDS | {State.SENT},
    State.SENT: _BAD_ENDS | {State.RUNNING},
    State.RUNNING: _BAD_ENDS | {State.ASKING, State.COMPLETED},
    # Hermes can ask more, and it can go on, or end the turn, without the answer.
    State.ASKING: _BAD_ENDS | {State.ASKING, State.RUNNING, State.COMPLETED},
    State.COMPLETED: frozenset(),
    State.FAILED: frozenset(),
    State.CANCELED: frozenset(),
}

_ENDS: Mapping[type[End], State] = {
    Completed: State.COMPLETED,
    Failed: State.FAILED,
    Canceled: State.CANCELED,
}


class IllegalTransition(RuntimeError):
    """A step that the turn's state does not allow. It is always a bug of the caller."""


class TurnRun:
    """One turn from its place in the queue to its end."""

    __slots__ = ("_last_received", "_pending", "asked", "open", "state", "stop")

    def __init__(self) -> None:
        self.state = State.QUEUED
        self.open: dict[str, Question] = {}
        """The questions that wait for an answer by id, oldest first; not empty exactly while the
        state is ASKING."""
        self.asked: dict[str, None] = {}
        """The ids of all questions that the peer was asked."""
        self.stop: Canceled | Failed | None = None
        """The end that was requested: Canceled by the peer, Failed by the bridge itself."""
        self._pending: deque[TurnEvent] = deque()
        self._last_received = False

    @property
    def ended(self) -> bool:
        return not TRANSITIONS[self.state]

    @property
    def question(self) -> Question | None:
        """The oldest question that waits for an answer."""
        return next(iter(self.open.values()), None)

    @property
    def full(self) -> bool:
        """Whether no further question can be asked before one is settled."""
        return len(self.open) >= MAX_OPEN

    @property
    def asks_no_more(self) -> bool:
        """Whether an answer could no longer reach Hermes: it has ended the turn."""
        return self._last_received or self.ended

    @classmethod
    def resumed(cls, asked: Iterable[str] = (), stop: Canceled | Failed | None = None) -> Self:
        """A turn that Hermes runs already, and that has asked these questions."""
        run = cls()
        run.state = State.RUNNING
        run.asked = dict.fromkeys(asked)
        run.stop = stop
        return run

    def send(self) -> None:
        """The message goes to Hermes now."""
        self._move(State.SENT)

    def receive(self, event: TurnEvent) -> None:
        """Takes an event of Hermes. Events after the end are dropped.

        The last event is not kept: the caller passes it to `end` when the pending ones are shown.
        """
        if self.ended:
            return
        if self.state not in (State.RUNNING, State.ASKING):
            self._move(State.RUNNING)
        if is_last(event):
            self._last_received = True
        # A bridge that goes on with a turn may get a question again that an earlier one asked.
        elif not (isinstance(event, Question) and event.question_id in self.asked):
            self._pending.append(event)

    def next_event(self) -> TurnEvent | None:
        """The next event to show; None when there is nothing more.

        While a question waits, further questions are shown and all other events wait: they would
        take the task out of INPUT_REQUIRED.
        """
        if self.state is State.ASKING:
            return self._next_question()
        while self._pending and self.state is State.RUNNING:
            event = self._pending.popleft()
            if not (isinstance(event, Question) and self._last_received):
                return event
        return None

    def _next_question(self) -> Question | None:
        if self._last_received:
            return None
        found = next((event for event in self._pending if isinstance(event, Question)), None)
        if found is not None:
            self._pending.remove(found)
        return found

    def reached(self, seq: int) -> int:
        """How far the turn has come when the event with this number is shown: a question is shown
        before events that wait behind another one."""
        return min([seq, *(event.seq - 1 for event in self._pending if event.seq >= 0)])

    def ask(self, question: Question) -> None:
        if self.full and question.question_id not in self.open:
            raise IllegalTransition(f"a turn cannot ask more than {MAX_OPEN} questions at once")
        self._move(State.ASKING)
        self.open[question.question_id] = question
        self.asked[question.question_id] = None

    def settle(self, question: Question) -> bool:
        """Closes a question, answered or not; False if it does not wait. The turn goes on when
        none waits."""
        if self.open.pop(question.question_id, None) is None:
            return False
        self._move(State.ASKING if self.open else State.RUNNING)
        return True

    def discard(self, question_id: str) -> None:
        """Forgets a question that was not asked yet."""
        self._pending = deque(
            event
            for event in self._pending
            if not (isinstance(event, Question) and event.question_id == question_id)
        )

    def go_on(self) -> None:
        """Takes the events of a further message to Hermes: the last one's answer was not usable."""
        self._last_received = False

    def request_stop(self, end: Canceled | Failed) -> None:
        """Notes that the turn is to stop. The first request counts."""
        self.stop = self.stop or end

    def end(self, last: End) -> End:
        """Ends the turn and returns its end: a turn that the bridge stopped has failed, although
        Hermes reports it as canceled."""
        if isinstance(last, Canceled) and self.stop is not None:
            last = replace(self.stop, usage=last.usage, context=last.context)
        self._move(_ENDS[type(last)])
        return last

    def _move(self, state: State) -> None:
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransition(f"a turn cannot go from {self.state.value} to {state.value}")
        self.state = state
        if state is not State.ASKING:
            self.open.clear()
