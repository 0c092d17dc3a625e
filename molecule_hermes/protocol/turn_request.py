"""A peer's request as a turn, before its content is read."""

from __future__ import annotations

import uuid

from a2a.server.agent_execution import RequestContext

from molecule_hermes.errors import BadRequest, Interrupted
from molecule_hermes.protocol.caller import Caller
from molecule_hermes.protocol.chain import Chain
from molecule_hermes.protocol.policy import Policy
from molecule_hermes.turns.model import Turn
from molecule_hermes.turns.outbound import Outbound

__all__ = ["caller_of", "refuse_an_orphaned_answer", "turn_of"]


def caller_of(context: RequestContext) -> Caller:
    """In a server of somebody else's, the user is the peer of the only agent."""
    user = context.call_context.user
    if isinstance(user, Caller):
        return user
    return Caller(user.user_name if user.is_authenticated else "")


def turn_of(context: RequestContext, policy: Policy) -> Turn:
    caller = caller_of(context)
    return Turn(
        message_id=uuid.uuid4().hex,
        peer=caller.peer,
        agent=caller.agent,
        profile=policy.profile,
        toolsets=policy.toolsets,
        context_id=context.context_id or "",
        task_id=context.task_id or "",
        text="",
        a2a_message_id=context.message.message_id if context.message is not None else "",
        system_prompt=policy.system_prompt,
        outbound=_outbound(context, policy),
    )


def _outbound(context: RequestContext, policy: Policy) -> Outbound | None:
    """None also for a turn that no message began: nothing says which agents led to it."""
    if policy.reach is None or context.message is None:
        return None
    try:
        return policy.reach.after(Chain.of(context.message))
    except BadRequest:  # the turn ends with it before Hermes gets it
        return None


def refuse_an_orphaned_answer(context: RequestContext) -> None:
    """The task waits for an answer, but its turn is gone: the bridge was restarted."""
    if context.current_task is not None:
        raise Interrupted(
            "the turn that asked is gone",
            hint="it may have run in part: find out what it did, then send a new message, without "
            "taskId",
        )
