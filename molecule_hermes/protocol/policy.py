"""What an agent is told, and what a peer may do with it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal, Protocol

from molecule_hermes.protocol.chain import Chain, Loops
from molecule_hermes.turns.outbound import Outbound

__all__ = ["Approvals", "Policy", "Reach"]

Approvals = Literal["ask", "deny"]


class Reach(Protocol):
    """The other agents that an agent may ask for a peer."""

    def after(self, chain: Chain) -> Outbound | None:
        """How it asks them in a turn that this chain of agents led to; None if there are none."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A turn keeps the policy that it began with."""

    system_prompt: str = field(default="", repr=False)
    models: Collection[str] = ()
    """Those that a message may choose."""
    approvals: Approvals = "ask"
    toolsets: tuple[str, ...] | None = None
    """Those that the agent may use for the peer; None for all that it has."""
    profile: str = ""
    """The profile of Hermes that the agent is, where one Hermes has several."""
    loops: Loops = Loops()  # noqa: RUF009 - it cannot be changed
    reach: Reach | None = field(default=None, repr=False, compare=False)
