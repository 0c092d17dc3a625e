"""The callbacks of each message, kept until a bridge has its end, and for a while after.

A bridge that was restarted, or another one, attaches to a message and gets the callbacks after the
last that it knows. No I/O; the clock can be replaced.
"""

from __future__ import annotations

import bisect
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter

from molecule_hermes.wire import (
    Callback,
    Delta,
    File,
    Final,
    Notice,
    Reasoning,
    Spent,
    Subagent,
    Tool,
)

__all__ = ["Journal", "Journals", "size_of"]

log = logging.getLogger(__name__)

_TRANSIENT = (Notice, Reasoning, Spent, Subagent, Tool)
"""What may be dropped for want of room. Text stays: it is short once it is joined."""
_LOOSE = 64
"""More pieces of text than these are joined into one, if the bridge has them."""
_LOOSE_UNSENT = 1024
"""More pieces of text than these are joined into one, even if the bridge has not."""
_FORMER = 8
_OVERHEAD = 256
"""Approximate bytes of a callback besides its content."""
_seq = attrgetter("seq")


class Journal:
    """The callbacks of one message, numbered in order.

    `url` is the address of the bridge that follows the message; it is empty if there is none. In a
    `delivery` the first callback is a push.
    """

    def __init__(
        self, message_id: str, chat_id: str, url: str, bridge: str = "", *, delivery: bool = False
    ) -> None:
        self.message_id = message_id
        self.chat_id = chat_id
        self.url = url
        self.bridge = bridge
        """The name of the bridge that sent the message. Only it may attach."""
        self.former: tuple[str, ...] = ()
        """The names of bridges that were sent the push of a delivery before, and that may have
        stored it."""
        self.delivery = delivery
        self.label = ""
        """What a delivery is about, for people."""
        self.taken = -1
        """The highest `seq` that the bridge has acknowledged."""
        self.attached = 0
        """How often a bridge has attached. What was sent to an earlier one no longer counts."""
        self.acknowledged_at = 0.0
        self.size = 0
        self._entries: list[Callback] = []
        self._next = 0
        self._sent = -1
        self._loose = 0
        self._torn_at: int | None = None
        """The number of a piece of text that was lost."""
        self._final: int | None = None

    @property
    def last_seq(self) -> int:
        return self._next - 1

    @property
    def ended(self) -> bool:
        """Whether the message has its final."""
        return self._final is not None

    @property
    def acknowledged(self) -> bool:
        """Whether a bridge that knows the message has its final."""
        return self._final is not None and self.taken >= self._final

    @property
    def opened(self) -> bool:
        """Whether a bridge has acknowledged the first callback, for a delivery its push."""
        return self.taken >= 0

    @property
    def pending(self) -> int:
        """How many callbacks the bridge has not acknowledged."""
        if self._torn_at is None:
            return len(self._entries) - self._index(self.taken)
        return len(self._unacknowledged())

    def add(self, callback: Callback) -> None:
        """Adds text to the last callback where that has not been sent; else adds a callback."""
        last = self._entries[-1] if self._entries else None
        if last is not None and last.seq is not None and last.seq > self._sent:
            merged = _merged(last, callback)
            if merged is not None:
                self._replace(len(self._entries) - 1, merged)
                return
        callback = callback.numbered(self._next)
        if isinstance(callback.body, Final):
            self._final = self._next
        self._next += 1
        self._entries.append(callback)
        self.size += size_of(callback)
        self._loose += isinstance(callback.body, Delta)
        if self._loose > _LOOSE:
            self._join_text(self.taken)
        if self._loose > _LOOSE_UNSENT:
            self._join_text(self.last_seq)

    def unsent(self) -> Iterator[Callback]:
        """The callbacks that the bridge has not acknowledged, in order."""
        for entry in self._unacknowledged():
            self._sent = max(self._sent, entry.seq or 0)
            yield entry

    def _unacknowledged(self) -> list[Callback]:
        """Leaves out text that continues text with a gap, until a callback replaces all of it."""
        entries = self._entries[self._index(self.taken) :]
        if self._torn_at is None:
            return entries
        first = next((n for n, entry in enumerate(entries) if _replaces(entry)), len(entries))
        torn = [entry for entry in entries[:first] if not isinstance(entry.body, Delta)]
        return torn + entries[first:]

    def take(self, seq: int) -> None:
        """The bridge has everything up to this number."""
        if self._torn_at is not None:
            taken = self._entries[self._index(self._torn_at) : self._index(seq)]
            if any(map(_replaces, taken)):
                self._torn_at = None
        self.taken = max(self.taken, seq)

    def refuse(self, seq: int, instead: Callback | None = None) -> None:
        """The bridge cannot read this callback. Without one that is sent instead, it is lost."""
        index = self._index(seq - 1)
        if index < len(self._entries) and self._entries[index].seq == seq:
            if instead is not None:
                self._replace(index, instead.numbered(seq))
                return
            if isinstance(self._entries[index].body, Delta):
                self._torn_at = seq
        self.taken = max(self.taken, seq)

    def attach(self, url: str, after: int) -> None:
        """A bridge takes over. It has everything up to the number `after`."""
        self.url = url
        self.attached += 1
        self.taken = min(after, self.last_seq)
        self._torn_at = None

    def belong_to(self, bridge: str) -> None:
        """Another bridge gets the push of a delivery that no bridge has acknowledged."""
        if self.bridge and self.bridge != bridge:
            self.former = (*self.former, self.bridge)[-_FORMER:]
        self.bridge = bridge

    def detach(self) -> None:
        """The bridge does not know the message. Nothing is sent until another one attaches."""
        self.url = ""
        self.attached += 1

    def drop_transient(self) -> bool:
        """Drops the oldest callback that a bridge can do without; False if there is none."""
        for index, entry in enumerate(self._entries):
            if isinstance(entry.body, _TRANSIENT):
                del self._entries[index]
                self.size -= size_of(entry)
                return True
        return False

    def drop_file(self) -> bool:
        """Replaces the oldest file by a notice; False if there is none."""
        for index, entry in enumerate(self._entries):
            if isinstance(entry.body, File) and entry.body.data:
                name = entry.body.name
                log.warning("dropped the file %s: too many files are kept", name)
                text = f"the file {name} was not delivered: too many files are waiting"
                self._replace(index, replace(entry, content=text, body=Notice()))
                return True
        return False

    def _index(self, seq: int) -> int:
        """The position of the first callback after this number."""
        return bisect.bisect_right(self._entries, seq, key=_seq)

    def _replace(self, index: int, callback: Callback) -> None:
        self.size += size_of(callback) - size_of(self._entries[index])
        self._entries[index] = callback

    def _join_text(self, up_to: int) -> None:
        """Joins the text up to a number into one callback, which has the number of the last piece.

        It replaces the bridge's text, so it is right for a bridge that knows a part of it.
        """
        end = self._index(up_to)
        pieces = [entry for entry in self._entries[:end] if isinstance(entry.body, Delta)]
        if len(pieces) < 2:
            return
        text = ""
        for piece in pieces:
            text = piece.content if _replaces(piece) else text + piece.content
        last = pieces[-1]
        joined = replace(last, content=text, body=Delta(replace=True))
        kept = [e for e in self._entries[:end] if e is last or not isinstance(e.body, Delta)]
        self._entries[:end] = [joined if entry is last else entry for entry in kept]
        self._loose -= len(pieces) - 1
        self.size = sum(map(size_of, self._entries))


