"""What the plugin answers to a message that is to steer a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from molecule_hermes.errors import InternalFailure
from molecule_hermes.wire import Steered, WireError

__all__ = ["NOT_THERE", "steered_of", "until"]

NOT_THERE = Steered(False, "Hermes does not have the task yet; send a new message in a moment")
_ENDED = Steered(False, "the turn has just ended; send a new message, without taskId")
_TOO_OLD = Steered(False, "the plugin inside Hermes is too old to steer a running turn")
_NOT_TAKEN = Steered(False, "Hermes does not take the message")

_PATIENCE = 3.0
_POLL = 0.05


async def until(condition: Callable[[], bool]) -> bool:
    """Waits a few seconds for the condition. A peer that sees WORKING may write at once, when the
    plugin does not have the message yet."""
    for _ in range(int(_PATIENCE / _POLL)):
        if condition():
            return True
        await asyncio.sleep(_POLL)
    return False


def steered_of(status: int, body: Mapping[str, object]) -> Steered:
    """Reads a response with status 200 or 404. An older plugin does not know the path."""
    if status == 404:
        return _ENDED if body.get("kind") == "not_found" else _TOO_OLD
    try:
        steered = Steered.parse(body)
        return steered if steered.accepted or steered.reason else _NOT_TAKEN
    except WireError as error:
        raise InternalFailure(f"the plugin's answer cannot be read: {error}") from error
