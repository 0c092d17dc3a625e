"""The artifacts `reply` and `reasoning`: streamed text, coalesced into updates.

The SDK's request handler copies and saves the whole task for every update, so one update per token
is quadratic (measured: 17 s for 2,000 tokens on its SQLite store). The first piece is sent at once.
Later pieces are sent at most once per `interval`, or when `size` characters are waiting that are at
least a sixteenth of the text before them. So the cost of a burst grows linearly with its length.

The last update restates the whole text, because google-adk takes the update with `lastChunk` for
the whole reply.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Self

from a2a.helpers import new_text_part
from a2a.server.tasks import TaskUpdater
from a2a.types import Part, Task

__all__ = ["REASONING", "REPLY", "ReplyArtifact", "artifact_text"]

REPLY = "reply"
REASONING = "reasoning"


class ReplyArtifact:
    """An async context manager that sends the buffered text when its interval has passed."""

    def __init__(
        self,
        updater: TaskUpdater,
        name: str = REPLY,
        *,
        text: str = "",
        on_flush: Callable[[int], None] = lambda seq: None,
        interval: float = 0.05,
        size: int = 2048,
    ) -> None:
        """`text` is what the artifact has already. `on_flush` gets the number of the last event
        whose text goes out, just before it does."""
        self._updater = updater
        self._name = name
        self._on_flush = on_flush
        self._seq = -1
        self._interval = interval
        self._size = size
        self._sent: list[str] = [text] if text else []
        self._sent_size = len(text)
        self._pending: list[str] = []
        self._pending_size = 0
        self._exists = self._append = bool(text)
        self._next_at = 0.0
        self._sending = asyncio.Lock()
        self._flusher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._flusher is not None:
            async with self._sending:  # an update that is being sent is not cut off
                self._flusher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._flusher

    async def add(self, text: str, *, replace: bool = False, seq: int = -1) -> None:
        """Adds text. With `replace`, the text replaces all text so far."""
        self._seq = max(self._seq, seq)
        if replace:
            self._sent.clear()
            self._sent_size = 0
            self._pending.clear()
            self._pending_size = 0
            self._append = False
        self._pending.append(text)
        self._pending_size += len(text)
        enough = max(self._size, self._sent_size // 16)
        due = self._exists and time.monotonic() >= self._next_at
        if due or self._pending_size >= enough:
            await self.flush()
        elif self._flusher is None or self._flusher.done():
            # The first piece is sent in the loop's next iteration: if the end of the turn has
            # arrived together with it, the reply is a single update.
            self._flusher = asyncio.create_task(self._flush_in_time(), name=f"{self._name}-flusher")

    async def flush(self) -> None:
        """Sends the buffered text, so that the next event comes after it."""
        async with self._sending:
            if self._pending:
                await self._send("".join(self._take()))

    async def finish(self, text: str) -> None:
        """Sends the last update, after which the artifact's text is `text`. Without any text,
        there is no artifact."""
        async with self._sending:
            await self._send_last(text)

    async def finish_with(self, data: Part) -> None:
        """Sends the only update of an answer that is data."""
        await self._updater.add_artifact([data], REPLY, name=REPLY, append=False, last_chunk=True)

    async def keep(self) -> None:
        """Sends the last update of a turn that did not complete. Streamed text stays."""
        async with self._sending:
            self._take()
            await self._send_last("".join(self._sent))

    def _take(self) -> list[str]:
        self._sent_size += self._pending_size
        taken, self._pending, self._pending_size = self._pending, [], 0
        self._sent += taken
        return taken

    async def _send_last(self, text: str) -> None:
        self._pending.clear()
        if text or self._exists:
            self._append = False
            await self._send(text, last=True)

    async def _send(self, text: str, *, last: bool = False) -> None:
        self._on_flush(self._seq)
        append, self._append, self._exists = self._append, True, True
        self._next_at = time.monotonic() + self._interval
        await self._updater.add_artifact(
            [new_text_part(text)], self._name, name=self._name, append=append, last_chunk=last
        )

    async def _flush_in_time(self) -> None:
        while self._pending:
            await asyncio.sleep(max(0.0, self._next_at - time.monotonic()))
            await self.flush()


def artifact_text(task: Task, name: str = REPLY) -> str:
    """The text of the task's reply so far, or of another artifact."""
    parts = [p for a in task.artifacts if a.artifact_id == name for p in a.parts]
    return "".join(part.text for part in parts)
