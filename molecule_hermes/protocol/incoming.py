"""Converts a peer's message for Hermes: to one text and a list of files.

Text documents and data parts become part of the text, under their names. Other files are passed on
as files. A part that Hermes does not take is refused by name, never dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import mimetypes
import re
import uuid
from collections.abc import AsyncIterator, Sequence

from a2a.types import Message, Part
from google.protobuf import json_format

from molecule_hermes.errors import BadRequest, TooLarge
from molecule_hermes.net.addresses import PublicOnly
from molecule_hermes.net.downloads import Download, DownloadError, OversizeError, fetch
from molecule_hermes.protocol.media_types import MismatchError, decoded, is_text_type, media_type_of
from molecule_hermes.protocol.numbers import with_whole_numbers
from molecule_hermes.protocol.workspace_files import WorkspaceFiles
from molecule_hermes.text import safe_name
from molecule_hermes.turns.features import Feature
from molecule_hermes.turns.model import Attachment
from molecule_hermes.turns.scheduler import Scheduler
from molecule_hermes.wire import IMAGE_TYPES, MAX_ATTACHMENTS, MAX_FILE_BYTES

__all__ = [
    "MAX_INLINE_BYTES",
    "MAX_TOTAL_BYTES",
    "NOTHING_TO_DO",
    "Attachments",
    "fenced",
    "inlined",
    "is_whole",
    "without_bytes",
]

NOTHING_TO_DO = "empty prompt — nothing to do"

"""Image types that every model with vision accepts."""
MAX_INLINE_BYTES = 128 * 1024
"""A longer text document is passed on as a file."""
MAX_TOTAL_BYTES = 20 * 2**20
"""Bytes of all files of a message. In base64 and with a long text, they fit the wire's body."""
_KEPT_BYTES = 16 * 1024
_FETCHING = 8
"""Messages whose files are fetched concurrently. The scheduler does not bound their bytes yet."""

_JSON = "application/json"


class Attachments:
    """Reads messages for a transport with the given features."""

    def __init__(
        self,
        features: frozenset[Feature] = frozenset(Feature),
        *,
        addresses: PublicOnly | None = None,
        max_files: int = MAX_ATTACHMENTS,
        max_file: int = MAX_FILE_BYTES,
        fetch_timeout: float = 60.0,
        workspace: WorkspaceFiles | None = None,
    ) -> None:
        self._features = features
        self._addresses = addresses or PublicOnly()
        self._workspace = workspace or WorkspaceFiles()
        self._max_files = max_files
        self._max_file = max_file
        self._fetch_timeout = fetch_timeout
        self._fetching = Scheduler(_FETCHING)

    async def read(
        self, message: Message | None, peer: str = ""
    ) -> tuple[str, tuple[Attachment, ...]]:
        """Returns the text, with documents inlined, and the files. Raises `BadRequest`, `TooLarge`,
        or `Busy` if too many messages already wait for their files."""
        parts = message.parts if message is not None else ()
        text = "\n".join(part.text for part in parts if _kind(part) == "text").strip()
        files = await self._files(parts, peer)
        documents = [file for file in files if _is_document(file)]
        text = inlined(text, documents)
        if not text and not files:
            raise BadRequest(NOTHING_TO_DO, hint="send a text part or a file")
        return text, tuple(file for file in files if not _is_document(file))

    async def _files(self, parts: Sequence[Part], peer: str) -> list[Attachment]:
        numbered = [(n, part) for n, part in enumerate(parts, 1) if _kind(part) != "text"]
        if len(numbered) > self._max_files:
            raise TooLarge(
                f"the message has {len(numbered)} files; this agent accepts {self._max_files}",
                hint="send fewer at once",
            )
        fetches = any(_kind(part) == "url" for _, part in numbered)
        room = MAX_TOTAL_BYTES
        files: list[Attachment] = []
        async with self._place(peer) if fetches else contextlib.nullcontext():
            give_up_at = asyncio.get_running_loop().time() + self._fetch_timeout
            for number, part in numbered:
                reader = _PartReader(self._addresses, self._workspace, number, part, give_up_at)
                file = await reader.read(min(self._max_file, room))
                self._require_taken(reader.label, file)
                room -= len(file.data)
                files.append(file)
        return files

    @contextlib.asynccontextmanager
    async def _place(self, peer: str) -> AsyncIterator[None]:
        """Waits for a slot. Peers alternate here as they do for Hermes, so slow servers of one peer
        delay another peer by one fetch at most."""
        async with self._fetching.enter(uuid.uuid4().hex, peer) as slot:
            await slot.wait()
            yield

    def _require_taken(self, label: str, file: Attachment) -> None:
        image = file.media_type in IMAGE_TYPES and Feature.IMAGES_IN in self._features
        if image or _is_document(file) or Feature.FILES_IN in self._features:
            return
        raise BadRequest(
            f"{label} is {file.media_type}, which this agent does not accept as a file",
            hint=f"it accepts text documents up to {MAX_INLINE_BYTES:,} bytes, data parts and "
            + ", ".join(sorted(IMAGE_TYPES)),
        )


