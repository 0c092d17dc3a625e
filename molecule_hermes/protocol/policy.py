"""What an agent is told, and what a peer may do with it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Approvals", "Policy"]

Approvals = Literal["ask", "deny"]


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
