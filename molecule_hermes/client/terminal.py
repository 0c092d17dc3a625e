"""The terminal: shows a task's events and reads answers.

The reply goes to standard output, everything else to standard error.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import sys
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from a2a.helpers import get_text_parts
from a2a.types import Artifact, Part, StreamResponse, TaskState, TaskStatus
from google.protobuf.json_format import MessageToDict

from molecule_hermes.client.save_folder import SaveFolder
from molecule_hermes.protocol.numbers import with_whole_numbers

__all__ = ["Printer", "RawPrinter", "command_name", "forget_typed", "read_line", "status_in"]

_ENDS = {
    TaskState.TASK_STATE_FAILED: "failed",
    TaskState.TASK_STATE_REJECTED: "rejected",
    TaskState.TASK_STATE_CANCELED: "canceled",
    TaskState.TASK_STATE_AUTH_REQUIRED: "authorization required",
}
_GOES_ON = "the agent goes on after this answer"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Printer:
    """Shows a task's events as they arrive. What a snapshot repeats is shown once."""

    def __init__(self, out: TextIO, err: TextIO, folder: SaveFolder | None = None) -> None:
        self._screen = _Screen(out, err)
        self._folder = folder
        self._texts: dict[str, str] = {}
        self._partial: set[str] = set()
        """Artifacts that began before this command: their first text was appended to more."""
        self._files: dict[str, int] = {}
        self._writing = ""
        self._shown_status = ""
        self.kept_all = True
        """False when a file could not be saved."""

    def show(self, event: StreamResponse) -> None:
        if event.HasField("message"):
            self._replace("message", _text(event.message.parts))
        for artifact, append in _artifacts(event):
            if not _files(artifact):
                show = self._append if append else self._replace
                show(artifact.artifact_id, _text(artifact.parts))
        self.show_files(event)
        if (status := status_in(event)) and status.state == TaskState.TASK_STATE_WORKING:
            self._progress(status)

    def show_files(self, event: StreamResponse) -> None:
        for artifact, append in _artifacts(event):
            files = _files(artifact)
            known = self._files.get(artifact.artifact_id, 0)
            # A snapshot repeats known files; an update has only new ones.
            new = files[known:] if event.HasField("task") else files
            self._files[artifact.artifact_id] = known + len(new) if append else len(files)
            for part in new:
                self._file(part, part.filename or artifact.name, _text(artifact.parts))

    def say(self, text: str) -> None:
        self._screen.line("", text)

    def still_waiting(self) -> None:
        """Shows that the command waits, if a person watches and has seen nothing yet."""
        if self._screen.untouched and self._screen.is_watched:
            self._screen.line("· ", "waiting for the agent …")

    def ask(self, text: str) -> None:
        self._screen.line("? ", text)

    def prompt(self) -> None:
        self._screen.prompt("answer> ")

    def answered(self) -> None:
        self._screen.line_was_ended()

    def interrupted(self, text: str) -> None:
        self._screen.was_interrupted()
        self.say(text)

    def end_line(self) -> None:
        self._screen.end_line()

    def end(self, status: TaskStatus, metadata: Mapping[str, Any], context_id: str) -> None:
        self.end_line()
        if word := _ENDS.get(status.state):
            reason = _text(status.message.parts)
            self.say(f"{word}: {reason}" if reason else word)
        if figures := _figures(metadata):
            self.say(f"({figures})")
        if context_id and status.state != TaskState.TASK_STATE_REJECTED:
            self.say(f"(continue with --context {context_id})")

    def _append(self, artifact_id: str, text: str) -> None:
        if artifact_id not in self._texts:
            self._partial.add(artifact_id)
        self._write(artifact_id, text)
        self._texts[artifact_id] = self._texts.get(artifact_id, "") + text

    def _replace(self, artifact_id: str, text: str) -> None:
        """Starts a new line if the text was revised, and continues the line if it only grew.

        The last update restates the whole text. Of an artifact that began before this command,
        only the rest is shown.
        """
        shown = self._texts.get(artifact_id, "")
        if artifact_id in self._partial and text.endswith(shown):
            shown = text
        self._partial.discard(artifact_id)
        if not text.startswith(shown):
            self._screen.end_line()
            shown = ""
        self._write(artifact_id, text[len(shown) :])
        self._texts[artifact_id] = text

    def _write(self, artifact_id: str, text: str) -> None:
        if text and self._writing != artifact_id:
            self._screen.end_line()
            self._writing = artifact_id
        self._screen.text(text)

    def _progress(self, status: TaskStatus) -> None:
        message_id = status.message.message_id
        if status.HasField("message") and (message_id != self._shown_status or not message_id):
            self._shown_status = message_id
            # An interim answer has been shown while it was written.
            interim = "interim" in status.message.metadata
            text = _GOES_ON if interim else _text(status.message.parts, "\n")
            self._screen.line("· ", text)

    def _file(self, part: Part, name: str, caption: str) -> None:
        about = [part.media_type] if part.media_type else []
        if part.WhichOneof("content") == "url":
            where = f" at {part.url}"
        else:
            about.append(_size(len(part.raw)))
            where = self._keep(name, part.raw)
        shown = f"file: {name or 'without a name'}" + (f" ({', '.join(about)})" if about else "")
        self._screen.line("· ", shown + where + (f" — {caption}" if caption else ""))

    def _keep(self, name: str, data: bytes) -> str:
        if self._folder is None:
            return "; use --save DIR to keep it"
        try:
            return f" saved to {self._folder.keep(name, data)}"
        except OSError as error:
            self.kept_all = False
            return f" could not be saved completely: {error.strerror}"