class _PartReader:
    """Reads one part as a file. Every failure names the part."""

    def __init__(
        self,
        addresses: PublicOnly,
        workspace: WorkspaceFiles,
        number: int,
        part: Part,
        give_up_at: float,
    ) -> None:
        self._addresses = addresses
        self._workspace = workspace
        self._number = number
        self._part = part
        self._give_up_at = give_up_at
        what = safe_name(part.filename, "") or safe_name(part.media_type, "") or _kind(part)
        self.label = f"part {number} ({what or 'empty'})"

    async def read(self, limit: int) -> Attachment:
        match _kind(self._part):
            case "raw":
                content = Download("", "", self._part.raw)
            case "url":
                content = await self._fetched(limit)
            case "data":
                content = Download(f"data-{self._number}.json", _JSON, self._json())
            case _:
                raise BadRequest(f"{self.label} has no content", hint="send its bytes or a URL")
        if len(content.data) > limit:
            raise self._too_large(limit)
        return self._file(content)

    def _file(self, content: Download) -> Attachment:
        given = safe_name(self._part.filename or content.name, "")
        declared = self._part.media_type or content.media_type
        try:
            media_type = media_type_of(given, declared, content.data)
        except MismatchError as error:
            raise BadRequest(
                f"{self.label} {error}", hint="declare what it is, or leave the media type out"
            ) from error
        suffix = mimetypes.guess_extension(media_type) or ""
        return Attachment(given or f"file-{self._number}{suffix}", media_type, content.data)

    async def _fetched(self, limit: int) -> Download:
        try:
            async with asyncio.timeout_at(self._give_up_at):
                if self._workspace.accepts(self._part.url):
                    return await self._workspace.read(self._part.url, limit)
                return await fetch(self._part.url, self._addresses, limit)
        except OversizeError as error:
            raise self._too_large(limit) from error
        except TimeoutError as error:
            raise self._not_fetched("it takes too long") from error
        except DownloadError as error:
            raise self._not_fetched(str(error)) from error

    def _json(self) -> bytes:
        try:
            value = with_whole_numbers(json_format.MessageToDict(self._part.data))
        except ValueError as error:
            raise BadRequest(
                f"{self.label} holds NaN or Infinity, which JSON does not have",
                hint="send finite numbers only",
            ) from error
        return json.dumps(value, ensure_ascii=False, indent=1).encode()

    def _not_fetched(self, why: str) -> BadRequest:
        return BadRequest(
            f"{self.label} cannot be fetched: {why}",
            hint="send the bytes themselves, or a public http(s) URL",
        )

    def _too_large(self, limit: int) -> TooLarge:
        return TooLarge(
            f"{self.label} is larger than the {limit:,} bytes that are left for it",
            hint="send smaller or fewer files at once",
        )


def inlined(text: str, documents: Sequence[Attachment]) -> str:
    """Returns the text, followed by each document under its name."""
    blocks = [text] if text else []
    for document in documents:
        title = f"[Attached document: {document.name} ({document.media_type})]"
        blocks.append(f"{title}\n{fenced(decoded(document.data) or '')}")
    return "\n\n".join(blocks)


def fenced(body: str) -> str:
    """The text between two fences that it does not contain."""
    fence = "`" * max(3, _longest_fence(body) + 1)
    return f"{fence}\n{body}\n{fence}"


def without_bytes(message: Message) -> Message:
    """Returns the message as the task's history keeps it, without the bytes of large files.

    The part keeps an empty `raw`: the SDK cannot convert a part without content for 0.3 clients.
    """
    kept = Message()
    kept.CopyFrom(message)
    for part in kept.parts:
        if (size := len(part.raw)) > _KEPT_BYTES:
            part.metadata["omittedSha256"] = hashlib.sha256(part.raw).hexdigest()
            part.metadata["omittedBytes"] = size
            part.raw = b""
    return kept


def is_whole(kept: Message) -> bool:
    """Whether a message in a task's history has all its bytes."""
    return not any("omittedBytes" in part.metadata for part in kept.parts)


def _kind(part: Part) -> str:
    kind = part.WhichOneof("content")
    # A part without any field counts as an empty text.
    return kind or ("" if part.filename or part.media_type else "text")


def _is_document(file: Attachment) -> bool:
    """Whether the file is inlined into the prompt."""
    short = len(file.data) <= MAX_INLINE_BYTES
    return short and is_text_type(file.media_type) and decoded(file.data) is not None


def _longest_fence(text: str) -> int:
    return max((len(run) for run in re.findall(r"`+", text)), default=0)
