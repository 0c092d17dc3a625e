"""Chats whose conversation is lent: to a terminal, or for good to another platform of Hermes.

Until that platform has it, a file in Hermes's home says what was there before, so that a Hermes
that died meanwhile puts it right at its next start.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from molecule_hermes.plugin import hermes_api
from molecule_hermes.plugin.hermes_api import Passing
from molecule_hermes.wire import HandOn, Lend

__all__ = ["LentChats"]

log = logging.getLogger(__name__)

_MAX_RECORD = 65_536


class LentChats:
    """`folder` is where the records are; it need not exist."""

    def __init__(self, adapter: Any, folder: Path) -> None:
        self._adapter = adapter
        self._folder = folder
        self._open: dict[str, str] = {}
        """By chat: the session that its operator has gone on with since its last turn."""

    async def open(self, lend: Lend) -> str:
        """The id of the chat's session. What is said in it from here on, the next turn knows."""
        await self.close(lend.chat_id)
        source = self._source(lend)
        source = replace(source, profile=lend.profile) if lend.profile else source
        session_id = await hermes_api.open_session(self._adapter.gateway_runner, source)
        self._open[lend.chat_id] = session_id
        return session_id

    async def close(self, chat_id: str) -> None:
        if session_id := self._open.pop(chat_id, ""):
            await hermes_api.reopen_session(self._adapter.gateway_runner, session_id)

    async def hand_on(self, request: HandOn) -> None:
        """Raises `NotBoundError`; then the chat has its conversation still."""
        runner, source = self._adapter.gateway_runner, self._source(request)
        passings: list[Passing] = []

        def before(passing: Passing) -> None:
            passings.append(passing)
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path(passing).write_text(json.dumps(asdict(passing)))

        try:
            await hermes_api.pass_on(
                runner, source, request.platform, seconds=request.seconds, before=before
            )
        except hermes_api.NotBoundError:
            await self._forget(passings)
            raise
        # After any other error, the next start looks whether all is right.
        await self._forget(passings)
        self._open.pop(request.chat_id, None)  # its conversation has ended here
        log.info("the conversation of %s goes on at %s", request.chat_id, request.platform)

    async def restore(self) -> None:
        """Puts right what a Hermes that died has left."""
        runner = self._adapter.gateway_runner
        for path in await asyncio.to_thread(lambda: sorted(self._folder.glob("*.json"))):
            try:
                passing = await asyncio.to_thread(_read, path)
                if not await hermes_api.has_passed(runner, passing):
                    await hermes_api.take_back(runner, passing)
                    log.warning("session %s was not handed on", passing.session_id)
            except Exception:
                log.exception("a handoff that was interrupted cannot be put right (%s)", path)
            await asyncio.to_thread(path.unlink, missing_ok=True)

    def _source(self, asked: Lend | HandOn) -> Any:
        name = asked.peer_name or asked.peer_id
        return self._adapter.build_source(
            chat_id=asked.chat_id,
            chat_name=name,
            chat_type="dm",
            user_id=asked.peer_id,
            user_name=name,
        )

    async def _forget(self, passings: Sequence[Passing]) -> None:
        for passing in passings:
            await asyncio.to_thread(self._path(passing).unlink, missing_ok=True)

    def _path(self, passing: Passing) -> Path:
        return self._folder / f"{passing.copy}.json"


def _read(path: Path) -> Passing:
    with path.open() as file:
        return Passing(**json.loads(file.read(_MAX_RECORD)))
