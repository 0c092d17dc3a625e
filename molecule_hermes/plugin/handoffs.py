"""Conversations that are handed over to a chat: bound before their turn, unbound if it fails.

Until the turn has ended, a file in Hermes's home says what was replaced, so that a Hermes that died
meanwhile puts it right at its next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import stat
from dataclasses import asdict
from pathlib import Path
from typing import Any

from molecule_hermes.errors import BadRequest
from molecule_hermes.plugin import hermes_api
from molecule_hermes.plugin.hermes_api import Binding, NotBoundError
from molecule_hermes.plugin.settings import PLATFORM
from molecule_hermes.wire import Transcript

__all__ = ["Handoffs"]

log = logging.getLogger(__name__)

_MAX_RECORD = 4096


_REQUEST_WITHIN = 90.0
"""Seconds within which a bridge ends what Hermes's CLI asks for."""


class Handoffs:
    """`folder` is where the records are; it need not exist."""

    def __init__(self, runner: Any, folder: Path) -> None:
        self._runner = runner
        self._folder = folder
        self._bound: dict[str, Binding] = {}
        """By message: what takes its conversation."""

    async def begin(self, message_id: str, source: Any, handed: Transcript) -> None:
        """Puts the conversation into the chat. Raises `BadRequest` if Hermes does not take it."""
        try:
            binding = await hermes_api.bind(self._runner, source, handed, before=self._remember)
        except NotBoundError as error:
            raise BadRequest(f"Hermes did not take the conversation: {error}", hint="") from error
        self._bound[message_id] = binding
        log.info("session %s goes on as %s", handed.session_id, binding.session_id)

    async def conclude(self, message_id: str, *, failed: bool) -> None:
        """The message's turn has ended and Hermes has left the chat."""
        binding = self._bound.pop(message_id, None)
        if binding is None:
            return
        if failed:
            await hermes_api.unbind(self._runner, binding)
        await asyncio.to_thread(self._path(binding).unlink, missing_ok=True)

    def attach(self) -> None:
        """From now on, the bridge does what Hermes's own command for handoffs asks for."""
        hermes_api.take_requests(self._runner, PLATFORM, within=_REQUEST_WITHIN)

    def detach(self) -> None:
        if self._runner is not None:
            hermes_api.leave_requests(self._runner)

    async def restore(self) -> None:
        """Puts right what a Hermes that died has left."""
        for path in await asyncio.to_thread(lambda: sorted(self._folder.glob("*.json"))):
            try:
                binding = await asyncio.to_thread(_read, path)
                if not await hermes_api.has_answer(self._runner, binding):
                    await hermes_api.unbind(self._runner, binding)
                    log.warning("session %s was not handed over", binding.session_id)
            except Exception:
                log.exception("a handoff that was interrupted cannot be put right (%s)", path)
            with contextlib.suppress(OSError):
                path.unlink()

    def _remember(self, binding: Binding) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path(binding).write_text(json.dumps(asdict(binding)))

    def _path(self, binding: Binding) -> Path:
        return self._folder / f"{binding.session_id}.json"


def _read(path: Path) -> Binding:
    """Tools of the agent can write to the folder: a pipe would be waited for for ever."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{path} is not a file")
        return Binding(**json.loads(file.read(_MAX_RECORD)))
