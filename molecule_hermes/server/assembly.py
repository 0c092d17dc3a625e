"""Builds the executor's collaborators from the settings."""

from __future__ import annotations

from typing import Any

from molecule_hermes.agents.outbound import OutboundCalls
from molecule_hermes.config import Settings
from molecule_hermes.net.addresses import PublicOnly
from molecule_hermes.protocol.incoming import Attachments
from molecule_hermes.protocol.workspace_files import WorkspaceFiles
from molecule_hermes.server.identity import identity_of
from molecule_hermes.telemetry.metrics import Metrics
from molecule_hermes.transports.base import Transport
from molecule_hermes.turns.scheduler import Scheduler

__all__ = ["create_calls", "create_scheduler", "executor_options", "running_of_peer"]


def create_calls(settings: Settings, metrics: Metrics) -> OutboundCalls:
    """What the agents ask of other agents. Bridges with one public URL are one in chains."""
    identity, name = identity_of(settings), settings.public_url or ""
    return OutboundCalls(settings, identity, name=name, metrics=metrics)


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
