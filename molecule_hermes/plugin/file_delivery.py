"""What Hermes calls to deliver the agent's files. Imported inside Hermes only."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from molecule_hermes.plugin import hermes_api
from molecule_hermes.plugin.dispatcher import Dispatcher
from molecule_hermes.plugin.files import FileRefusedError, linked_file, read_file
from molecule_hermes.plugin.hermes_api import current_message_id
from molecule_hermes.plugin.kept_files import KeptFiles
from molecule_hermes.plugin.send_results import not_sent, sent
from molecule_hermes.plugin.settings import PluginSettings
from molecule_hermes.plugin.turn import Turn
from molecule_hermes.plugin.work_folders import WorkFolders
from molecule_hermes.text import safe_name
from molecule_hermes.wire import Attachment, File

__all__ = ["FileDelivery", "not_available"]


class FileDelivery:
    """The part of the adapter that takes files from Hermes."""

    _dispatcher: Dispatcher
    _settings: PluginSettings
    _folders: WorkFolders | None
    _kept: KeptFiles
    owner: Callable[..., Turn | None]
    without_turn: Callable[..., Any]
    validate_media_delivery_path: Callable[[str], str | None]
    """Hermes's own (base.py)."""

    async def send_document(
        self, chat_id: str, file_path: str, caption: Any = None, file_name: Any = None, **_: Any
    ) -> Any:
        return await self._send_file(chat_id, file_path, caption, file_name)

    async def send_image_file(
        self, chat_id: str, image_path: str, caption: Any = None, **_: Any
    ) -> Any:
        return await self._send_file(chat_id, image_path, caption)

    async def send_voice(self, chat_id: str, audio_path: str, caption: Any = None, **_: Any) -> Any:
        return await self._send_file(chat_id, audio_path, caption)

    async def send_video(self, chat_id: str, video_path: str, caption: Any = None, **_: Any) -> Any:
        return await self._send_file(chat_id, video_path, caption)

    async def send_image(self, chat_id: str, image_url: str, caption: Any = None, **_: Any) -> Any:
        return await self._deliver_file(chat_id, caption, partial(linked_file, image_url))

    async def send_animation(
        self, chat_id: str, animation_url: str, caption: Any = None, **_: Any
    ) -> Any:
        return await self._deliver_file(chat_id, caption, partial(linked_file, animation_url))

    async def _send_file(self, chat_id: str, path: str, caption: Any, name: Any = None) -> Any:
        turn = self.owner(chat_id, current_message_id())
        read = partial(self._read, path, name or "", chat_id, turn)
        return await self._deliver_file(chat_id, caption, read)

    def read_for_peer(self, turn: Turn, path: str) -> Attachment:
        """A file that the agent hands to another agent: what it could also deliver. Called in the
        agent's thread. Raises `FileRefusedError`."""
        folders, chat_id = self._folders, turn.chat_id
        folder = folders.of(chat_id) if folders is not None else hermes_api.working_directory()
        file = self._read(str(Path(folder, path)), "", chat_id, turn)
        return Attachment(file.name, file.media_type, file.data or b"")

    def keep(self, turn: Turn, files: Sequence[Attachment]) -> Sequence[Path]:
        """Keeps files of other agents with those of the conversation's peer."""
        return self._kept.save(turn.chat_id, files)

    def _read(self, path: str, name: str, chat_id: str, turn: Turn | None) -> File:
        # Hermes's own list of protected files: keys, system files, its .env (base.py:1155).
        if self.validate_media_delivery_path(path) is None:
            raise FileRefusedError(not_available(name or path))
        read = partial(
            read_file,
            path,
            home=hermes_api.hermes_home(),
            limit=self._settings.max_file,
            name=name,
            kept=self._kept.root,
            own=self._kept.of(chat_id),
        )
        if self._folders is None:
            return read(cwd=hermes_api.working_directory())
        # After the turn it is unknown to which chat the media belong.
        since = turn.began if turn else math.inf
        return read(cwd=self._folders.of(chat_id), media_since=since)

    async def _deliver_file(self, chat_id: str, caption: Any, read: Callable[[], File]) -> Any:
        text = str(caption or "")
        try:
            file = await asyncio.to_thread(read)
            # Hermes delivers every file that an answer mentions, also those the peer has sent.
            data = file.data
            returned = data is not None and await asyncio.to_thread(self._kept.holds, chat_id, data)
        except FileRefusedError as error:
            if turn := self.owner(chat_id, current_message_id()):
                self._dispatcher.refuse(turn, str(error))
            return not_sent(str(error))
        turn = self.owner(chat_id, current_message_id())
        if turn is None:
            return self.without_turn()
        turn.has_files = True
        if not returned:
            self._dispatcher.emit(turn, turn.callback(file, text))
        return sent()


def not_available(path: str) -> str:
    return f"the file {safe_name(path)} is not available"