class Journals:
    """All journals, within bounds of bytes, number and time.

    Journals whose end a bridge has acknowledged are forgotten after `keep_for` seconds, or earlier
    if there is no room. Then files go, then ended messages that no bridge has asked for, then what
    else a running message can do without.
    """

    def __init__(
        self,
        *,
        keep_for: float = 3600.0,
        max_bytes: int = 64 * 2**20,
        max_ended: int = 4096,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keep_for = keep_for
        self._max_bytes = max_bytes
        self._max_ended = max_ended
        self._clock = clock
        self._open: OrderedDict[str, Journal] = OrderedDict()
        """Those whose end no bridge has acknowledged, the oldest first."""
        self._done: OrderedDict[str, Journal] = OrderedDict()
        self._bytes = 0
        self.on_lost: Callable[[Journal], None] = lambda journal: None
        """Called when there was no room for an end that no bridge has acknowledged."""

    def __len__(self) -> int:
        return len(self._open) + len(self._done)

    def __iter__(self) -> Iterator[Journal]:
        return iter([*self._open.values(), *self._done.values()])

    @property
    def size(self) -> int:
        """Approximate bytes of all journals."""
        return self._bytes

    def begin(
        self, message_id: str, chat_id: str, url: str, bridge: str = "", *, delivery: bool = False
    ) -> Journal:
        self._drop_expired()
        journal = Journal(message_id, chat_id, url, bridge, delivery=delivery)
        self._open[message_id] = journal
        return journal

    def drop(self, journal: Journal) -> None:
        """Forgets a message; what is added to it later is lost."""
        for journals in (self._open, self._done):
            if journals.get(journal.message_id) is journal:
                self._forget(journals, journal)
        journal.detach()

    def find(self, message_id: str) -> Journal | None:
        return self._open.get(message_id) or self._done.get(message_id)

    def keeps(self, journal: Journal) -> bool:
        """False if it was forgotten."""
        return self.find(journal.message_id) is journal

    def add(self, journal: Journal, callback: Callback) -> None:
        if not journal.url and not self.keeps(journal):
            return  # no bridge follows it, and none can attach
        before = journal.size
        journal.add(callback)
        if self.keeps(journal):
            self._bytes += journal.size - before
            if self._bytes > self._max_bytes:
                self._make_room()

    def refuse(self, journal: Journal, seq: int, instead: Callback | None = None) -> None:
        before = journal.size
        journal.refuse(seq, instead)
        if self.keeps(journal):
            self._bytes += journal.size - before

    def acknowledge(self, journal: Journal) -> None:
        """Starts the time after which the journal is forgotten, if a bridge has its end."""
        if journal.acknowledged and self._open.pop(journal.message_id, None) is journal:
            journal.acknowledged_at = self._clock()
            self._done[journal.message_id] = journal
        self._drop_expired()

    def _drop_expired(self) -> None:
        oldest = self._clock() - self._keep_for
        while self._done:
            journal = next(iter(self._done.values()))
            if journal.acknowledged_at >= oldest and len(self._done) <= self._max_ended:
                return
            self._forget(self._done, journal)

    def _make_room(self) -> None:
        attempts: Sequence[Callable[[], bool]] = (
            self._forget_acknowledged,
            lambda: any(journal.drop_file() for journal in self),
            self._forget_ended,
            lambda: any(journal.drop_transient() for journal in self),
        )
        for attempt in attempts:
            while self._bytes > self._max_bytes and attempt():
                self._bytes = sum(journal.size for journal in self)

    def _forget_acknowledged(self) -> bool:
        if not self._done:
            return False
        self._forget(self._done, next(iter(self._done.values())))
        return True

    def _forget_ended(self) -> bool:
        ended = next((journal for journal in self._open.values() if journal.ended), None)
        if ended is None:
            return False
        log.warning("forgot the end of message %s: there is no room for it", ended.message_id)
        self._forget(self._open, ended)
        self.on_lost(ended)
        return True

    def _forget(self, journals: OrderedDict[str, Journal], journal: Journal) -> None:
        del journals[journal.message_id]
        self._bytes -= journal.size


def _replaces(callback: Callback) -> bool:
    return isinstance(callback.body, Delta) and callback.body.replace


def _merged(mine: Callback, later: Callback) -> Callback | None:
    """Two pieces of text or of reasoning as one, the later of two figures; None for the rest."""
    if type(mine.body) is not type(later.body):
        return None
    if isinstance(later.body, Spent) or _replaces(later):
        return replace(later, seq=mine.seq)
    if isinstance(later.body, Delta | Reasoning):
        return replace(mine, content=mine.content + later.content)
    return None


def size_of(callback: Callback) -> int:
    """Approximate bytes of a callback in memory."""
    body = callback.body
    data = len(body.data or b"") if isinstance(body, File) else 0
    shown = 0
    if isinstance(body, Tool):
        shown = len(body.preview) + len(body.output) + len(body.result) + len(body.error)
    return _OVERHEAD + len(callback.content) + data + shown
