"""Watches the agents of running turns for what Hermes's hooks do not tell."""

from __future__ import annotations

from functools import partial
from typing import Any

from molecule_hermes.plugin import hermes_api
from molecule_hermes.plugin.dispatcher import Dispatcher
from molecule_hermes.plugin.hooks import Listener
from molecule_hermes.plugin.turn import Turn
from molecule_hermes.wire import Context, Notice, Reasoning

__all__ = ["AgentWatch"]

_COMPRESSED = "session:compress"


class AgentWatch:
    """The reasoning, the context and the compressions of a turn's agent."""

    def __init__(self, runner: Any, dispatcher: Dispatcher, listener: Listener) -> None:
        self._runner = runner
        self._dispatcher = dispatcher
        self._listener = listener

    def attach(self) -> None:
        hermes_api.add_event_handler(self._runner, _COMPRESSED, self._compressed)

    def detach(self) -> None:
        if self._runner is not None:
            hermes_api.remove_event_handler(self._runner, _COMPRESSED, self._compressed)

    def begin(self, message_id: str) -> None:
        """Has the agent pass on its reasoning, if the peer wants it. Called in its thread."""
        turn = self._dispatcher.find(message_id)
        if turn is None:
            return
        wanted = turn.wants(Reasoning.type)
        callback = partial(self._reasoned, message_id) if wanted else None
        hermes_api.listen_to_reasoning(self._runner, turn.agent_key, callback)

    def context(self, turn: Turn) -> Context | None:
        found = hermes_api.context_of(self._runner, turn.agent_key)
        return Context(*found) if found is not None else None

    def _reasoned(self, message_id: str, text: object) -> None:
        # Hermes calls this without the message's context.
        if isinstance(text, str):
            self._listener.on_hook(
                message_id, lambda dispatcher, turn: dispatcher.reason(turn, text)
            )

    def _compressed(self, event: str, given: Any) -> None:
        sessions = {given.get("session_id"), given.get("old_session_id")} - {None, ""}
        for turn in self._dispatcher.running():
            if hermes_api.session_id_of(self._runner, turn.agent_key) in sessions:
                text = "Hermes has compressed the conversation to fit the model's context"
                self._dispatcher.notice(turn, text, Notice(kind="compressed"))
