"""What the agent says without a message of its peer: the end of a job, or a cron job.

A delivery is a turn like any other, under an id of its own, or a text that is complete. Its first
callback is a push. It goes to the bridge that takes deliveries; while none does, and until one has
acknowledged the push, it waits. Runs on the event loop only.
"""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from molecule_hermes.errors import Busy
from molecule_hermes.plugin.journal import Journal
from molecule_hermes.plugin.ledger import Ledger
from molecule_hermes.plugin.origins import Job, Origins, job_named_in
from molecule_hermes.plugin.outbox import Outbox
from molecule_hermes.plugin.receiver import Receiver
from molecule_hermes.plugin.tool_calls import brief
from molecule_hermes.plugin.turn import Turn
from molecule_hermes.plugin.verdict import final_of
from molecule_hermes.wire import Cause, Check, Problem, Push

__all__ = ["Deliveries", "NotDeliveredError"]

log = logging.getLogger(__name__)

_DECLINED = "no bridge takes what the agent says after its turn"
_NO_ROOM = "no bridge has got it, and there is no room to keep it"
_TOO_MANY = "too many deliveries wait already"


class NotDeliveredError(Exception):
    """The delivery was dropped. The agent is told with the next message of the chat."""


class Deliveries:
    """Opens deliveries, and has those that wait sent to the bridge that takes them.

    `wake` runs the turns of a chat, `stop` ends the turn of a delivery.
    """

    def __init__(
        self,
        ledger: Ledger,
        outbox: Outbox,
        *,
        wake: Callable[[str], None],
        stop: Callable[[Turn], None],
        max_of_chat: int = 16,
        max_in_all: int = 256,
    ) -> None:
        self._ledger = ledger
        self._outbox = outbox
        self._wake = wake
        self._stop = stop
        self._max_of_chat = max_of_chat
        self._max_in_all = max_in_all
        self.origins = Origins()
        self.receiver = Receiver()
        outbox.on_refused = self._refused
        outbox.on_unknown = self._readdress
        ledger.journals.on_lost = self._lost

    @property
    def waiting(self) -> int:
        """The deliveries whose turn is over and that a bridge is to get."""
        if self.receiver.declined:
            return 0
        unfinished = filter(self._is_unfinished, self._ledger.journals)
        return sum(self._ledger.find(journal.message_id) is None for journal in unfinished)

    def check(self, check: Check) -> bool:
        """Whether the bridge that asks takes deliveries from now on. Sends it those that wait."""
        takes = self.receiver.hear(check)
        if takes:
            for journal in list(self._ledger.journals):
                self._readdress(journal)
        return takes

    def run(self, chat_id: str, event: Any) -> None:
        """Has the agent work on an event of Hermes, as a delivery after what waits in the chat.

        Raises `NotDeliveredError` if it was dropped.
        """
        named = job_named_in(event.text)
        known = self.origins.of(chat_id, named, str(event.message_id or ""))
        label = (known.label if known else "") or _described(event.text)
        origin = known or Job(self.origins.settings(chat_id))
        turn = self._open(chat_id, "background", Job(origin.inbound, label), event)
        self._wake(turn.chat_id)

    def open(self, chat_id: str, cause: Cause, *, job: str = "", job_id: str = "") -> Turn:
        """Opens a delivery of which no agent works: what is emitted for this turn, such as files,
        belongs to it until `close`. Raises `NotDeliveredError` if it was dropped."""
        known = self.origins.of(chat_id, job_id) or Job(self.origins.settings(chat_id))
        turn = self._open(chat_id, cause, Job(known.inbound, job or known.label))
        turn.began = math.inf  # files that an agent has written belong to a turn of its own
        return turn

    def close(self, turn: Turn, text: str) -> None:
        turn.answered(text)
        self._outbox.put(turn.journal, final_of(turn))
        for reason in turn.refused:
            self._ledger.note(turn.chat_id, reason)

    def _open(self, chat_id: str, cause: Cause, job: Job, event: Any = None) -> Turn:
        """The push is its first callback, so that it comes before all that the turn emits."""
        self._require_room(chat_id, job.label)
        inbound = replace(
            job.inbound,
            chat_id=chat_id,
            message_id=f"push-{uuid.uuid4().hex}",
            callback_url=self.receiver.url,
            bridge=self.receiver.bridge,
            content=event.text if event is not None else "",
        )
        if event is None:
            turn = Turn(inbound, self._ledger.begin_journal(inbound, delivery=True))
        else:
            turn = self._queued(inbound, job.label)
            turn.event = event
        turn.journal.label = _one_line(job.label)
        push = Push(inbound.message_id, cause, inbound.metadata, turn.journal.label)
        self._outbox.put(turn.journal, turn.callback(push))
        log.info("%s begins to wait (%s)", turn, cause)
        return turn

    def _queued(self, inbound: Any, label: str) -> Turn:
        try:
            turn = self._ledger.accept(inbound, delivery=True)
        except Busy as error:
            self._tell(inbound.chat_id, label, error.message)
            raise NotDeliveredError(error.message) from error
        assert turn is not None  # noqa: S101 - its id is new
        return turn

    def _require_room(self, chat_id: str, label: str) -> None:
        reason = _DECLINED if self.receiver.declined else self._excess(chat_id)
        if reason:
            self._tell(chat_id, label, reason)
            raise NotDeliveredError(reason)

    def _excess(self, chat_id: str) -> str:
        unfinished = list(filter(self._is_unfinished, self._ledger.journals))
        of_chat = sum(journal.chat_id == chat_id for journal in unfinished)
        full = len(unfinished) >= self._max_in_all or of_chat >= self._max_of_chat
        return _TOO_MANY if full else ""

    def _tell(self, chat_id: str, label: str, reason: str) -> None:
        log.warning("dropped a delivery: %s", _one_line(reason))
        what = f"the result of '{_one_line(label)}'" if label else "a late result"
        self._ledger.note(chat_id, f"{what}: {_one_line(reason)}")

    def _readdress(self, journal: Journal) -> None:
        """Sends a delivery that no bridge has acknowledged to the bridge that takes them now."""
        to = (self.receiver.url, self.receiver.bridge)
        if not journal.delivery or journal.opened or not self.receiver.takes:
            return
        if (journal.url, journal.bridge) != to:
            journal.belong_to(self.receiver.bridge)
            self._outbox.attach(journal, self.receiver.url, -1)

    def _refused(self, journal: Journal, problem: Problem) -> None:
        """The bridge does not take the delivery: its turn is stopped, and the agent is told."""
        self._tell(journal.chat_id, journal.label, problem.message)
        if turn := self._ledger.find(journal.message_id):
            self._stop(turn)

    def _is_unfinished(self, journal: Journal) -> bool:
        """Whether it is a delivery that a bridge is to get, or whose turn runs."""
        if not journal.delivery or journal.acknowledged:
            return False
        if not journal.opened or not journal.ended:
            return True
        # A bridge before may have stored it and be gone for good: it waits, but for nobody known.
        return journal.url == self.receiver.url != ""

    def _lost(self, journal: Journal) -> None:
        if journal.delivery:
            self._tell(journal.chat_id, journal.label, _NO_ROOM)


def _described(event: str) -> str:
    """What an event of Hermes is about, where the job that it names is not known."""
    command = next((line for line in event.splitlines()[:4] if line.startswith("Command: ")), "")
    if command:
        return command.removeprefix("Command: ")
    return "background subagents" if event.startswith("[ASYNC DELEGATION") else "background job"


def _one_line(text: str) -> str:
    return "".join(filter(str.isprintable, brief(text)))
