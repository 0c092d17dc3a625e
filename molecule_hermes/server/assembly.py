"""Builds the transport and the executor's collaborators from the settings."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from molecule_hermes.config import Settings
from molecule_hermes.hermes.credentials import Credentials
from molecule_hermes.net.addresses import PublicOnly
from molecule_hermes.protocol.incoming import Attachments
from molecule_hermes.protocol.workspace_files import WorkspaceFiles
from molecule_hermes.transports.base import Transport
from molecule_hermes.transports.chat.transport import ChatTransport
from molecule_hermes.transports.plugin.transport import PluginTransport
from molecule_hermes.transports.smoke import SmokeTransport
from molecule_hermes.turns.features import TransportName
from molecule_hermes.turns.scheduler import Scheduler

__all__ = [
    "TransportChoice",
    "address_of",
    "create_scheduler",
    "create_transport",
    "executor_options",
    "running_of_peer",
    "transport_to_running_hermes",
]

TransportChoice: TypeAlias = TransportName | Literal["auto"]
"""With `auto`, the plugin is used if Hermes has bound it, else chat completions."""


def transport_to_running_hermes(settings: Settings) -> TransportName:
    """A Hermes that somebody else runs is reached through the plugin only on request."""
    return "plugin" if settings.platform_enabled else "chat"


def address_of(name: TransportName, settings: Settings) -> str:
    return settings.platform_url if name == "plugin" else settings.hermes_api_base


def create_transport(
    name: TransportName, settings: Settings, credentials: Credentials, *, patient: bool = False
) -> Transport:
    """With `patient`, turns wait for a Hermes that is being restarted."""
    if settings.smoke_mode:
        return SmokeTransport()
    if name == "plugin":
        return PluginTransport(
            settings.platform_url,
            secret=credentials.secret,
            callback_host=settings.callback_host,
            callback_port=settings.callback_port,
            patient=patient,
        )
    return ChatTransport(
        settings.hermes_api_base,
        credentials.api_key,
        model=settings.model,
        patient=patient,
    )


def create_scheduler(settings: Settings) -> Scheduler:
    return Scheduler(
        settings.max_running,
        settings.max_waiting,
        settings.max_waiting_of_peer,
        max_running_of_peer=running_of_peer(settings),
        max_waiting_bytes=settings.max_waiting_bytes,
        max_paused=settings.max_questions,
        max_paused_of_peer=settings.max_questions_of_peer,
    )


def executor_options(
    settings: Settings, transport: Transport, scheduler: Scheduler | None = None
) -> dict[str, Any]:
    """The keyword arguments of `HermesAgentProxyExecutor`, in our server and when embedded.

    Executors that share the bridge's capacity share the `scheduler`.
    """
    return {
        "scheduler": scheduler or create_scheduler(settings),
        "attachments": Attachments(
            transport.features,
            addresses=PublicOnly(settings.file_hosts),
            max_files=settings.max_files,
            max_file=settings.max_file,
            workspace=WorkspaceFiles(settings.workspace),
        ),
        "system_prompt": settings.system_prompt,
        "models": settings.models,
        "turn_timeout": settings.turn_timeout,
        "approvals": settings.approvals,
        "question_timeout": settings.question_timeout,
        "asks": settings.reply == "task",
    }


def running_of_peer(settings: Settings) -> int:
    """With several peers, no single peer may use all running turns."""
    if settings.max_running_of_peer or len(settings.peer_tokens) < 2:
        return settings.max_running_of_peer
    return max(1, settings.max_running - 1)
