"""Sends callbacks to bridges.

Each callback address has one task that posts what is pending for it, as long as anything is. What
piles up while a request is under way leaves as one batch. A bridge that is down or slow holds up
neither Hermes nor the callbacks to other bridges. The messages of a request that fails are retried
one by one, each by a task of its own, so that none holds up the others. Nothing is dropped: the
journals keep what a bridge has not acknowledged.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

import aiohttp

from molecule_hermes.backoff import Backoff
from molecule_hermes.errors import InternalFailure
from molecule_hermes.keyed_tasks import KeyedTasks
from molecule_hermes.plugin.journal import Journal, Journals, size_of
from molecule_hermes.wire import SECRET_HEADER, Callback, Final, Problem, Push, WireError

__all__ = ["Outbox"]

log = logging.getLogger(__name__)

_BACKOFF = Backoff(first=0.1, longest=5.0)
_BATCH = 256
_BATCH_BYTES = 2**20
_UNREADABLE = Problem("bad_request", "the bridge cannot read it")
_REFUSED = frozenset({400, 413, 422})
"""The bridge cannot read the callback, and could not at another attempt."""

_Lane: TypeAlias = tuple[str, str]
"""A callback address, and the message if the lane is for the retries of one message alone."""


@dataclass(slots=True)
class _Part:
    """The callbacks of one message in a request."""

    journal: Journal
    attached: int
    """The attachment that it is for."""
    callbacks: list[Callback] = field(default_factory=list)

    @property
    def counts(self) -> bool:
        """False if another bridge has attached to the message meanwhile."""
        return self.attached == self.journal.attached


@dataclass(slots=True)
class _Batch:
    lane: _Lane
    parts: dict[str, _Part] = field(default_factory=dict)
    order: list[Callback] = field(default_factory=list)
    size: int = 0

    def has_room(self, callback: Callback) -> bool:
        if not self.order:
            return True
        return len(self.order) < _BATCH and self.size + size_of(callback) <= _BATCH_BYTES

    def add(self, journal: Journal, callback: Callback) -> None:
        part = self.parts.setdefault(journal.message_id, _Part(journal, journal.attached))
        part.callbacks.append(callback)
        self.order.append(callback)
        self.size += size_of(callback)


@dataclass(frozen=True, slots=True)
class _Answer:
    """How a bridge responded. `unknown` are the messages that it does not know, `refused` the
    deliveries that it does not take."""

    status: int
    unknown: frozenset[str] = frozenset()
    all_unknown: bool = False
    refused: Mapping[str, Problem] = field(default_factory=dict)

    @property
    def taken(self) -> bool:
        return 200 <= self.status < 300

    def knows(self, message_id: str) -> bool:
        return not self.all_unknown and message_id not in self.unknown


class Outbox:
    """Posts what the journals hold. The adapter opens and closes it with its connection."""

    def __init__(
        self, journals: Journals | None = None, *, secret: str = "", timeout: float = 10.0
    ) -> None:
        self.journals = Journals() if journals is None else journals
        self._headers = {SECRET_HEADER: secret} if secret else {}
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._lanes: dict[_Lane, OrderedDict[str, Journal]] = {}
        """The messages with something to send, each in one lane."""
        self._lane_of: dict[str, _Lane] = {}
        self._failures: dict[str, int] = {}
        """Failed requests in a row of messages with a lane of their own."""
        self._tasks = KeyedTasks(self._take, self._deliver)
        self.on_refused: Callable[[Journal, Problem], None] = lambda journal, problem: None
        """Called when a bridge does not take a delivery, which is forgotten then."""
        self.on_unknown: Callable[[Journal], None] = lambda journal: None
        """Called when a bridge does not know a message."""
        self._session: aiohttp.ClientSession | None = None

    def __len__(self) -> int:
        """How many callbacks no bridge has acknowledged, where a bridge follows."""
        return sum(journal.pending for journal in self.journals if journal.url)

    def open(self) -> None:
        # A callback server that hangs must not take the connections to others.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), headers=self._headers, timeout=self._timeout
        )

    async def __aenter__(self) -> Self:
        self.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def put(self, journal: Journal, callback: Callback) -> None:
        """Adds a callback and has it sent; never waits."""
        self.journals.add(journal, callback)
        self._schedule(journal)

    def attach(self, journal: Journal, url: str, after: int) -> None:
        """Sends the callbacks after that number, and all later ones, to the address."""
        self._unschedule(journal)
        journal.attach(url, after)
        self._schedule(journal)

    async def close(self, flush_for: float = 0.0) -> None:
        """Posts what is pending for at most `flush_for` seconds."""
        await self._tasks.flush(flush_for)
        if lost := len(self):
            log.warning("%d callbacks were not delivered before the end", lost)
        await self._tasks.close()
        self._lanes.clear()
        self._lane_of.clear()
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _schedule(self, journal: Journal, lane: _Lane | None = None) -> None:
        if not journal.url or not journal.pending:
            return
        lane = lane or self._lane_of.get(journal.message_id) or (journal.url, "")
        self._lane_of[journal.message_id] = lane
        self._lanes.setdefault(lane, OrderedDict())[journal.message_id] = journal
        self._tasks.wake(lane)

    def _unschedule(self, journal: Journal) -> None:
        lane = self._lane_of.pop(journal.message_id, None)
        self._failures.pop(journal.message_id, None)
        if lane is not None and lane in self._lanes:
            self._lanes[lane].pop(journal.message_id, None)

    def _take(self, lane: _Lane) -> _Batch | None:
        """The next callbacks of a lane. Messages take turns, each in its own order."""
        waiting = self._lanes.get(lane, OrderedDict())
        batch = _Batch(lane)
        queues: deque[tuple[Journal, Iterator[Callback], Callback]] = deque()
        for journal in list(waiting.values()):
            unsent = journal.unsent()
            if (first := next(unsent, None)) is not None:
                queues.append((journal, unsent, first))
            else:
                self._unschedule(journal)
        while queues and batch.has_room(queues[0][2]):
            journal, unsent, callback = queues.popleft()
            batch.add(journal, callback)
            waiting.move_to_end(journal.message_id)
            if (following := next(unsent, None)) is not None:
                queues.append((journal, unsent, following))
        if batch.order:
            return batch
        self._lanes.pop(lane, None)
        return None

    async def _deliver(self, batch: _Batch) -> None:
        url, alone = batch.lane
        answer = await self._post(url, batch.order)
        if answer is not None and answer.taken:
            for part in batch.parts.values():
                self._taken(part, answer)
        elif answer is not None and answer.status in _REFUSED:
            await self._deliver_singly(url, batch)
        elif alone:
            failures = self._failures[alone] = self._failures.get(alone, 0) + 1
            await asyncio.sleep(_BACKOFF.delay(failures))
            self._drop_forgotten(batch)
        else:
            for part in filter(lambda part: part.counts, batch.parts.values()):
                self._unschedule(part.journal)
                self._schedule(part.journal, (url, part.journal.message_id))
            self._drop_forgotten(batch)

    def _drop_forgotten(self, batch: _Batch) -> None:
        """A message for which there was no room is not retried, or it would take the room still."""
        for part in batch.parts.values():
            if part.counts and not self.journals.keeps(part.journal):
                self._unschedule(part.journal)
                part.journal.detach()

    def _taken(self, part: _Part, answer: _Answer) -> None:
        if not part.counts:
            return
        journal = part.journal
        if journal.delivery and (problem := answer.refused.get(journal.message_id)):
            self._drop(journal, problem)
            return
        if not answer.knows(journal.message_id):
            self._unschedule(journal)
            journal.detach()
            self.on_unknown(journal)
            return
        journal.take(part.callbacks[-1].seq or 0)
        self._failures.pop(journal.message_id, None)
        if journal.acknowledged:
            self.journals.acknowledge(journal)
        if not journal.pending:
            self._unschedule(journal)

    def _drop(self, journal: Journal, problem: Problem) -> None:
        self._unschedule(journal)
        self.journals.drop(journal)
        self.on_refused(journal, problem)

    async def _deliver_singly(self, url: str, batch: _Batch) -> None:
        """The bridge refuses a batch as a whole; singly, it refuses only what is at fault."""
        if len(batch.order) == 1:
            (part,) = batch.parts.values()
            await self._refused(url, part, batch.order[0])
            return
        for part in batch.parts.values():
            for callback in part.callbacks:
                single = _Part(part.journal, part.attached, [callback])
                answer = await self._post(url, [callback])
                if answer is not None and answer.taken:
                    self._taken(single, answer)
                elif answer is not None and answer.status in _REFUSED:
                    await self._refused(url, single, callback)
                    break  # the text after it may have a gap now
                if answer is None or not answer.taken or not single.counts:
                    break  # the next batch begins with it

    async def _refused(self, url: str, part: _Part, callback: Callback) -> None:
        if not part.counts or callback.seq is None:
            return
        if isinstance(callback.body, Push):
            # Without it the bridge would not know what the other callbacks belong to.
            self._drop(part.journal, _UNREADABLE)
            return
        if not isinstance(callback.body, Final):
            log.warning("the bridge refused a callback (%s)", callback.body.type)
            self.journals.refuse(part.journal, callback.seq)
            return
        # The turn must end even if its answer cannot be passed on.
        failed = _failed(callback)
        self.journals.refuse(part.journal, callback.seq, failed)
        answer = await self._post(url, [failed])
        if answer is not None and answer.taken:
            self._taken(part, answer)
        elif answer is not None and answer.status in _REFUSED and part.counts:
            self.journals.refuse(part.journal, callback.seq)
            self.journals.acknowledge(part.journal)

    async def _post(self, url: str, callbacks: Sequence[Callback]) -> _Answer | None:
        """The bridge's answer; None if there was none."""
        if self._session is None:
            return None
        headers = {"Content-Type": "application/json"}
        try:
            # aiohttp writes a file in pieces, so that a large body does not block Hermes.
            body = io.BytesIO(_encoded(callbacks))
            async with self._session.post(
                url, data=body, headers=headers, allow_redirects=False
            ) as response:
                said = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            log.debug("a callback to %s failed: %s", url, error)
            return None
        return _answer(response.status, said)


