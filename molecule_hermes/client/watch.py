"""Shows the deliveries of an agent as they come: `GET /deliveries`, with a cursor."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, TextIO

import httpx

from molecule_hermes.backoff import Backoff
from molecule_hermes.errors import ConfigError, StartError

__all__ = ["ServerSentEvents", "Shown", "Watching", "watch"]

_BACKOFF = Backoff(first=0.5, longest=10.0, jitter=0.2)
_SILENT = 60.0
"""Seconds without a byte after which the connection counts as lost; the bridge sends a comment
every 15."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_REFUSALS = {
    400: "check --after and --since",
    401: "pass a peer's token with --token",
    403: "ask the operator which agents you may reach",
    404: "the agent speaks in turns only, or its bridge is too old",
}


@dataclass(slots=True)
class ServerSentEvents:
    """Puts lines together to events. `cursor` is the id of the last event that is complete."""

    cursor: str = ""
    _kind: str = ""
    _data: list[str] = field(default_factory=list)
    _id: str = ""

    def take(self, line: str) -> str | None:
        """The data of the event that ends with this line, if one does."""
        if line:
            self._add(line)
            return None
        data, self._data = self._data, []
        self.cursor = self._id or self.cursor
        return "\n".join(data) if data else None

    def _add(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "id" and "\0" not in value:
            self._id = value


@dataclass(frozen=True, slots=True)
class Shown:
    """What is shown, and how."""

    out: TextIO
    err: TextIO
    context: str = ""
    """Only deliveries of this context; empty for all."""
    as_json: bool = False
    quiet: bool = False
    """Only the texts of deliveries that have ended."""

    def event(self, data: str) -> None:
        """An event that cannot be read is not shown."""
        try:
            event = json.loads(data)
            task = event["task"]
            wanted = not self.context or task["contextId"] == self.context
        except (ValueError, TypeError, KeyError, RecursionError):
            return
        if not wanted:
            return
        if self.as_json:
            print(json.dumps(event, ensure_ascii=False), file=self.out, flush=True)
        else:
            self._text(event.get("kind"), task)

    def note(self, text: str) -> None:
        if not self.quiet:
            print(self._safe(text, self.err), file=self.err, flush=True)

    def _text(self, kind: object, task: dict[str, Any]) -> None:
        about = task.get("metadata") or {}
        job = f": {about['job']}" if about.get("job") else ""
        title = f"{about.get('cause', 'delivery')}{job}"
        if kind != "ended":
            self.note(f"[{title}] began; task {task.get('id')}, context {task.get('contextId')}")
            return
        state = str((task.get("status") or {}).get("state", "")).removeprefix("TASK_STATE_").lower()
        why = "" if state == "completed" else _reason(task)
        self.note(f"[{title}] {state}{why}; task {task.get('id')}")
        if text := _reply(task):
            print(self._safe(text, self.out), file=self.out, flush=True)

    def _safe(self, text: str, stream: TextIO) -> str:
        """Without what a terminal would obey."""
        if not stream.isatty():
            return text
        return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def _reply(task: dict[str, Any]) -> str:
    artifacts = [a for a in task.get("artifacts") or () if a.get("artifactId") == "reply"]
    parts = [part for artifact in artifacts for part in artifact.get("parts") or ()]
    return "".join(str(part.get("text", "")) for part in parts)


def _reason(task: dict[str, Any]) -> str:
    message = (task.get("status") or {}).get("message") or {}
    text = " ".join(str(part.get("text", "")) for part in message.get("parts") or ())
    return f" ({text})" if text else ""


class Watching:
    """Follows the deliveries at a URL for ever. `cursor` says how far it has come."""

    def __init__(self, url: str, token: str, shown: Shown, *, since: str, after: str) -> None:
        self._url = f"{url}/deliveries"
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._shown = shown
        self._since = since
        self._events = ServerSentEvents(after)
        self._connected = False
        self._failures = 0

    @property
    def cursor(self) -> str:
        return self._events.cursor

    async def run(self) -> None:
        """Raises `StartError` if the bridge refuses, or never answered."""
        limits = httpx.Timeout(_SILENT, connect=5.0)
        async with httpx.AsyncClient(
            headers=self._headers, timeout=limits, trust_env=False
        ) as http:
            while True:
                await self._follow(http)
                self._failures += 1
                if self._failures == 1:
                    self._shown.note("the connection was lost; connecting again …")
                await asyncio.sleep(_BACKOFF.delay(min(self._failures, 20)))

    async def _follow(self, http: httpx.AsyncClient) -> None:
        """Returns when the connection is lost."""
        self._events = ServerSentEvents(self._events.cursor)
        headers = {"Last-Event-ID": self.cursor} if self.cursor else {}
        params = {"since": self._since} if self._since and not self.cursor else {}
        try:
            async with http.stream("GET", self._url, headers=headers, params=params) as response:
                self._require_taken(response.status_code)
                if response.status_code == 200:
                    await self._show(response.aiter_lines())
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            if not self._connected:
                raise StartError(
                    f"no agent answers at {self._url.removesuffix('/deliveries')}",
                    "start one with `molecule-hermes up`, or check --url",
                ) from error

    async def _show(self, lines: AsyncIterator[str]) -> None:
        self._connected = True
        async for line in lines:
            if (data := self._events.take(line)) is not None:
                self._shown.event(data)
            self._failures = 0

    def _require_taken(self, status: int) -> None:
        if hint := _REFUSALS.get(status):
            kind = ConfigError if status == 400 else StartError
            raise kind(f"the agent refuses to show its deliveries (status {status})", hint)


async def watch(url: str, token: str, shown: Shown, *, since: str = "", after: str = "") -> None:
    """Shows deliveries until it is canceled; then says how to go on."""
    watching = Watching(url, token, shown, since=since, after=after)
    try:
        await watching.run()
    finally:
        if watching.cursor:
            shown.note(f"to go on from here: --after {watching.cursor}")
