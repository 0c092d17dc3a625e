"""Connects to an agent by its card, and builds messages."""

from __future__ import annotations

import mimetypes
import uuid
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from a2a.client import A2ACardResolver, A2AClientError, Client, ClientConfig, ClientFactory
from a2a.helpers import new_raw_part
from a2a.types import AgentCard, Message, Part, Role, SendMessageRequest

from molecule_hermes.errors import ConfigError, StartError

__all__ = ["MAX_FILE", "connect", "fetch_card", "file_part", "message"]

MAX_FILE = 10 * 2**20
"""The maximum bytes of an attached file."""


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
    """The SDK's client for the agent at `url`. Raises `StartError` if no agent answers."""
    async with _http(token, timeout) as http:
        card = await _card(http, url)
        for interface in card.supported_interfaces:
            # The token must go to the URL that the user gave, whatever the card says.
            interface.url = url
        yield ClientFactory(ClientConfig(httpx_client=http)).create(card)


async def _card(http: httpx.AsyncClient, url: str) -> AgentCard:
    try:
        return await A2ACardResolver(http, url).get_agent_card()
    except (A2AClientError, httpx.HTTPError) as error:
        raise StartError(
            f"no agent answers at {url}", "start one with `molecule-hermes up`, or check --url"
        ) from error


def message(
    text: str, context_id: str = "", task_id: str = "", files: Iterable[Part] = ()
) -> SendMessageRequest:
    parts = list(files)
    if text or not parts:
        parts.insert(0, Part(text=text))
    return SendMessageRequest(
        message=Message(
            message_id=uuid.uuid4().hex,
            role=Role.ROLE_USER,
            parts=parts,
            context_id=context_id,
            task_id=task_id,
        )
    )


def file_part(path: Path) -> Part:
    """The file as a part, with its name and media type. Raises `ConfigError`."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE + 1)
    except OSError as error:
        raise ConfigError(f"--file {path}: {error.strerror}", "check the path") from None
    if len(data) > MAX_FILE:
        raise ConfigError(
            f"--file {path}: larger than {MAX_FILE // 2**20} MiB", "send a smaller file or a link"
        )
    name = path.name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    media_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return new_raw_part(data, media_type=media_type, filename=name)
