"""Messages to a task that is working: they reach the running turn."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from a2a.helpers import get_text_parts
from a2a.server.agent_execution import RequestContext, SimpleRequestContextBuilder
from a2a.server.context import ServerCallContext
from a2a.types import Message, SendMessageRequest, Task

from molecule_hermes.errors import InternalFailure, TurnFailure
from molecule_hermes.protocol import status as updates
from molecule_hermes.protocol.active_turn import ActiveTurn
from molecule_hermes.protocol.validation import MAX_STEERS
from molecule_hermes.text import safe_name
from molecule_hermes.transports.base import Transport
from molecule_hermes.turns.features import Feature
from molecule_hermes.turns.run import State
from molecule_hermes.wire import MAX_STEER, Steered

__all__ = ["Steering", "SteeringContextBuilder"]

logger = logging.getLogger(__name__)

_READS = "the agent reads the message while it works"
_ADDED = "the message was added to the task, which has not begun yet"


class Steering:
    """Passes peers' messages to their running turns, and tells the peers what became of them."""

    def __init__(
        self, transport: Transport, show_open: Callable[[ActiveTurn], Awaitable[None]]
    ) -> None:
        """`show_open` shows the open questions of a turn."""
        self._transport = transport
        self._show_open = show_open

    @property
    def supported(self) -> bool:
        return Feature.STEERING in self._transport.features

    async def take(self, active: ActiveTurn, message: Message) -> None:
        """Takes a message once. Its outcome is shown before the turn ends: `showing` is held."""
        async with active.showing:
            if active.run.ended or message.message_id in active.steered:
                return
            active.steered.add(message.message_id)
            queued = active.run.state is State.QUEUED
            outcome = await self._outcome(active, message)
            text = _ADDED if queued else _READS
            text = text if outcome.accepted else f"not taken: {outcome.reason}"
            await self._show(active, message.message_id, outcome, text)

    async def _show(self, active: ActiveTurn, message_id: str, outcome: Steered, text: str) -> None:
        if active.run.ended:
            return
        await active.reasoning.flush()
        await active.reply.flush()
        await updates.steered(active.updater, message_id, outcome, text)
        if active.run.open:  # the peer wrote before it was asked
            await self._show_open(active)

    async def _outcome(self, active: ActiveTurn, message: Message) -> Steered:
        text, refusal = _text(message)
        if active.run.stop is not None:
            refusal = "the task is being canceled"
        elif len(active.steered) > MAX_STEERS:
            refusal = f"a task takes at most {MAX_STEERS} messages while it works"
        if refusal:
            return Steered(False, refusal)
        if active.run.state is State.QUEUED and self.supported:
            active.additions.append(text)
            return Steered(True)
        try:
            return await self._transport.steer(active.turn, text)
        except TurnFailure as failure:
            return Steered(False, f"the message may not have reached Hermes: {failure.message}")
        except Exception:
            logger.exception("turn %s could not be steered", active.turn.message_id)
            return Steered(False, InternalFailure().message)


def _text(message: Message) -> tuple[str, str]:
    """The message's text, or why it cannot steer a turn: Hermes takes only text there."""
    for number, part in enumerate(message.parts, 1):
        if part.WhichOneof("content") in ("raw", "url", "data"):
            name = safe_name(part.filename) if part.filename else part.WhichOneof("content")
            return "", (
                f"part {number} ({name}) is not text; a running turn takes only text, so send the "
                "part in a new message, without taskId"
            )
    text = "\n".join(get_text_parts(message.parts)).strip()
    if not text:
        return "", "the message has no text"
    if len(text) > MAX_STEER:
        return "", f"the text is longer than {MAX_STEER:,} characters"
    return text, ""


class SteeringContextBuilder(SimpleRequestContextBuilder):
    """For the SDK's `DefaultRequestHandler`, which keeps a message to a working task until the turn
    has ended, and then drops it. It builds the message's context before that."""

    def __init__(self, steer: Callable[[str, Message], Awaitable[str]]) -> None:
        """`steer` takes a message to a task; it returns the task's context, if it is known."""
        super().__init__()
        self._steer = steer

    async def build(
        self,
        context: ServerCallContext,
        params: SendMessageRequest | None = None,
        task_id: str | None = None,
        context_id: str | None = None,
        task: Task | None = None,
    ) -> RequestContext:
        if task_id and params is not None:
            # Without it, the SDK invents a context, and refuses all events of the turn.
            context_id = await self._steer(task_id, params.message) or context_id
        return await super().build(context, params, task_id, context_id, task)
