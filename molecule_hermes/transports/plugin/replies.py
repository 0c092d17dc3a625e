"""Pending replies by message_id: passes the plugin's callbacks to the turns that wait for them.

No I/O and no clock. A reply is registered before its message is sent and forgotten when its turn
is over. A callback for any other message is stale.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import replace
from typing import Literal, Self

from molecule_hermes.errors import Draining, EmptyReply, InternalFailure, TurnFailure
from molecule_hermes.turns.model import (
    Canceled,
    Completed,
    Failed,
    FileProduced,
    Notice,
    Question,
    Reasoning,
    Spent,
    SubagentProgress,
    TextDelta,
    ToolProgress,
    Turn,
    TurnEvent,
    is_last,
)
from molecule_hermes.turns.outbound import TurnCalls
from molecule_hermes.wire import (
    Approval,
    Callback,
    Clarify,
    Delta,
    File,
    Final,
    Subagent,
    Tool,
)
from molecule_hermes.wire import Notice as WireNotice
from molecule_hermes.wire import Reasoning as WireReasoning
from molecule_hermes.wire import Spent as WireSpent

__all__ = ["Outcome", "Replies", "Reply", "event_of"]

Outcome = Literal["taken", "duplicate", "stale"]


class Reply:
    """The events of one message's turn. Forgotten on exit."""

    def __init__(self, replies: Replies, message_id: str, after: int = -1, agent: str = "") -> None:
        self._replies = replies
        self.message_id = message_id
        self._agent = agent
        self._events: asyncio.Queue[TurnEvent] = asyncio.Queue()
        self._last_seq = after
        self.ended = False
        self.final = False
        """Whether Hermes itself ended the turn, so that it needs no cancel."""
        self.calls: TurnCalls | None = None
        """What the turn asks of other agents; None if it may ask none."""

    @property
    def last_seq(self) -> int:
        """The number of the last callback; -1 before the first."""
        return self._last_seq

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.forget()

    def forget(self) -> None:
        """Takes no more callbacks."""
        self._replies._forget(self)

    async def next(self) -> TurnEvent:
        return await self._events.get()

    def add(self, event: TurnEvent) -> None:
        """Adds an event of the bridge's own. After a last one, callbacks are stale."""
        if not self.ended:
            self._put(event)

    def let_ask(self, turn: Turn) -> None:
        """Lets the turn ask other agents, if it may. The peer sees what they say they do."""
        if turn.outbound is not None:
            conversation = turn.conversation
            self.calls = turn.outbound.begin(conversation, lambda line: self.add(Notice(line)))

    def take(self, callback: Callback) -> Outcome:
        if self.ended or self._is_of_another(callback.agent):
            return "stale"
        if callback.seq is not None:
            # The plugin sends one at a time and repeats what was not acknowledged, so a number
            # that is not above the last one has been seen.
            if callback.seq <= self._last_seq:
                return "duplicate"
            self._last_seq = callback.seq
        self.final = self.final or isinstance(callback.body, Final)
        self._put(event_of(callback))
        return "taken"

    def _is_of_another(self, agent: str) -> bool:
        """Older plugins do not say for which agent a callback is."""
        return bool(self._agent and agent) and agent != self._agent

    def _put(self, event: TurnEvent) -> None:
        self._events.put_nowait(event)
        if is_last(event):
            self.ended = True


class Replies:
    def __init__(self, *, remember: int = 4096) -> None:
        self._pending: dict[str, Reply] = {}
        self.taken = 0
        """How many callbacks there were for pending replies."""
        self._over: OrderedDict[str, None] = OrderedDict()
        """The last messages whose turns are over."""
        self._remember = remember

    def __len__(self) -> int:
        return len(self._pending)

    def register(self, message_id: str, after: int = -1, agent: str = "") -> Reply:
        """The reply of a message to an agent. Callbacks up to the number `after` are known."""
        if message_id in self._pending:
            raise InternalFailure("two turns with one message_id")
        reply = self._pending[message_id] = Reply(self, message_id, after, agent)
        return reply

    def knows(self, message_id: str) -> bool:
        """Whether this bridge sent the message, or follows it, or did so until a while ago."""
        return message_id in self._pending or message_id in self._over

    def get(self, message_id: str) -> Reply | None:
        return self._pending.get(message_id)

    def take(self, callback: Callback) -> Outcome:
        """Hands a callback to the reply that waits for it. Never raises."""
        reply = self._pending.get(callback.reply_to)
        if reply is None:
            return "stale"
        self.taken += 1
        return reply.take(callback)

    def end_all(self, failure: TurnFailure | None = None) -> None:
        """Ends every pending reply with a failure, at shutdown or when Hermes is gone."""
        for reply in list(self._pending.values()):
            reply.add(Failed(failure or Draining()))

    def over(self, message_id: str) -> None:
        """Hermes need not send anything more for the message."""
        self._over[message_id] = None
        if len(self._over) > self._remember:
            self._over.popitem(last=False)

    def _forget(self, reply: Reply) -> None:
        if self._pending.get(reply.message_id) is reply:
            del self._pending[reply.message_id]
            self.over(reply.message_id)


def event_of(callback: Callback) -> TurnEvent:
    """What a callback means for the turn."""
    event = _event(callback)
    return event if callback.seq is None else replace(event, seq=callback.seq)


def _event(callback: Callback) -> TurnEvent:  # noqa: PLR0911 - one for each type
    body, text = callback.body, callback.content
    match body:
        case Delta():
            return TextDelta(text, replace=body.replace)
        case Tool():
            return _tool(body)
        case Subagent():
            return SubagentProgress(body.id, body.goal, body.phase, body.duration, body.ok)
        case WireReasoning():
            return Reasoning(text)
        case WireSpent():
            return Spent(body.usage, body.context)
        case File():
            return FileProduced(body.name, body.media_type, body.data, body.url, text)
        case Approval():
            about = (body.command, body.description)
            return Question(body.question_id, "approval", text, body.choices, *about)
        case Clarify():
            return Question(body.question_id, "clarify", text, body.choices)
        case Final():
            return _end(body, text)
        case WireNotice():
            if body.interim or body.unheard:
                return Notice(text, kind="interim" if body.interim else "unheard")
            models = (body.from_model, body.to_model)
            figures = (body.kind, body.attempt, body.of, *models)
            return Notice(text, body.withdraws, *figures, answer=body.answer)
        case _:
            return Notice("")  # a push that came again with what follows it


def _tool(body: Tool) -> ToolProgress:
    return ToolProgress(
        body.tool,
        body.phase,
        body.preview,
        body.duration,
        body.ok,
        body.output,
        call_id=body.id,
        args=body.args,
        error=body.error,
        result=body.result,
    )


def _end(final: Final, text: str) -> TurnEvent:
    figures = (final.usage, final.context)
    if final.status == "canceled":
        return Canceled(*figures)
    if final.error is not None:
        return Failed(final.error.failure(), *figures)
    if final.status == "failed":
        return Failed(InternalFailure(), *figures)
    if not text.strip() and not final.silent:
        return Failed(EmptyReply(), *figures)
    return Completed(text, *figures, incomplete=final.incomplete)
