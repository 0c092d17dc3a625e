"""A worker as the fleet sees it, and its place there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from molecule_hermes.errors import StartError

__all__ = ["Member", "Seat", "State", "W", "WorkerKey"]

State = Literal["stopped", "starting", "ready", "stopping", "failed"]


class WorkerKey(NamedTuple):
    """Whose worker it is. Without a peer, all peers of the agent share it."""

    agent: str
    peer: str | None = None

    def __str__(self) -> str:
        return self.agent if self.peer is None else f"{self.agent}@{self.peer or 'anonymous'}"


class Member(Protocol):
    """A worker, as the fleet sees it."""

    @property
    def plan(self) -> object:
        """What it was made from. A worker whose plan has changed is replaced when it is idle."""

    @property
    def eager(self) -> bool:
        """Whether it is never stopped for want of work."""

    async def open(self) -> None:
        """Prepares what outlives the process. Called once, before the first start."""

    async def close(self) -> None: ...

    async def start(self) -> None:
        """Returns when turns can run. Raises `StartError`."""

    async def stop(self) -> None: ...

    async def leave(self) -> None:
        """Ends what belongs to this bridge; a worker that is kept goes on."""

    async def has_jobs(self) -> bool:
        """Whether something of the agent lives without a turn."""

    def describe(self) -> Mapping[str, Any]:
        """For operators."""


W = TypeVar("W", bound=Member)


@dataclass(eq=False)
class Seat(Generic[W]):
    """A worker's place in the fleet."""

    key: WorkerKey
    worker: W
    used: float
    state: State = "stopped"
    leases: int = 0
    opened: bool = False
    failure: StartError | None = None
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    starting: asyncio.Task[None] | None = None

    @property
    def runs(self) -> bool:
        return self.state in ("starting", "ready", "stopping")

    @property
    def is_idle(self) -> bool:
        return not self.leases and not self.changing.locked()

    @property
    def may_stop(self) -> bool:
        return self.state == "ready" and self.is_idle and not self.worker.eager
