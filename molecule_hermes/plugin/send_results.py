"""What Hermes is told about something that it sent. Imported inside Hermes only."""

from __future__ import annotations

import uuid
from typing import Any

from gateway.platforms.base import SendResult

__all__ = ["not_sent", "sent"]


def sent() -> Any:
    # Without an id Hermes assumes that the message cannot be edited, and stops streaming.
    return SendResult(success=True, message_id=uuid.uuid4().hex)


def not_sent(reason: str) -> Any:
    return SendResult(success=False, error=reason)
