"""What the plugin's dispatcher needs from Hermes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from molecule_hermes.plugin.hermes_api import State
from molecule_hermes.plugin.turn import Turn
from molecule_hermes.wire import Context, HandOn, Lend

__all__ = ["Gateway"]


class Gateway(Protocol):
    """Implemented by the adapter."""

    def state(self) -> State: ...
    def require_profile(self, profile: str) -> None:
        """Raises `ProfileError` unless Hermes serves the profile, if there is one."""

    def warm(self) -> bool:
        """Whether Hermes has loaded what its first turn needs."""

    def busy(self, turn: Turn) -> bool:
        """Whether Hermes works on this or another turn of the chat."""

    def stoppable(self, turn: Turn) -> bool:
        """Whether an agent works on the turn's chat, so that a stop reaches it."""

    async def start(self, turn: Turn) -> None:
        """Passes the message to Hermes; returns before the turn ends."""

    async def stop(self, turn: Turn) -> None:
        """Stops what is running in the turn's chat."""

    async def open_session(self, lend: Lend) -> str:
        """The id of the chat's session. What is said in it from here on, the next turn knows."""

    async def close_session(self, chat_id: str) -> None:
        """The chat is no longer lent."""

    async def hand_on(self, request: HandOn) -> None:
        """Gives the chat's conversation to another platform, and the chat a new one. Raises
        `NotBoundError`."""

    async def conclude(self, turn: Turn) -> None:
        """The turn has ended, and the next of its chat has not begun."""

    def release(self, turn: Turn) -> None:
        """The turn has ended; its files may be removed."""

    def approvals(self, session_key: str) -> Sequence[tuple[str, str]]:
        """`Question.shown` of the approvals that Hermes waits for, oldest first."""

    def context(self, turn: Turn) -> Context | None:
        """How full the context of the turn's model is, where it is known."""

    def approve(self, session_key: str, choice: str) -> bool:
        """Answers the oldest approval of the session; False if none waits."""

    def clarify(self, question_id: str, answer: str) -> bool: ...

    def steer(self, turn: Turn, text: str) -> bool:
        """Gives the turn's agent the text to read; False if no agent can take it."""

    def take_unheard(self, turn: Turn) -> str:
        """Takes back what the turn's agent was steered with and has not read."""

    def shown(self, answer: str) -> str:
        """The answer without the directives by which the agent delivers files."""
