"""Translates Hermes's hooks into effects on a turn.

Hermes calls hooks from its worker threads, in the context of the message they work on. An effect
is computed there and applied on the event loop, in order: all hooks of a turn are applied before
its end (both go through `call_soon_threadsafe`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

from molecule_hermes.plugin import tool_calls
from molecule_hermes.plugin.dispatcher import Dispatcher
from molecule_hermes.plugin.hermes_api import (
    current_message_id,
    current_platform,
    is_background_review,
)
from molecule_hermes.plugin.jobs import begun_job
from molecule_hermes.plugin.reasoning import reasoning_in
from molecule_hermes.plugin.settings import PLATFORM
from molecule_hermes.plugin.spending import model_of, usage_of
from molecule_hermes.plugin.subagents import SubagentRecord, Subagents
from molecule_hermes.plugin.tool_policy import ToolPolicy
from molecule_hermes.plugin.turn import Turn
from molecule_hermes.plugin.verdict import provider_failure
from molecule_hermes.wire import Notice, Subagent

__all__ = ["Effect", "Hooks", "Listener"]

Effect: TypeAlias = Callable[[Dispatcher, Turn], None]

_SUBAGENT = "subagent"
"""The platform of a subagent (tools/delegate_tool.py:1382)."""
_TOOL_DETAIL = "tool_detail"
_REASONING = "reasoning"
_CLARIFY = "clarify"
"""The tool with which the agent asks. Only its end shows that it gave up waiting."""


class Listener(Protocol):
    """Called from any thread."""

    def on_hook(self, message_id: str, effect: Effect) -> None: ...

    def on_agent_start(self, message_id: str) -> None:
        """Called in the agent's thread, before it calls its model."""

    def find(self, message_id: str) -> Turn | None:
        """The turn of a message that is not finished. Called from any thread."""


class Hooks:
    """Registered with Hermes once; adapters attach and detach."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._subagents = Subagents()
        self.policy = ToolPolicy(self._subagents)

    def register(self, ctx: Any) -> None:
        for name, read in _READERS.items():
            ctx.register_hook(name, functools.partial(self._called, read))
        ctx.register_hook("post_api_request", self._model_called)
        ctx.register_hook("subagent_start", self._subagent_started)
        ctx.register_hook("subagent_stop", self._subagent_ended)
        # Of all that Hermes calls before a request, only this does not copy the request.
        ctx.register_middleware("llm_execution", self._call_model)

    def attach(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def detach(self, listener: Listener) -> None:
        with contextlib.suppress(ValueError):
            self._listeners.remove(listener)

    def current_turn(self, given: Mapping[str, Any] | None = None) -> Turn | None:
        """The turn that this thread works on. `given` is what Hermes tells a tool: a subagent's
        thread is without the message's context, and known by its task."""
        subagent = self._subagents.message_of((given or {}).get("task_id"))
        message_id = current_message_id() or subagent
        turns = (each.find(message_id) for each in list(self._listeners)) if message_id else ()
        return next((turn for turn in turns if turn is not None), None)

    def _called(self, read: Callable[[Mapping[str, Any]], Effect | None], **given: Any) -> None:
        message_id = _message_of(given)
        if not message_id:
            return
        if read is _agent_started:
            for listener in list(self._listeners):
                listener.on_agent_start(message_id)
        self._pass_on(message_id, read(given))

    def _call_model(self, next_call: Callable[[], Any], **given: Any) -> Any:
        if message_id := _message_of(given):
            self._pass_on(message_id, _model_is_called(given))
        return next_call()

    def _model_called(self, **given: Any) -> None:
        if given.get("platform") != _SUBAGENT:
            self._called(_model_answered, **given)
            return
        # Hermes names the end of a subagent only by its session, which this makes known.
        record = self._subagents.find(given.get("session_id"), given.get("task_id"))
        if record is not None and (usage := usage_of(given)):
            self._pass_on(
                record.message_id, lambda dispatcher, turn: dispatcher.subagent_called(turn, usage)
            )

    def _subagent_started(self, **given: Any) -> None:
        if is_background_review():
            return
        # A subagent of a subagent starts in a thread without the message's context.
        parent = self._subagents.message_of(given.get("parent_session_id"))
        session_id = given.get("child_session_id")
        message_id = (current_message_id() if current_platform() == PLATFORM else "") or parent
        if not isinstance(session_id, str):
            return
        goal = tool_calls.brief(str(given.get("child_goal") or ""))
        record = SubagentRecord(message_id, str(given.get("child_subagent_id") or session_id), goal)
        self._subagents.add(session_id, record)
        self._subagents.add(record.subagent_id, record)  # also the id of its task
        body = Subagent(record.subagent_id, goal, "start")
        self._pass_on(message_id, lambda dispatcher, turn: dispatcher.offer(turn, body))

    def _subagent_ended(self, **given: Any) -> None:
        record = self._subagents.get(given.get("child_session_id"))
        if record is None:
            return
        took, ok = given.get("duration_ms"), given.get("child_status") == "completed"
        seconds = max(0.0, took / 1000) if isinstance(took, int | float) else None
        body = Subagent(record.subagent_id, record.goal, "end", seconds, ok)
        self._pass_on(record.message_id, lambda dispatcher, turn: dispatcher.offer(turn, body))

    def _pass_on(self, message_id: str, effect: Effect | None) -> None:
        if effect is not None and message_id:
            for listener in list(self._listeners):
                listener.on_hook(message_id, effect)


