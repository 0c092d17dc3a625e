"""What Hermes calls to ask the peer. Imported inside Hermes only."""

from __future__ import annotations

import uuid
from typing import Any

from molecule_hermes.plugin.dispatcher import Dispatcher
from molecule_hermes.plugin.hermes_api import current_message_id
from molecule_hermes.plugin.send_results import not_sent, sent
from molecule_hermes.plugin.turn import Question
from molecule_hermes.text import redact

__all__ = ["Asking"]


class Asking:
    """The part of the adapter that takes questions from Hermes."""

    _dispatcher: Dispatcher

    async def send_exec_approval(  # noqa: PLR0917 - Hermes's signature
        self,
        chat_id: str,
        command: str,
        session_key: str,
        description: str = "dangerous command",
        metadata: Any = None,
        allow_permanent: bool = True,
        smart_denied: bool = False,
    ) -> Any:
        # "always" would apply to every peer and outlive the turn. Only the operator may allow that.
        choices = ("once", "deny") if smart_denied else ("once", "session", "deny")
        question = Question(
            uuid.uuid4().hex,
            session_key,
            choices,
            approval=True,
            command=redact(command),
            description=redact(description),
            shown=(command, description),
        )
        return self._ask(chat_id, question, redact(f"{description}\n\n{command}"))

    async def send_clarify(  # noqa: PLR0917 - Hermes's signature
        self,
        chat_id: str,
        question: str,
        choices: list[Any] | None,
        clarify_id: str,
        session_key: str,
        metadata: Any = None,
    ) -> Any:
        offered = tuple(str(choice) for choice in choices or ())
        return self._ask(chat_id, Question(clarify_id, session_key, offered, False), question)

    def _ask(self, chat_id: str, question: Question, text: str) -> Any:
        turn = self._dispatcher.owner(chat_id, current_message_id())
        if turn is None:
            return not_sent("no turn is running in this chat")
        self._dispatcher.questions.ask(turn, question, text)
        return sent()
