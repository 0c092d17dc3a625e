"""Who calls, and which agent: together the scope in which tasks, contexts and webhooks are known.

The SDK and the stores keep everything apart by the user's name, so the scope is that name.
"""

from __future__ import annotations

from typing import Self

from a2a.auth.user import User

from molecule_hermes.wire import MAIN_AGENT

__all__ = ["Caller"]

_SEPARATOR = "/"
"""No name of a peer or agent contains it."""


class Caller(User):
    """A peer that calls an agent. Without authentication, the peer's name is empty."""

    def __init__(self, peer: str, agent: str = MAIN_AGENT) -> None:
        self.peer = peer
        self.agent = agent

    @classmethod
    def from_scope(cls, scope: str) -> Self:
        """The main agent's scope is the peer's name alone, as when there was no other agent."""
        agent, separator, peer = scope.partition(_SEPARATOR)
        return cls(peer, agent) if separator else cls(scope)

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def user_name(self) -> str:
        return self.peer if self.agent == MAIN_AGENT else f"{self.agent}{_SEPARATOR}{self.peer}"
