"""The states of a turn, and which may follow which. No I/O and no clock.

    queued ──▶ sent ──▶ running ◀──▶ asking
       │         │          │           │
       └─────────┴──────────┴───────────┴──▶ completed, failed or canceled

The executor drives a `TurnRun`: it reports what it did and what Hermes did, and asks what the peer
may be shown next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum

from molecule_hermes.turns.model import (
    Canceled,
    Completed,
    End,
    Failed,
    Question,
    TurnEvent,
    is_last,
)

__all__ = ["TRANSITIONS", "IllegalTransition", "State", "TurnRun"]


class State(Enum):
    QUEUED = "queued"
    """Hermes does not know of the turn."""
    SENT = "sent"
    """Hermes has, or may have, the message, and has not reacted to it."""
    RUNNING = "running"
    ASKING = "asking"
    """A question waits for the peer's answer."""
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"


_BAD_ENDS = frozenset({State.FAILED, State.CANCELED})

TRANSITIONS: Mapping[State, frozenset[State]] = {
    State.QUEUED: _BAD_ENDS | {State.SENT},
    State.SENT: _BAD_ENDS | {State.RUNNING},
    State.RUNNING: _BAD_ENDS | {State.ASKING, State.COMPLETED},
    # Hermes can go on, or end the turn, without the answer.
    State.ASKING: _BAD_ENDS | {State.RUNNING, State.COMPLETED},
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

    __slots__ = ("_last_received", "_pending", "asked", "question", "state", "stop")

    def __init__(self) -> None:
        self.state = State.QUEUED
        self.question: Question | None = None
        """The question that waits for an answer; set exactly while the state is ASKING."""
        self.asked = False
        """Whether the peer was ever asked something."""
        self.stop: Canceled | Failed | None = None
        """The end that was requested: Canceled by the peer, Failed by the bridge itself."""
        self._pending: deque[TurnEvent] = deque()
        self._last_received = False

    @property
    def ended(self) -> bool:
        return not TRANSITIONS[self.state]

    @property
    def asks_no_more(self) -> bool:
        """Whether an answer could no longer reach Hermes: it has ended the turn."""
        return self._last_received or self.ended

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
        else:
            self._pending.append(event)

    def next_event(self) -> TurnEvent | None:
        """The next event to show; None while a question waits, and when there is nothing more."""
        while self._pending and self.state is State.RUNNING:
            event = self._pending.popleft()
            if not (isinstance(event, Question) and self._last_received):
                return event
        return None

    def ask(self, question: Question) -> None:
        self._move(State.ASKING)
        self.question = question
        self.asked = True

    def settle(self, question: Question) -> bool:
        """Goes on after a question, answered or not; False if it is not the one that waits."""
        if self.question is not question:
            return False
        self._move(State.RUNNING)
        return True

    def discard(self, question_id: str) -> None:
        """Forgets a question that was not asked yet."""
        self._pending = deque(
            event
            for event in self._pending
            if not (isinstance(event, Question) and event.question_id == question_id)
        )

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
            self.question = None
