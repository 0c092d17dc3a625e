"""The questions of Hermes to a peer, from the tool that asks to the answer that it gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from molecule_hermes.plugin.gateway import Gateway
from molecule_hermes.plugin.turn import Question, Turn
from molecule_hermes.wire import Answer, Approval, Body, Callback, Clarify, Notice

__all__ = ["NotAChoiceError", "NotFoundError", "Questions"]


class NotFoundError(LookupError):
    """The message or the question does not exist, or no longer does."""


class NotAChoiceError(ValueError):
    """The answer is not one of the choices of an approval."""


class Questions:
    """Asks and answers. `emit` sends a callback of a turn."""

    def __init__(self, gateway: Gateway, emit: Callable[[Turn, Callback], None]) -> None:
        self._gateway = gateway
        self._emit = emit

    def ask(self, turn: Turn, question: Question, text: str) -> None:
        turn.questions[question.question_id] = question
        body: Body = Clarify(question.question_id, question.choices)
        if question.approval:
            about = (question.command, question.description)
            body = Approval(question.question_id, question.choices, *about)
        self._emit(turn, turn.callback(body, text))

    def answer(self, turn: Turn, answer: Answer) -> None:
        """Raises `NotFoundError` if Hermes does not wait for it, or `NotAChoiceError`."""
        question = turn.questions.get(answer.question_id)
        if question is None or question.answer:
            raise NotFoundError("no such question is open")
        if not question.approval:
            del turn.questions[question.question_id]
            if not self._gateway.clarify(question.question_id, answer.answer):
                raise NotFoundError("the question is no longer open")
            self._answered(turn, question, answer.answer)
            return
        if answer.answer not in question.choices:
            raise NotAChoiceError(f"the answer must be one of {', '.join(question.choices)}")
        if question.shown not in self._gateway.approvals(question.session_key):
            del turn.questions[question.question_id]
            raise NotFoundError("the question is no longer open")
        question.answer = answer.answer
        if not self._settle(turn):
            raise NotFoundError("the question is no longer open")
        self._answered(turn, question, answer.answer)

    def _answered(self, turn: Turn, question: Question, answer: str) -> None:
        turn.answers[question.question_id] = answer
        self._emit(turn, turn.callback(Notice(withdraws=question.question_id, answer=answer)))

    def expired(self, turn: Turn) -> None:
        """Hermes gave up an approval after its own timeout."""
        approvals = list(_approvals(turn))
        waiting = Counter(self._gateway.approvals(approvals[0].session_key) if approvals else ())
        # Of two that look the same, Hermes gives up the older one first.
        for question in reversed(approvals):
            if waiting[question.shown] > 0:
                waiting[question.shown] -= 1
            else:
                self._withdraw(turn, question)
        self._settle(turn)

    def clarified(self, turn: Turn) -> None:
        """The tool that asks questions has ended, with or without an answer."""
        for question in [q for q in turn.questions.values() if not q.approval]:
            self._withdraw(turn, question)

    def _withdraw(self, turn: Turn, question: Question) -> None:
        del turn.questions[question.question_id]
        notice = Notice(withdraws=question.question_id)
        self._emit(turn, turn.callback(notice, "Hermes no longer waits for an answer"))

    def _settle(self, turn: Turn) -> bool:
        """Passes on the answers in Hermes's order; False if Hermes did not take one. It takes them
        oldest first and knows no ids (approval.py:2097), so an answer to a later approval waits
        for the earlier one's."""
        while answered := [question for question in _approvals(turn) if question.answer]:
            waiting = self._gateway.approvals(answered[0].session_key)
            oldest = next((q for q in answered if waiting and q.shown == waiting[0]), None)
            if oldest is None:
                return True
            del turn.questions[oldest.question_id]
            if not self._gateway.approve(oldest.session_key, oldest.answer):
                return False
        return True


def _approvals(turn: Turn) -> Iterator[Question]:
    return (question for question in turn.questions.values() if question.approval)