def _answer(status: int, said: bytes) -> _Answer:
    try:
        body: Any = json.loads(said)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, Mapping):
        return _Answer(status)
    unknown, refused = body.get("unknown"), _refusals(body.get("refused"))
    if isinstance(unknown, list):
        return _Answer(status, frozenset(map(str, unknown)), refused=refused)
    # Older bridges say only that they know none of the messages.
    return _Answer(status, all_unknown=body.get("stale") is True, refused=refused)


def _refusals(refused: object) -> Mapping[str, Problem]:
    if not isinstance(refused, Mapping):
        return {}
    return {str(push_id): _problem(why) for push_id, why in refused.items()}


def _problem(why: object) -> Problem:
    try:
        return Problem.parse(why)
    except WireError:
        return Problem("internal", "the bridge does not take it")


def _encoded(callbacks: Sequence[Callback]) -> bytes:
    """One callback by itself, several as a batch."""
    objects = [callback.to_json() for callback in callbacks]
    return json.dumps(objects[0] if len(objects) == 1 else {"batch": objects}).encode()


def _failed(final: Callback) -> Callback:
    """A final that says that the answer could not be passed on."""
    failure = InternalFailure("Hermes's answer could not be passed on")
    return Callback(
        final.chat_id,
        final.reply_to,
        "",
        Final("failed", Problem.of(failure)),
        final.seq,
        final.agent,
    )
