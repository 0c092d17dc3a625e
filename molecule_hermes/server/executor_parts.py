"""The executor's parts, as the settings want them: the same in our server and in others'."""

from __future__ import annotations

from typing import Any

from molecule_hermes.config import Settings
from molecule_hermes.net.addresses import PublicOnly
from molecule_hermes.protocol.incoming import Attachments
from molecule_hermes.transports.base import Transport
from molecule_hermes.turns.scheduler import Conversations

__all__ = ["executor_parts"]


def executor_parts(settings: Settings, transport: Transport) -> dict[str, Any]:
    """What `HermesAgentProxyExecutor` takes by name."""
    return {
        "conversations": Conversations(
            settings.max_running,
            settings.max_waiting,
            settings.max_waiting_of_peer,
            max_running_of_peer=_running_of_peer(settings),
            max_waiting_bytes=settings.max_waiting_bytes,
            max_paused=settings.max_questions,
            max_paused_of_peer=settings.max_questions_of_peer,
        ),
        "attachments": Attachments(
            transport.features,
            addresses=PublicOnly(settings.file_hosts),
            max_files=settings.max_files,
            max_file=settings.max_file,
        ),
        "turn_timeout": settings.turn_timeout,
        "approvals": settings.approvals,
        "question_timeout": settings.question_timeout,
    }


def _running_of_peer(settings: Settings) -> int:
    """With several peers, none takes the last place."""
    if settings.max_running_of_peer or len(settings.peer_tokens) < 2:
        return settings.max_running_of_peer
    return max(1, settings.max_running - 1)
