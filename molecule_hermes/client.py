"""A small A2A client: what `molecule-hermes send` and `card` do."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TextIO

import httpx
from a2a.client import A2ACardResolver, A2AClientError, Client, ClientConfig, ClientFactory
from a2a.helpers import get_text_parts
from a2a.types import (
    AgentCard,
    Message,
    Part,
    Role,
    SendMessageRequest,
    StreamResponse,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
)
from a2a.utils.errors import A2AError
from google.protobuf.json_format import MessageToDict

from molecule_hermes.errors import StartError

__all__ = ["connect", "fetch_card", "message", "send"]

_FAILED = {
    TaskState.TASK_STATE_FAILED: "failed",
    TaskState.TASK_STATE_REJECTED: "rejected",
    TaskState.TASK_STATE_CANCELED: "canceled",
}


@asynccontextmanager
async def _http(token: str, timeout: float) -> AsyncGenerator[httpx.AsyncClient, None]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    limits = httpx.Timeout(timeout, connect=5.0)
    async with httpx.AsyncClient(headers=headers, timeout=limits, trust_env=False) as client:
        yield client


async def fetch_card(url: str, token: str = "") -> AgentCard:
    async with _http(token, 10.0) as http:
        return await _card(http, url)


@asynccontextmanager
async def connect(
    url: str, token: str = "", *, timeout: float = 660.0
) -> AsyncGenerator[Client, None]:
    """The SDK's client for the agent at `url`; raises `StartError` when nobody is there."""
    async with _http(token, timeout) as http:
        card = await _card(http, url)
        for interface in card.supported_interfaces:
            # The token goes where the user pointed, wherever the card points.
            interface.url = url
        yield ClientFactory(ClientConfig(httpx_client=http)).create(card)


async def _card(http: httpx.AsyncClient, url: str) -> AgentCard:
    try:
        return await A2ACardResolver(http, url).get_agent_card()
    except (A2AClientError, httpx.HTTPError) as error:
        raise StartError(
            f"no agent answers at {url}", "start one with `molecule-hermes up`, or check --url"
        ) from error


def message(text: str, context_id: str = "", task_id: str = "") -> SendMessageRequest:
    return SendMessageRequest(
        message=Message(
            message_id=uuid.uuid4().hex,
            role=Role.ROLE_USER,
            parts=[Part(text=text)],
            context_id=context_id,
            task_id=task_id,
        )
    )


async def send(
    url: str,
    text: str,
    out: TextIO,
    err: TextIO,
    *,
    context_id: str = "",
    token: str = "",
    raw: bool = False,
) -> int:
    """Streams the reply to `out` and progress to `err`; 0 when the task completed."""
    printer = _RawPrinter(out) if raw else _Printer(out, err)
    try:
        async with connect(url, token) as client:
            async for event in client.send_message(message(text, context_id)):
                printer.show(event)
    except (A2AError, httpx.HTTPError) as error:
        raise StartError(_one_line(error), _hint(error)) from error
    return printer.end()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _hint(error: Exception) -> str:
    return "pass a token with --token" if "401" in str(error) else ""


class _RawPrinter:
    """Each event as a line of JSON."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self.state = TaskState.TASK_STATE_UNSPECIFIED

    def show(self, event: StreamResponse) -> None:
        self._out.write(json.dumps(MessageToDict(event), ensure_ascii=False) + "\n")
        self._out.flush()
        self.state = (_status(event) or TaskStatus(state=self.state)).state

    def end(self) -> int:
        return 0 if self.state == TaskState.TASK_STATE_COMPLETED else 1


class _Printer:
    """The reply as it comes; what happens beside it on the second stream."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._err = err
        self._context_id = ""
        self._open = False
        self._status = TaskStatus()

    def show(self, event: StreamResponse) -> None:
        if event.HasField("task"):
            self._context_id = event.task.context_id
        if event.HasField("artifact_update"):
            self._text(event.artifact_update)
        if status := _status(event):
            self._status = status
            if status.state == TaskState.TASK_STATE_WORKING and status.HasField("message"):
                self._line("· " + " ".join(get_text_parts(status.message.parts)))

    def end(self) -> int:
        self._close()
        state = self._status.state
        if word := _FAILED.get(state):
            reason = " ".join(get_text_parts(self._status.message.parts))
            self._line(f"{word}: {reason}" if reason else word)
        if self._context_id:
            self._line(f"(continue with --context {self._context_id})")
        return 0 if state == TaskState.TASK_STATE_COMPLETED else 1

    def _text(self, update: TaskArtifactUpdateEvent) -> None:
        if self._open and not update.append:
            self._close()
        text = "".join(get_text_parts(update.artifact.parts))
        self._out.write(text)
        self._out.flush()
        self._open = self._open or bool(text)

    def _line(self, text: str) -> None:
        self._close()
        self._err.write(text + "\n")
        self._err.flush()

    def _close(self) -> None:
        if self._open:
            self._out.write("\n")
            self._out.flush()
            self._open = False


def _status(event: StreamResponse) -> TaskStatus | None:
    if event.HasField("status_update"):
        return event.status_update.status
    if event.HasField("task"):
        return event.task.status
    return None