class RawPrinter(Printer):
    """Prints each event as a line of JSON, and only errors besides."""

    def show(self, event: StreamResponse) -> None:
        line = json.dumps(with_whole_numbers(MessageToDict(event)), ensure_ascii=False)
        self._screen.text(line + "\n")
        if self._folder is not None:
            self.show_files(event)

    def still_waiting(self) -> None:
        pass

    def ask(self, text: str) -> None:
        pass

    def end(self, status: TaskStatus, metadata: Mapping[str, Any], context_id: str) -> None:
        pass


class _Screen:
    """Two streams that may be the same terminal: an unfinished line on one is ended first."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._err = err
        self._unfinished: TextIO | None = None
        self.untouched = True

    @property
    def is_watched(self) -> bool:
        return self._err.isatty()

    def text(self, text: str) -> None:
        """Writes the text; a terminal gets control characters in escaped form."""
        if text:
            shown = _CONTROL.sub(lambda c: _escaped(c[0]), text) if self._out.isatty() else text
            self.untouched = False
            self._out.write(shown)
            self._out.flush()
            self._unfinished = None if text.endswith("\n") else self._out

    def line(self, mark: str, text: str) -> None:
        """Writes a line with escaped control characters; further lines are indented."""
        self.end_line()
        self.untouched = False
        shown = "".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in text.strip())
        self._err.write(mark + re.sub(r"\n(?=.)", "\n" + " " * len(mark), shown) + "\n")
        self._err.flush()

    def prompt(self, text: str) -> None:
        self.end_line()
        self._err.write(text)
        self._err.flush()
        self._unfinished = self._err

    def end_line(self) -> None:
        if self._unfinished is not None:
            self._unfinished.write("\n")
            self._unfinished.flush()
            self._unfinished = None

    def line_was_ended(self) -> None:
        """Enter at the prompt has ended the line."""
        self._unfinished = None

    def was_interrupted(self) -> None:
        """A terminal shows ^C, so the next text needs a new line."""
        if self._err.isatty():
            self._unfinished = self._unfinished or self._err


def forget_typed(terminal: int) -> None:
    """Discards keys that were pressed before the question was shown."""
    termios.tcflush(terminal, termios.TCIFLUSH)


async def read_line(terminal: int) -> str | None:
    """Reads a line; None at the end of the input. Not in a thread, which cannot be stopped."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    typed = b""

    def read() -> None:
        nonlocal typed
        try:
            piece = os.read(terminal, 4096)
        except BlockingIOError:
            return
        except OSError:  # the terminal is gone
            piece = b""
        typed += piece
        if not ended.done() and (not piece or typed.endswith(b"\n")):
            ended.set_result(None)

    loop.add_reader(terminal, read)
    try:
        await ended
    finally:
        loop.remove_reader(terminal)
        # libuv makes the terminal non-blocking, for all processes that use it.
        os.set_blocking(terminal, True)
    return typed.decode("utf-8", "replace").strip() if typed.endswith(b"\n") else None


def command_name() -> str:
    """The command as the user can type it, for hints that can be pasted."""
    path = Path(sys.argv[0])
    if path.name != "molecule-hermes":
        return "molecule-hermes"
    with contextlib.suppress(ValueError):
        path = path.absolute().relative_to(Path.cwd())
    return shlex.quote(str(path))


def status_in(event: StreamResponse) -> TaskStatus | None:
    if event.HasField("status_update"):
        return event.status_update.status
    return event.task.status if event.HasField("task") else None


def _artifacts(event: StreamResponse) -> list[tuple[Artifact, bool]]:
    """The artifacts, each with whether it appends to earlier content."""
    if event.HasField("artifact_update"):
        return [(event.artifact_update.artifact, event.artifact_update.append)]
    return [(artifact, False) for artifact in event.task.artifacts]


def _files(artifact: Artifact) -> list[Part]:
    return [part for part in artifact.parts if part.WhichOneof("content") in ("raw", "url")]


def _text(parts: Sequence[Part], between: str = "") -> str:
    return between.join(get_text_parts(parts))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _size(size: int) -> str:
    if size < 1024:
        return "1 byte" if size == 1 else f"{size} bytes"
    return f"{size / 1024:.1f} KiB" if size < 2**20 else f"{size / 2**20:.1f} MiB"


def _figures(metadata: Mapping[str, Any]) -> str:
    """Durations, tokens and model, as far as the agent reports them."""
    usage = metadata.get("usage")
    usage = usage if isinstance(usage, Mapping) else {}
    known = (
        ("{:.1f} s", metadata.get("durationSeconds")),
        ("first text after {:.1f} s", metadata.get("firstTextSeconds")),
        ("{:.0f} tokens", usage.get("totalTokens") or None),
    )
    figures = [form.format(value) for form, value in known if isinstance(value, int | float)]
    model = usage.get("model")
    return ", ".join([*figures, f"model {model}"] if isinstance(model, str) and model else figures)
