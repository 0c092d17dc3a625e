"""Translates Hermes's hooks into effects on a turn.

Hermes calls hooks from its worker threads, in the context of the message they work on. An effect
is computed there and applied on the event loop, in order: all hooks of a turn are applied before
its end (both go through `call_soon_threadsafe`).
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

from molecule_hermes.plugin.dispatcher import Dispatcher
from molecule_hermes.plugin.hermes_api import current_message_id
from molecule_hermes.plugin.settings import PLATFORM
from molecule_hermes.plugin.turn import Turn
from molecule_hermes.plugin.verdict import provider_failure
from molecule_hermes.text import redact
from molecule_hermes.wire import Tool, Usage

__all__ = ["Effect", "Hooks", "Listener"]

Effect: TypeAlias = Callable[[Dispatcher, Turn], None]

_PREVIEW = 200
_PARSED = 2**20
"""A longer result is not parsed: the agent's thread would wait for it."""
_CLARIFY = "clarify"
"""The tool with which the agent asks. Only its end shows that it gave up waiting."""


class Listener(Protocol):
    def on_hook(self, message_id: str, effect: Effect) -> None:
        """Called from any thread."""


class Hooks:
    """Registered with Hermes once; adapters attach and detach."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def register(self, ctx: Any) -> None:
        for name, read in _READERS.items():
            ctx.register_hook(name, functools.partial(self._called, read))

    def attach(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def detach(self, listener: Listener) -> None:
        with contextlib.suppress(ValueError):
            self._listeners.remove(listener)

    def _called(self, read: Callable[[Mapping[str, Any]], Effect | None], **given: Any) -> None:
        message_id = current_message_id()
        # A subagent runs in its parent's context, under the platform "subagent"
        # (tools/delegate_tool.py:1382): its text is not the turn's answer.
        if not message_id or given.get("platform", PLATFORM) != PLATFORM:
            return
        effect = read(given)
        if effect is None:
            return
        for listener in list(self._listeners):
            listener.on_hook(message_id, effect)


def _agent_started(given: Mapping[str, Any]) -> Effect:
    prompt = given.get("user_message")

    def effect(dispatcher: Dispatcher, turn: Turn) -> None:
        turn.agent_ran = True
        dispatcher.agent_runs(turn, prompt if isinstance(prompt, str) else "")

    return effect


def _answered(given: Mapping[str, Any]) -> Effect:
    text = str(given.get("assistant_response") or "")
    history = given.get("conversation_history")
    written = text.strip() in _last_words(history)

    def effect(dispatcher: Dispatcher, turn: Turn) -> None:
        turn.answered(text, written=written)
        if turn.unheard:
            turn.heard(_tool_results(history))

    return effect


def _tool_results(history: object) -> str:
    """All results of tools, to which Hermes adds what the agent is steered with."""
    messages = history if isinstance(history, list) else []
    contents = [m.get("content") for m in messages if isinstance(m, Mapping) and _is_tool(m)]
    blocks = [block for c in contents if isinstance(c, list) for block in c]
    texts = [b.get("text") for b in blocks if isinstance(b, Mapping)]
    return "\n\n".join(text for text in (*contents, *texts) if isinstance(text, str))


def _is_tool(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "tool"


def _last_words(history: object) -> str:
    """What the model wrote last. An explanation of Hermes's is not in the history
    (agent/turn_finalizer.py:440)."""
    last = history[-1] if isinstance(history, list) and history else None
    words = last.get("content") if isinstance(last, Mapping) else None
    return words if isinstance(words, str) else ""


def _model_called(given: Mapping[str, Any]) -> Effect:
    usage = _usage(given)
    return lambda dispatcher, turn: turn.model_called(usage)


def _model_failed(given: Mapping[str, Any]) -> Effect:
    error = given.get("error")
    text = str(error.get("message") or "") if isinstance(error, Mapping) else ""
    status = given.get("status_code")
    code = status if isinstance(status, int) else None
    reason = str(given.get("reason") or "")
    failure = provider_failure(text or reason, code, reason)
    retry = _retry(given)

    def effect(dispatcher: Dispatcher, turn: Turn) -> None:
        turn.model_failed(failure)
        if retry:
            dispatcher.notice(turn, f"the model call failed ({failure.kind}); {retry}")

    return effect


def _retry(given: Mapping[str, Any]) -> str:
    """Which of its retries Hermes makes next; "" if it makes none.

    Hermes keeps its own notices about retries from platforms such as ours (gateway/run.py:74).
    """
    failed, attempts = given.get("retry_count"), given.get("max_retries")
    if not given.get("retryable") or not isinstance(failed, int) or not isinstance(attempts, int):
        return ""
    return f"retry {failed + 1} of {attempts - 1}" if failed + 1 < attempts else ""


def _session_ended(given: Mapping[str, Any]) -> Effect | None:
    if not given.get("interrupted"):
        return None

    def effect(dispatcher: Dispatcher, turn: Turn) -> None:
        turn.interrupted = True

    return effect


def _tool_started(given: Mapping[str, Any]) -> Effect:
    tool = Tool(str(given.get("tool_name") or "tool")[:_PREVIEW], "start", _preview(given))
    return lambda dispatcher, turn: dispatcher.emit(turn, turn.callback(tool))


def _tool_ended(given: Mapping[str, Any]) -> Effect:
    took = given.get("duration_ms")
    seconds = max(0.0, took / 1000) if isinstance(took, int | float) else None
    tool = Tool(
        str(given.get("tool_name") or "tool")[:_PREVIEW],
        "end",
        _preview(given),
        duration=seconds,
        ok=given.get("status") == "ok",
        output=_output(given),
    )

    def effect(dispatcher: Dispatcher, turn: Turn) -> None:
        dispatcher.emit(turn, turn.callback(tool))
        if tool.tool == _CLARIFY:
            dispatcher.clarified(turn)

    return effect


def _approval_answered(given: Mapping[str, Any]) -> Effect | None:
    if given.get("choice") != "timeout":
        return None
    return lambda dispatcher, turn: dispatcher.approval_expired(turn)


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Effect | None]] = {
    "pre_llm_call": _agent_started,
    "post_llm_call": _answered,
    "post_api_request": _model_called,
    "api_request_error": _model_failed,
    "on_session_end": _session_ended,
    "pre_tool_call": _tool_started,
    "post_tool_call": _tool_ended,
    "post_approval_response": _approval_answered,
}


def _preview(given: Mapping[str, Any]) -> str:
    """The arguments of the call on one line."""
    arguments = given.get("args")
    if not isinstance(arguments, Mapping) or not arguments:
        return ""
    first = next(iter(arguments.values()))
    text = first if isinstance(first, str) else json.dumps(arguments, default=str)
    return _brief(text)


def _output(given: Mapping[str, Any]) -> str:
    """The beginning of the tool's result on one line; most tools return JSON with an `output`."""
    result = given.get("result")
    text = result if isinstance(result, str) else json.dumps(result, default=str) if result else ""
    if len(text) < _PARSED:
        with contextlib.suppress(ValueError, RecursionError):
            parsed = json.loads(text)
            if isinstance(parsed, dict) and isinstance(parsed.get("output"), str):
                text = parsed["output"] or text
    return _brief(text)


def _brief(text: str) -> str:
    # Lone surrogates, which JSON allows, are refused on the wire.
    readable = text[: 10 * _PREVIEW].encode("utf-8", "replace").decode()
    text = redact(" ".join(readable.split()))
    return text if len(text) <= _PREVIEW else text[: _PREVIEW - 1] + "…"


def _usage(given: Mapping[str, Any]) -> Usage | None:
    usage = given.get("usage")
    if not isinstance(usage, Mapping):
        return None
    total, prompt, output = (
        int(usage.get(name) or 0) for name in ("total_tokens", "prompt_tokens", "output_tokens")
    )
    return Usage(prompt, output, total, str(given.get("response_model") or given.get("model")))
