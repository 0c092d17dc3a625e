"""A turn as the message that the plugin gets."""

from __future__ import annotations

from molecule_hermes.turns.model import Turn
from molecule_hermes.wire import OUTBOUND, Attachment, Inbound, Origin

__all__ = ["inbound_of"]

_WANTS = ("subagent", "usage")
"""Callbacks that every turn takes, but that a plugin must not send to an older bridge."""


def inbound_of(turn: Turn, callback_url: str, bridge: str, *, asks: bool = False) -> Inbound:
    """With `asks`, the bridge takes what the agent asks of other agents."""
    return Inbound(
        chat_id=turn.conversation,
        peer_id=turn.peer or "anonymous",
        peer_name=turn.peer or "anonymous",
        message_id=turn.message_id,
        callback_url=callback_url,
        content=turn.text,
        attachments=tuple(
            Attachment(item.name, item.media_type, item.data) for item in turn.attachments
        ),
        metadata=Origin(
            a2a_message_id=_label(turn.a2a_message_id),
            a2a_task_id=_label(turn.task_id),
            a2a_context_id=_label(turn.context_id),
        ),
        bridge=bridge,
        system_prompt=turn.system_prompt,
        model=turn.model,
        response_format=turn.response_format,
        wants=(*_WANTS, *sorted(turn.extensions), *((OUTBOUND,) if asks else ())),
        agent=turn.agent,
        profile=turn.profile,
        toolsets=turn.toolsets,
        handoff=turn.handoff,
    )


def _label(name: str) -> str:
    """An id chosen by a peer, made valid for the wire."""
    return "".join(char if char.isprintable() else " " for char in name)[:256]
