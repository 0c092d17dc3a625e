"""Callbacks on their way to the bridge.

Each chat has a lane: a bounded queue and, while it holds something, one task that posts it in
order. A bridge that is down or slow holds up its own lanes only, and never Hermes.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Self

import aiohttp

from molecule_hermes.backoff import Backoff
from molecule_hermes.errors import InternalFailure
from molecule_hermes.wire import (
    SECRET_HEADER,
    Callback,
    Delta,
    File,
    Final,
    Notice,
    Problem,
    Push,
    Tool,
)

__all__ = ["Outbox", "Parcel"]

log = logging.getLogger(__name__)

_BACKOFF = Backoff(first=0.1, longest=5.0)
# What may be lost when the bridge is down; the final says it all again.
_PASSING = (Delta, Notice, Tool)


@dataclass(frozen=True, slots=True)
class Parcel:
    """A callback, where it goes, and the counter its `seq` is taken from.

    The number is taken when the parcel is posted, so that parcels merged or dropped before
    leave no gap.
    """

    url: str
    callback: Callback
    numbers: Iterator[int]

    def merged(self, later: Parcel) -> Parcel | None:
        """Both deltas of one message as one; None if these are something else."""
        mine, theirs = self.callback, later.callback
        if not (isinstance(mine.body, Delta) and isinstance(theirs.body, Delta)):
            return None
        if mine.reply_to != theirs.reply_to:
            return None
        if theirs.body.replace:
            return later
        return replace(self, callback=replace(mine, content=mine.content + theirs.content))


@dataclass(slots=True)
class _Lane:
    parcels: deque[Parcel] = field(default_factory=deque)
    # The message whose text has a hole: appending more to it would tell the peer nonsense.
    torn: str = ""


class Outbox:
    """Posts parcels; opened and closed with the adapter's connection."""

    def __init__(
        self,
        *,
        secret: str = "",
        retry_for: float = 60.0,
        retry_passing_for: float = 2.0,
        timeout: float = 10.0,
        max_parcels: int = 256,
        max_file_bytes: int = 64 * 2**20,
    ) -> None:
        self._headers = {SECRET_HEADER: secret} if secret else {}
        self._retry_for = retry_for
        self._retry_passing_for = retry_passing_for
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._max_parcels = max_parcels
        self._max_file_bytes = max_file_bytes
        self._file_bytes = 0
        self._lanes: dict[tuple[str, str], _Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._session: aiohttp.ClientSession | None = None

    def __len__(self) -> int:
        return sum(len(lane.parcels) for lane in self._lanes.values())

    def open(self) -> None:
        # A callback server that hangs may take its own connections, not those of others.
        connector = aiohttp.TCPConnector(limit=0, limit_per_host=64)
        self._session = aiohttp.ClientSession(
            connector=connector, headers=self._headers, timeout=self._timeout
        )

    async def __aenter__(self) -> Self:
        self.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def put(self, parcel: Parcel) -> None:
        """Queues a parcel; never waits. Of a full lane the passing ones are dropped first."""
        key = (parcel.url, parcel.callback.chat_id)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane()
            task = asyncio.get_running_loop().create_task(self._work(key, lane))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._enqueue(lane, parcel)

    async def close(self, flush_for: float = 0.0) -> None:
        """Posts what is queued, for at most that long; then gives the rest up."""
        if self._tasks and flush_for > 0:
            await asyncio.wait(set(self._tasks), timeout=flush_for)
        if lost := len(self):
            log.warning("%d callbacks were not delivered before the end", lost)
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._lanes.clear()
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _enqueue(self, lane: _Lane, parcel: Parcel) -> None:
        parcels = lane.parcels
        # The head is being posted and must stay as it is.
        if len(parcels) > 1 and (both := parcels[-1].merged(parcel)):
            parcels[-1] = both
            return
        parcels.append(parcel if self._fits(parcel) else _told_of(parcel))
        if len(parcels) > self._max_parcels:
            self._shrink(lane)

    def _fits(self, parcel: Parcel) -> bool:
        size = _size(parcel)
        if self._file_bytes + size > self._max_file_bytes:
            return False
        self._file_bytes += size
        return True

    def _shrink(self, lane: _Lane) -> None:
        """Makes room behind the head. Questions and finals stay: they are few."""
        for kinds in (_PASSING, (Push, File)):
            for parcel in list(lane.parcels)[1:]:
                if isinstance(parcel.callback.body, kinds):
                    self._drop(lane, parcel)
                    return

    def _drop(self, lane: _Lane, parcel: Parcel) -> None:
        lane.parcels.remove(parcel)
        self._file_bytes -= _size(parcel)
        self._lost(lane, parcel)

    def _lost(self, lane: _Lane, parcel: Parcel) -> None:
        if isinstance(parcel.callback.body, Delta):
            lane.torn = parcel.callback.reply_to

    async def _work(self, key: tuple[str, str], lane: _Lane) -> None:
        # No await between seeing the lane empty and forgetting it: `put` finds it or makes one.
        while lane.parcels:
            parcel = lane.parcels[0]
            try:
                if self._worth_posting(lane, parcel) and not await self._deliver(parcel):
                    self._lost(lane, parcel)
            finally:
                lane.parcels.popleft()
                self._file_bytes -= _size(parcel)
        del self._lanes[key]

    def _worth_posting(self, lane: _Lane, parcel: Parcel) -> bool:
        body = parcel.callback.body
        if not isinstance(body, Delta) or parcel.callback.reply_to != lane.torn:
            return True
        if body.replace:
            lane.torn = ""
        return body.replace

    async def _deliver(self, parcel: Parcel) -> bool:
        callback = parcel.callback.numbered(next(parcel.numbers))
        data = _encoded(callback)
        passing = isinstance(callback.body, _PASSING)
        delays = _BACKOFF.delays(within=self._retry_passing_for if passing else self._retry_for)
        while True:
            verdict = await self._post(parcel.url, data)
            if verdict is False and data != (instead := _instead_of(callback)):
                # The turn must end, even if what it came to cannot be told.
                data = instead
                continue
            if verdict is not None:
                return verdict
            delay = next(delays, None)
            if delay is None:
                log.warning("gave up a %s callback to %s", callback.body.type, parcel.url)
                return False
            await asyncio.sleep(delay)

    async def _post(self, url: str, data: bytes) -> bool | None:
        """True: taken. False: refused, and it would be again. None: worth another try."""
        if self._session is None:
            return False
        headers = {"Content-Type": "application/json"}
        try:
            # As a file it is written in pieces, and a large one does not hold Hermes up.
            body = io.BytesIO(data)
            async with self._session.post(
                url, data=body, headers=headers, allow_redirects=False
            ) as response:
                await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            log.debug("callback to %s failed: %s", url, error)
            return None
        if response.status >= 500:
            return None
        if response.status >= 300:
            log.warning("the bridge refused a callback with %d", response.status)
        return response.status < 300


def _instead_of(callback: Callback) -> bytes:
    """What is posted for a callback that the bridge refused; for all but finals the same."""
    if isinstance(callback.body, Final):
        failure = InternalFailure("Hermes's answer could not be passed on")
        callback = replace(callback, content="", body=Final("failed", Problem.of(failure)))
    return _encoded(callback)


def _encoded(callback: Callback) -> bytes:
    return json.dumps(callback.to_json()).encode()


def _told_of(parcel: Parcel) -> Parcel:
    """In the place of a file for which there is no room, the word that there is none."""
    body = parcel.callback.body
    name = body.name if isinstance(body, File) else body.type
    log.warning("dropped the file %s: too many wait", name)
    lost = f"the file {name} was not handed over: too many files wait"
    return replace(parcel, callback=replace(parcel.callback, content=lost, body=Notice()))


def _size(parcel: Parcel) -> int:
    body = parcel.callback.body
    return len(body.data) if isinstance(body, File) and body.data is not None else 0
