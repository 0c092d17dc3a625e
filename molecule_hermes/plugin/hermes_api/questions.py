"""The questions of Hermes's tools."""

from __future__ import annotations

__all__ = ["clear_questions", "open_approvals", "resolve_approval", "resolve_clarify"]


def resolve_approval(session_key: str, choice: str) -> bool:
    """Answers the oldest approval of the session; False if none waits.

    `resolve_gateway_approval` (tools/approval.py:2073) takes once, session, always or deny.
    """
    from tools.approval import resolve_gateway_approval

    return bool(resolve_gateway_approval(session_key, choice))


def open_approvals(session_key: str) -> list[tuple[str, str]]:
    """The session's approvals, oldest first: command and description as `send_exec_approval` gets
    them.

    `_gateway_queues` and `_lock` (tools/approval.py:2044, 2014), `_redact_approval_command`
    (gateway/run.py:340, applied in run.py:20655). The order of the calls of `send_exec_approval`
    may differ: threads that ask at the same time queue first and call then (approval.py:3080).
    """
    from gateway.run import _redact_approval_command
    from tools.approval import _gateway_queues, _lock

    with _lock:
        entries = [entry.data for entry in _gateway_queues.get(session_key, ())]
    return [
        (
            _redact_approval_command(data.get("command", "")),
            str(data.get("description", "dangerous command")),
        )
        for data in entries
    ]


def resolve_clarify(question_id: str, answer: str) -> bool:
    """Answers a question of the agent; False if it no longer waits.

    `resolve_gateway_clarify` (tools/clarify_gateway.py:150).
    """
    from tools.clarify_gateway import resolve_gateway_clarify

    return bool(resolve_gateway_clarify(question_id, answer))


def clear_questions(session_key: str) -> None:
    """Drops the agent's questions; one that stays takes the chat's next message for its answer.

    `clear_session` (tools/clarify_gateway.py:237).
    """
    from tools.clarify_gateway import clear_session

    clear_session(session_key)
