"""Sends callbacks to the bridge.

Each callback address has a queue per chat and, while any of them holds something, one task that
posts them. What piles up while a request is under way leaves as one batch. A bridge that is down
or slow holds up neither Hermes nor the callbacks to other bridges. A request that fails is retried
by a task of its chat alone, so that it does not hold up the other chats.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Self, TypeAlias

import aiohttp

from molecule_hermes.backoff import Backoff
from molecule_hermes.errors import InternalFailure
from molecule_hermes.keyed_tasks import KeyedTasks
from molecule_hermes.wire import (
    SECRET_HEADER,
    Callback,
    Delta,
    File,
    Final,
    Notice,
    Problem,
    Push,
    Reasoning,
    Spent,
    Subagent,
    Tool,
)

__all__ = ["Outbox"]

log = logging.getLogger(__name__)

_BACKOFF = Backoff(first=0.1, longest=5.0)
# These may be lost while the bridge is down: the final repeats the whole text.
_TRANSIENT = (Delta, Notice, Reasoning, Spent, Subagent, Tool)
_BATCH = 256
_BATCH_BYTES = 2**20

_Lane: TypeAlias = tuple[str, str | None]
"""A callback address, and the chat if the lane is for the retries of one chat alone."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A queued callback.

    Its `seq` is taken from `numbers` when it is first posted, so that callbacks that were merged
    or dropped before leave no gap.
    """

    callback: Callback
    numbers: Iterator[int]
    deadline: float
    """When it is no longer retried, on the monotonic clock."""

    @property
    def file_bytes(self) -> int:
        body = self.callback.body
        return len(body.data) if isinstance(body, File) and body.data is not None else 0

    @property
    def size(self) -> int:
        return len(self.callback.content) + self.file_bytes

    def merged(self, later: _Entry) -> _Entry | None:
        """Two deltas of one message as one; None for anything else."""
        mine, other = self.callback, later.callback
        if type(mine.body) is not type(other.body):
            return None
        if not isinstance(other.body, Delta | Reasoning):
            return None
        if mine.reply_to != other.reply_to or mine.seq is not None:
            # A numbered delta was posted already: the bridge may have it, and would skip the sum.
            return None
        if isinstance(other.body, Delta) and other.body.replace:
            return later
        return replace(later, callback=replace(mine, content=mine.content + other.content))

    def numbered(self) -> _Entry:
        if self.callback.seq is not None:
            return self
        return replace(self, callback=self.callback.numbered(next(self.numbers)))


@dataclass(slots=True)
class _Batch:
    lane: _Lane
    entries: list[_Entry] = field(default_factory=list)
    size: int = 0

    def has_room(self, entry: _Entry) -> bool:
        if not self.entries:
            return True
        return len(self.entries) < _BATCH and self.size + entry.size <= _BATCH_BYTES

    def add(self, entry: _Entry) -> None:
        self.entries.append(entry)
        self.size += entry.size


class Outbox:
    """Queues and posts callbacks. The adapter opens and closes it with its connection."""

    def __init__(
        self,
        *,
        secret: str = "",
        retry_for: float = 60.0,
        retry_transient_for: float = 2.0,
        timeout: float = 10.0,
        max_waiting: int = 256,
        max_file_bytes: int = 64 * 2**20,
    ) -> None:
        self._headers = {SECRET_HEADER: secret} if secret else {}
        self._retry_for = retry_for
        self._retry_transient_for = retry_transient_for
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._max_waiting = max_waiting
        self._max_file_bytes = max_file_bytes
        self._file_bytes = 0
        self._in_flight = 0
        self._queues: dict[_Lane, OrderedDict[str, deque[_Entry]]] = {}
        self._retrying: set[_Lane] = set()
        """The chats that have a lane of their own, until it is empty."""
        self._torn: set[str] = set()
        """Messages whose text has a gap: more text must not be appended to it."""
        self._tasks = KeyedTasks(self._take, self._deliver)
        self._session: aiohttp.ClientSession | None = None

    def __len__(self) -> int:
        """How many callbacks are waiting or under way."""
        chats = [queue for chats in self._queues.values() for queue in chats.values()]
        return self._in_flight + sum(map(len, chats))

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

    def put(self, url: str, callback: Callback, numbers: Iterator[int]) -> None:
        """Queues a callback; never waits. If the chat's queue is full, transient ones go first."""
        lane: _Lane = (url, callback.chat_id)
        if lane not in self._retrying:
            lane = (url, None)
        queue = self._queues.setdefault(lane, OrderedDict()).setdefault(callback.chat_id, deque())
        transient = isinstance(callback.body, _TRANSIENT)
        patience = self._retry_transient_for if transient else self._retry_for
        entry = _Entry(callback, numbers, time.monotonic() + patience)
        if queue and (merged := queue[-1].merged(entry)):
            queue[-1] = merged
            return
        if self._file_bytes + entry.file_bytes > self._max_file_bytes:
            entry = _without_file(entry)
        self._file_bytes += entry.file_bytes
        queue.append(entry)
        if len(queue) > self._max_waiting:
            self._shrink(queue)
        self._tasks.wake(lane)

    async def close(self, flush_for: float = 0.0) -> None:
        """Posts what is queued for at most `flush_for` seconds, then drops the rest."""
        await self._tasks.flush(flush_for)
        if lost := len(self):
            log.warning("%d callbacks were not delivered before the end", lost)
        await self._tasks.close()
        self._queues.clear()
        self._retrying.clear()
        self._file_bytes = 0
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _shrink(self, queue: deque[_Entry]) -> None:
        """Drops one entry. Questions and finals stay: there are few of them."""
        for kinds in (_TRANSIENT, (Push, File)):
            for entry in queue:
                if isinstance(entry.callback.body, kinds):
                    queue.remove(entry)
                    self._file_bytes -= entry.file_bytes
                    self._mark_lost(entry)
                    return

    def _take(self, lane: _Lane) -> _Batch | None:
        """The next callbacks of a lane. Chats take turns, each in its own order."""
        chats = self._queues.get(lane, OrderedDict())
        batch = _Batch(lane)
        while chats:
            chat_id = next(iter(chats))
            queue = chats[chat_id]
            if not batch.has_room(queue[0]):
                break
            entry = queue.popleft()
            if queue:
                chats.move_to_end(chat_id)
            else:
                del chats[chat_id]
            if self._continues_text(entry):
                batch.add(entry)
        if not chats:
            self._queues.pop(lane, None)
        if not batch.entries:
            self._retrying.discard(lane)
            return None
        self._in_flight += len(batch.entries)
        return batch

    def _continues_text(self, entry: _Entry) -> bool:
        """False for a delta of a message whose text has a gap, until a delta replaces it all."""
        body, message_id = entry.callback.body, entry.callback.reply_to
        if isinstance(body, Final) or (isinstance(body, Delta) and body.replace):
            self._torn.discard(message_id)
        return not isinstance(body, Delta) or message_id not in self._torn

    def _mark_lost(self, entry: _Entry) -> None:
        if isinstance(entry.callback.body, Delta):
            self._torn.add(entry.callback.reply_to)
        elif isinstance(entry.callback.body, Final):
            self._torn.discard(entry.callback.reply_to)

    async def _deliver(self, batch: _Batch) -> None:
        url, chat_id = batch.lane
        entries = [entry.numbered() for entry in batch.entries]
        done: Sequence[_Entry] = entries
        try:
            if chat_id is not None:
                await self._send(url, entries)
            elif (taken := await self._post(url, _encoded(entries))) is None:
                self._retry_apart(url, entries)
                done = ()
            elif not taken:
                await self._send_refused(url, entries)
        finally:
            self._in_flight -= len(entries)
            self._file_bytes -= sum(entry.file_bytes for entry in done)

    def _retry_apart(self, url: str, entries: Sequence[_Entry]) -> None:
        """Gives each chat of a failed request a lane of its own, in front of what it has queued."""
        failed: dict[str, deque[_Entry]] = {}
        for entry in entries:
            failed.setdefault(entry.callback.chat_id, deque()).append(entry)
        queued = self._queues.get((url, None), OrderedDict())
        for chat_id, queue in failed.items():
            queue.extend(queued.pop(chat_id, ()))
            lane = (url, chat_id)
            self._retrying.add(lane)
            self._queues[lane] = OrderedDict({chat_id: queue})
            self._tasks.wake(lane)

    async def _send(self, url: str, entries: Sequence[_Entry]) -> None:
        taken = await self._post_with_retries(url, entries)
        if taken is False:
            await self._send_refused(url, entries)
        elif taken is None:
            for entry in entries:
                self._mark_lost(entry)

    async def _send_refused(self, url: str, entries: Sequence[_Entry]) -> None:
        if len(entries) > 1:
            # The bridge refuses a batch as a whole; singly, it refuses only what is at fault.
            for entry in filter(self._continues_text, entries):
                await self._send(url, [entry])
            return
        self._mark_lost(entries[0])
        if isinstance(entries[0].callback.body, Final):
            # The turn must end even if its answer cannot be passed on.
            await self._post_with_retries(url, [_failed(entries[0])])

    async def _post_with_retries(self, url: str, entries: Sequence[_Entry]) -> bool | None:
        """True: taken. False: refused. None: given up after retries."""
        data = _encoded(entries)
        patience = max(entry.deadline for entry in entries) - time.monotonic()
        delays = _BACKOFF.delays(within=max(0.0, patience))
        while (taken := await self._post(url, data)) is None:
            delay = next(delays, None)
            if delay is None:
                kinds = ", ".join(sorted({entry.callback.body.type for entry in entries}))
                log.warning("gave up %d callbacks (%s) to %s", len(entries), kinds, url)
                break
            await asyncio.sleep(delay)
        return taken

    async def _post(self, url: str, data: bytes) -> bool | None:
        """True: taken. False: refused, and it would be again. None: worth another attempt."""
        if self._session is None:
            return False
        headers = {"Content-Type": "application/json"}
        try:
            # aiohttp writes a file in pieces, so that a large body does not block Hermes.
            body = io.BytesIO(data)
            async with self._session.post(
                url, data=body, headers=headers, allow_redirects=False
            ) as response:
                await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            log.debug("a callback to %s failed: %s", url, error)
            return None
        if response.status >= 500:
            return None
        if response.status >= 300:
            log.warning("the bridge refused a callback with %d", response.status)
        return response.status < 300


def _encoded(entries: Sequence[_Entry]) -> bytes:
    """One callback by itself, several as a batch."""
    objects = [entry.callback.to_json() for entry in entries]
    return json.dumps(objects[0] if len(objects) == 1 else {"batch": objects}).encode()


def _failed(entry: _Entry) -> _Entry:
    """A final that says that the answer could not be passed on."""
    failure = InternalFailure("Hermes's answer could not be passed on")
    final = Final("failed", Problem.of(failure))
    return replace(entry, callback=replace(entry.callback, content="", body=final))


def _without_file(entry: _Entry) -> _Entry:
    """A notice in the place of a file for which there is no room."""
    body = entry.callback.body
    name = body.name if isinstance(body, File) else body.type
    log.warning("dropped the file %s: too many files are waiting", name)
    text = f"the file {name} was not delivered: too many files are waiting"
    return replace(entry, callback=replace(entry.callback, content=text, body=Notice()))