def _message_of(given: Mapping[str, Any]) -> str:
    """The message for whose turn a hook is called; empty if it is not called for a turn's agent.

    A subagent's text is not the turn's answer. Nor is that of Hermes's background review, which
    runs after a turn as a copy of its agent, in its context, and may end before the turn does.
    """
    if given.get("platform", PLATFORM) != PLATFORM or is_background_review():
        return ""
    return current_message_id()


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
    reasoning = reasoning_in(history)

    def effect(dispatcher: Dispatcher, turn: Turn) -> None:
        turn.answered(text, written=written)
        if turn.unheard:
            turn.heard(_tool_results(history))
        if turn.wants(_REASONING) and not turn.reasoning.seen:
            dispatcher.reason(turn, reasoning)
            dispatcher.end_reasoning(turn)

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


def _model_is_called(given: Mapping[str, Any]) -> Effect:
    model, provider = model_of(given)
    run = str(given.get("turn_id") or "")

    def effect(dispatcher: Dispatcher, turn: Turn) -> None:
        if models := turn.calls_model(model, provider, run):
            before, now = models
            about = Notice(kind="fallback", from_model=before, to_model=now)
            dispatcher.notice(turn, f"the model {before} failed; {now} takes its place", about)

    return effect


def _model_answered(given: Mapping[str, Any]) -> Effect:
    usage = usage_of(given)
    return lambda dispatcher, turn: dispatcher.model_called(turn, usage)


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
        if retry is not None:
            text = f"the model call failed ({failure.kind}); retry {retry.attempt} of {retry.of}"
            dispatcher.notice(turn, text, retry)

    return effect


def _retry(given: Mapping[str, Any]) -> Notice | None:
    """Which of its retries Hermes makes next; None if it makes none.

    Hermes keeps its own notices about retries from platforms such as ours (gateway/run.py:74).
    """
    failed, attempts = given.get("retry_count"), given.get("max_retries")
    if not given.get("retryable") or not isinstance(failed, int) or not isinstance(attempts, int):
        return None
    if failed + 1 >= attempts:
        return None
    return Notice(kind="retrying", attempt=failed + 1, of=attempts - 1)


def _session_ended(given: Mapping[str, Any]) -> Effect:
    interrupted = bool(given.get("interrupted"))
    # Hermes spent the model calls it allows for a turn and asked for a summary
    # (agent/turn_finalizer.py:195).
    incomplete = given.get("completed") is False and not interrupted

    def effect(dispatcher: Dispatcher, turn: Turn) -> None:
        turn.interrupted |= interrupted
        turn.incomplete = incomplete

    return effect


def _tool_started(given: Mapping[str, Any]) -> Effect:
    tool = tool_calls.started(given)
    return lambda dispatcher, turn: dispatcher.emit(turn, turn.callback(tool))


def _tool_ended(given: Mapping[str, Any]) -> Effect:
    tool, job = tool_calls.ended(given), begun_job(given)

    def effect(dispatcher: Dispatcher, turn: Turn) -> None:
        if job is not None:
            dispatcher.deliveries.origins.started(*job, turn.inbound)
        shown = tool if turn.wants(_TOOL_DETAIL) else replace(tool, result="")
        dispatcher.emit(turn, turn.callback(shown))
        if tool.tool == _CLARIFY:
            dispatcher.questions.clarified(turn)

    return effect


def _approval_answered(given: Mapping[str, Any]) -> Effect | None:
    if given.get("choice") != "timeout":
        return None
    return lambda dispatcher, turn: dispatcher.questions.expired(turn)


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Effect | None]] = {
    "pre_llm_call": _agent_started,
    "post_llm_call": _answered,
    "api_request_error": _model_failed,
    "on_session_end": _session_ended,
    "pre_tool_call": _tool_started,
    "post_tool_call": _tool_ended,
    "post_approval_response": _approval_answered,
}
