"""The gateway, its sessions, adapters and events."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeAlias

__all__ = [
    "State",
    "add_event_handler",
    "has_session",
    "remove_event_handler",
    "report_connected",
    "report_disconnected",
    "report_fatal",
    "session_key_of",
    "state",
    "widen_executor",
]

State: TypeAlias = Literal["ready", "starting", "draining"]
_EventHandler: TypeAlias = Callable[[str, Any], None]


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
