"""The internals of Hermes that the plugin relies on.

Hermes offers platforms a base class and hooks, and no public way to do the rest. What is private
to Hermes, or replaces a function of Hermes, is reached here and nowhere else. Each function says
where its names were seen in hermes-agent 0.19.0; `tests/plugin/test_hermes_api.py` holds each of
them against the installed Hermes.

Hermes's modules are imported in the functions, so that the plugin loads without Hermes.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeAlias

__all__ = [
    "State",
    "add_event_handler",
    "can_show_image",
    "clear_questions",
    "context_of",
    "cost_of",
    "current_message_id",
    "enter_folder",
    "has_agent",
    "has_session",
    "hermes_home",
    "is_background_review",
    "is_interrupted",
    "lend_api_key",
    "listen_to_reasoning",
    "open_approvals",
    "path_for_tools",
    "remove_event_handler",
    "report_connected",
    "report_disconnected",
    "report_fatal",
    "resolve_approval",
    "resolve_clarify",
    "session_id_of",
    "session_key_of",
    "state",
    "steer",
    "strip_from_tools",
    "take_unheard",
    "widen_executor",
    "withhold_toolsets",
    "working_directory",
]

State: TypeAlias = Literal["ready", "starting", "draining"]
_EventHandler: TypeAlias = Callable[[str, Any], None]


# The gateway and its sessions.


def state(runner: Any) -> State:
    """What the gateway does with a new message.

    `GatewayRunner._draining` (gateway/run.py:3140) is set at shutdown and
    `_external_drain_active` (run.py:3045) by an operator. `_startup_restore_in_progress`
    (run.py:3063) is set while sessions are restored at boot: Hermes then parks messages and
    reports their end early.
    """
    if runner is None:
        return "starting"
    if runner._draining or runner._external_drain_active:
        return "draining"
    return "starting" if runner._startup_restore_in_progress else "ready"


def widen_executor(runner: Any, threads: int) -> None:
    """Lets Hermes run this many turns at once, at least its own 10.

    `GatewayRunner._get_executor` (gateway/run.py:16404) makes a pool of 10 threads at the first
    turn and keeps it in `_executor` (run.py:3182). A turn that asks a question keeps its thread.
    """
    if runner is not None and runner._executor is None:
        runner._executor = ThreadPoolExecutor(max(threads, 10), "hermes-gateway")


def session_key_of(source: Any) -> str:
    """The key of a chat's session, as `BasePlatformAdapter.handle_message` makes it.

    `build_session_key` (gateway/session.py:904; called in gateway/platforms/base.py:4783).
    """
    from gateway.session import build_session_key

    return str(build_session_key(source))


def has_session(adapter: Any, session_key: str) -> bool:
    """Whether Hermes works on the session or has a message for it.

    `BasePlatformAdapter._active_sessions` and `_pending_messages`
    (gateway/platforms/base.py:2459, 2460).
    """
    return session_key in adapter._active_sessions or session_key in adapter._pending_messages


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


def report_connected(adapter: Any) -> None:
    """`BasePlatformAdapter._mark_connected` (gateway/platforms/base.py:2789)."""
    adapter._mark_connected()


def report_disconnected(adapter: Any) -> None:
    """`BasePlatformAdapter._mark_disconnected` (gateway/platforms/base.py:2796)."""
    adapter._mark_disconnected()


def report_fatal(adapter: Any, code: str, message: str) -> None:
    """Shows an error that a retry does not cure in Hermes's health report.

    `BasePlatformAdapter._set_fatal_error` (gateway/platforms/base.py:2802).
    """
    adapter._set_fatal_error(code, message, retryable=False)


# The agent of a session.


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


# Events.


def add_event_handler(runner: Any, event: str, handler: _EventHandler) -> None:
    """Has Hermes call the handler at each such event.

    `HookRegistry` has no method for it, only `_handlers` (gateway/hooks.py:64).
    """
    handlers = runner.hooks._handlers.setdefault(event, [])
    if handler not in handlers:
        handlers.append(handler)


def remove_event_handler(runner: Any, event: str, handler: _EventHandler) -> None:
    with contextlib.suppress(ValueError):
        runner.hooks._handlers.get(event, []).remove(handler)


# Inside a turn.


def current_message_id() -> str:
    """The message that this thread or task works on; empty outside of a turn.

    `get_session_env` (gateway/session_context.py:304).
    """
    from gateway.session_context import get_session_env

    return str(get_session_env("HERMES_SESSION_MESSAGE_ID") or "")


def is_background_review() -> bool:
    """Whether this thread runs Hermes's review of a turn that has ended.

    `is_background_review` (tools/skill_provenance.py:75), set at agent/turn_context.py:308.
    """
    from tools.skill_provenance import is_background_review as reviews

    return bool(reviews())


def cost_of(model: str, provider: str, base_url: str, usage: Mapping[str, Any]) -> float | None:
    """What a model call cost in US dollars; None if Hermes does not know the price.

    `estimate_usage_cost` (agent/usage_pricing.py:1202), which Hermes itself has just called with
    the same figures (agent/conversation_loop.py:2311), so that it knows the prices by now.
    """
    from agent.usage_pricing import CanonicalUsage, estimate_usage_cost

    kinds = ("input", "output", "cache_read", "cache_write", "reasoning")
    counts = {f"{kind}_tokens": int(usage.get(f"{kind}_tokens") or 0) for kind in kinds}
    cost = estimate_usage_cost(
        model, CanonicalUsage(**counts), provider=provider, base_url=base_url
    ).amount_usd
    return None if cost is None else float(cost)


def enter_folder(folder: Path, session_id: str) -> None:
    """Makes the folder the working directory of the turn that begins.

    `set_session_cwd` (agent/runtime_cwd.py:44) is for the prompt and the files that are read
    into it; Hermes runs the agent in a copy of this context. The terminal looks the folder up
    under the session's key (tools/terminal_tool.py:2454), the file tools and execute_code under
    its id (`record_session_cwd`, terminal_tool.py:1090). A folder below, where a `cd` of an
    earlier turn led, stays.
    """
    from agent.runtime_cwd import set_session_cwd
    from gateway.session_context import get_session_env
    from tools.terminal_tool import get_session_cwd, record_session_cwd

    set_session_cwd(str(folder))
    for key in (get_session_env("HERMES_SESSION_KEY"), session_id):
        if not Path(get_session_cwd(key) or "").is_relative_to(folder):
            record_session_cwd(key, str(folder))


def is_interrupted() -> bool:
    """Whether Hermes wants the tool that runs in this thread to stop.

    `is_interrupted` (tools/interrupt.py:62).
    """
    from tools.interrupt import is_interrupted as interrupted

    return bool(interrupted())


def working_directory() -> Path:
    """The agent's working directory; outside of a turn this is `terminal.cwd`.

    `resolve_agent_cwd` (agent/runtime_cwd.py:60).
    """
    from agent.runtime_cwd import resolve_agent_cwd

    return Path(resolve_agent_cwd())


def hermes_home() -> Path:
    """`get_hermes_home` (hermes_constants.py:107)."""
    from hermes_constants import get_hermes_home

    return Path(get_hermes_home())


def path_for_tools(path: Path) -> str:
    """The path of something in a cache as the agent's tools see it, which may be in a container.

    `to_agent_visible_cache_path` (tools/credential_files.py:473).
    """
    from tools.credential_files import to_agent_visible_cache_path

    return str(to_agent_visible_cache_path(str(path)))


def can_show_image(path: Path) -> bool:
    """Whether Hermes can turn the image into one that models accept; otherwise it drops it.

    `_file_to_data_url` (agent/image_routing.py:615).
    """
    from agent.image_routing import _file_to_data_url

    return _file_to_data_url(path) is not None


# Questions.


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


# The process, before Hermes runs.


def strip_from_tools(always: Iterable[str], names: Iterable[str] = ()) -> None:
    """Keeps variables out of the environment of what Hermes's tools start.

    Hermes strips the variables in `_HERMES_PROVIDER_ENV_BLOCKLIST`
    (tools/environments/local.py:332): API_SERVER_KEY and most model keys, but not a plugin's
    secret. Agents of other vendors that Hermes starts (`inherit_credentials`) lose only those in
    `_ALWAYS_STRIP_KEYS` (local.py:504).
    """
    from tools.environments import local

    # Any: both are read before they are replaced, so that a Hermes without them fails loudly.
    hermes: Any = local
    hermes._HERMES_PROVIDER_ENV_BLOCKLIST |= {*always, *names}
    hermes._ALWAYS_STRIP_KEYS |= {*always}


def lend_api_key(variable: str, key: str) -> None:
    """Sets the variable only while Hermes reads its configuration from the environment.

    The API server gets its key from the configuration (gateway/config.py:2007), also when it is
    started again, so nothing needs the variable later. Replaces `load_gateway_config`
    (config.py:1187). gateway.run takes the name when it is imported, so it must not have been.
    """
    from gateway import config

    load = config.load_gateway_config

    @functools.wraps(load)
    def load_gateway_config() -> Any:
        os.environ[variable] = key
        try:
            return load()
        finally:
            os.environ.pop(variable, None)

    config.load_gateway_config = load_gateway_config


def withhold_toolsets(names: Iterable[str], platforms: frozenset[str]) -> None:
    """Makes agents for these platforms without the toolsets, and without memory in the prompt.

    Replaces `AIAgent.__init__` (run_agent.py:423); subagents inherit
    (tools/delegate_tool.py:1166). This is done in the process, not in config.yaml, because that
    also holds for the operator's own use of Hermes, and tools can write to it.
    """
    import run_agent

    withheld = list(names)
    init = run_agent.AIAgent.__init__

    @functools.wraps(init)
    def narrowed(self: Any, *args: Any, **given: Any) -> None:
        if given.get("platform") in platforms:
            given["disabled_toolsets"] = [*(given.get("disabled_toolsets") or ()), *withheld]
            # Without the toolset Hermes still shows MEMORY.md and USER.md to the model
            # (agent/system_prompt.py:483) and has them written after turns.
            given["skip_memory"] = given.get("skip_memory") or "memory" in withheld
        init(self, *args, **given)

    run_agent.AIAgent.__init__ = narrowed
