"""The agent of a session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = [
    "context_of",
    "has_agent",
    "listen_to_reasoning",
    "session_id_of",
    "steer",
    "take_unheard",
]


def _agent(runner: Any, session_key: str) -> Any:
    """The session's agent; None if it has none.

    `GatewayRunner._agent_cache` (gateway/run.py:3259) holds tuples that begin with the agent, from
    before its first turn until it has been idle for long.
    """
    cached = runner._agent_cache.get(session_key) if runner is not None else None
    return cached[0] if isinstance(cached, tuple) and cached else None


def listen_to_reasoning(
    runner: Any, session_key: str, callback: Callable[[str], None] | None
) -> None:
    """Has the session's agent call this with each piece of its model's reasoning, or nothing.

    `AIAgent.reasoning_callback` (run_agent.py:5223); the gateway sets none itself.
    """
    agent = _agent(runner, session_key)
    if agent is not None:
        agent.reasoning_callback = callback


def context_of(runner: Any, session_key: str) -> tuple[int, int] | None:
    """The tokens of the session's last prompt and of its model's context window.

    `AIAgent.context_compressor` with `last_prompt_tokens` (agent/turn_finalizer.py:539) and
    `context_length` (agent/conversation_loop.py:2268).
    """
    compressor = getattr(_agent(runner, session_key), "context_compressor", None)
    used = getattr(compressor, "last_prompt_tokens", None)
    window = getattr(compressor, "context_length", None)
    if not isinstance(used, int) or not isinstance(window, int) or used < 0 or window <= 0:
        return None
    return used, window


def session_id_of(runner: Any, session_key: str) -> str:
    """The id under which the session's agent stores its messages now; a compression changes it."""
    return str(getattr(_agent(runner, session_key), "session_id", None) or "")


def has_agent(runner: Any, session_key: str) -> bool:
    """Whether an agent works on the session, so that a stop reaches it.

    `GatewayRunner._running_agents` (gateway/run.py:3188) holds `_AGENT_PENDING_SENTINEL`
    (run.py:2008) while the agent is being made.
    """
    from gateway.run import _AGENT_PENDING_SENTINEL

    agent = runner._running_agents.get(session_key, _AGENT_PENDING_SENTINEL)
    return agent is not _AGENT_PENDING_SENTINEL


def steer(runner: Any, session_key: str, text: str) -> bool:
    """Adds a text to what the session's agent reads next; False if no agent can take it.

    `AIAgent.steer` (run_agent.py:2899) is thread-safe, strips the text and refuses only an empty
    one. The agent reads it after its next tool (agent/tool_executor.py:1011). What is left at the
    end of its answer runs as a further turn of the same message (gateway/run.py:21745).
    """
    if not has_agent(runner, session_key):
        return False
    return bool(runner._running_agents[session_key].steer(text))


def take_unheard(runner: Any, session_key: str) -> str:
    """Takes back the texts that the session's agent was steered with and has not read.

    The agent is kept for the session's next turn in `GatewayRunner._agent_cache`
    (gateway/run.py:3259), and with it a text that came after its answer, or before a failure.
    `AIAgent._drain_pending_steer` (run_agent.py:2935).
    """
    cached = runner._agent_cache.get(session_key)
    agent = cached[0] if isinstance(cached, tuple) else cached
    drain = getattr(agent, "_drain_pending_steer", None)
    return str(drain() or "") if drain is not None else ""
