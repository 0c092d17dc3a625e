"""Deliveries that Hermes opens: each is received once, and acknowledged when it has its reply."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from molecule_hermes.errors import Busy, Draining, InternalFailure, StorageFailure, TurnFailure
from molecule_hermes.transports.deliveries import Opening, Receiver
from molecule_hermes.transports.plugin.replies import Replies, Reply
from molecule_hermes.turns.model import Place
from molecule_hermes.wire import Callback, Problem, Push

__all__ = ["Later", "Openings", "Refused"]

logger = logging.getLogger(__name__)

_MAX_OPENING = 1024
"""Deliveries that are being stored at once; each bridge takes far fewer."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The delivery is not taken, and Hermes is told why."""

    problem: Problem


@dataclass(frozen=True, slots=True)
class Later:
    """The delivery cannot be stored now: Hermes sends it again."""

    reason: str


Answer = Literal["new", "duplicate"] | Refused | Later


class Openings:
    """Never raises for what Hermes sends."""

    def __init__(self, replies: Replies, place: Callable[[], Place]) -> None:
        """`place` says where Hermes runs what it opens now."""
        self._replies = replies
        self._place = place
        self.receiver: Receiver | None = None
        self._opening: dict[str, asyncio.Task[Answer]] = {}
        self._opened: dict[str, Reply] = {}
        """Replies that no turn follows yet, by the delivery's id."""

    @property
    def wanted(self) -> bool:
        return self.receiver is not None and self.receiver.wanted

    def pop(self, push_id: str) -> Reply | None:
        """The reply of a delivery that is to be followed from now on."""
        return self._opened.pop(push_id, None)

    async def open(self, callback: Callback, push: Push) -> Answer:
        """A delivery that comes again while it is being stored waits for the same outcome."""
        if self._replies.knows(push.push_id):
            return "duplicate"
        opening = self._opening.get(push.push_id)
        again = opening is not None
        if opening is None:
            if len(self._opening) >= _MAX_OPENING:
                return Later("too many deliveries at once")
            name = f"opening:{push.push_id}"
            opening = asyncio.create_task(self._open(callback, push), name=name)
            self._opening[push.push_id] = opening
            opening.add_done_callback(lambda _: self._opening.pop(push.push_id, None))
        # The request may be given up; what is being stored is not.
        answer = await asyncio.shield(opening)
        return "duplicate" if again and answer == "new" else answer

    async def _open(self, callback: Callback, push: Push) -> Answer:
        receiver = self.receiver
        if receiver is None or not receiver.wanted:
            return Refused(Problem.of(_not_taken()))
        opening = Opening(
            push.push_id, callback.chat_id, push.cause, self._place(), push.origin, push.job
        )
        try:
            received = await receiver.receive(opening)
        except (Draining, StorageFailure) as failure:
            return Later(failure.message)
        except TurnFailure as failure:
            return Refused(Problem.of(failure))
        except Exception:
            logger.exception("delivery %s could not be received", push.push_id)
            return Refused(Problem.of(InternalFailure()))
        if received == "over":
            self._replies.over(push.push_id)
        if received != "new" or self._replies.get(push.push_id) is not None:
            return "duplicate"
        # Nothing has run since the receiver returned, so the turn has not asked for it yet.
        self._opened[push.push_id] = self._replies.register(
            push.push_id, -1 if callback.seq is None else callback.seq, callback.agent
        )
        return "new"

    async def aclose(self) -> None:
        opening = list(self._opening.values())
        for each in opening:
            each.cancel()
        await asyncio.gather(*opening, return_exceptions=True)


def _not_taken() -> Busy:
    return Busy("this bridge takes no deliveries", hint="answer in a turn of the peer instead")
