from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from molecule_hermes.plugin.hooks import Effect, Hooks
from molecule_hermes.plugin.turn import Turn
from molecule_hermes.wire import Callback, Inbound, Notice, Tool, Usage


class Recorder:
    def __init__(self) -> None:
        self.turn = Turn(Inbound("c", "p", "m", "http://127.0.0.1:1/", "hi"))
        self.callbacks: list[Callback] = []
        self.names: list[str] = []

    def on_hook(self, message_id: str, effect: Effect) -> None:
        self.names.append(message_id)
        dispatcher: Any = SimpleNamespace(
            agent_runs=lambda turn, prompt: turn.runs_again(prompt),
            emit=lambda turn, callback: self.callbacks.append(callback),
            notice=lambda turn, text: self.callbacks.append(turn.callback(Notice(), text)),
        )
        effect(dispatcher, self.turn)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Recorder()
    hooks = Hooks()
    registered: dict[str, Any] = {}
    hooks.register(SimpleNamespace(register_hook=registered.__setitem__))
    hooks.attach(made)
    current = SimpleNamespace(message_id="m")
    monkeypatch.setattr(
        "molecule_hermes.plugin.hooks.current_message_id", lambda: current.message_id
    )

    def fire(name: str, **given: Any) -> None:
        # Anything but None would be taken for a directive.
        assert registered[name](telemetry_schema_version=1, **given) is None

    return SimpleNamespace(fire=fire, current=current, turn=made.turn, callbacks=made.callbacks)


def test_hooks_record_how_a_turn_went(recorder: Any) -> None:
    recorder.fire("pre_llm_call", platform="molecule_a2a")
    assert recorder.turn.agent_ran
    recorder.fire(
        "api_request_error", platform="molecule_a2a", status_code=429, error={"message": "slow"}
    )
    assert recorder.turn.failure.kind == "rate_limit"
    usage = {"prompt_tokens": 3, "output_tokens": 4, "total_tokens": 7}
    recorder.fire("post_api_request", platform="molecule_a2a", usage=usage, model="m1")
    assert recorder.turn.usage == Usage(3, 4, 7, "m1")
    recorder.fire("post_llm_call", platform="molecule_a2a", assistant_response="hi")
    assert (recorder.turn.answer, recorder.turn.failure) == ("hi", None)
    recorder.fire("on_session_end", platform="molecule_a2a", interrupted=True)
    assert recorder.turn.interrupted


@pytest.mark.parametrize(
    ("status", "code", "reason", "kind"),
    [
        (429, "quota_exceeded", "rate_limit", "quota"),
        (429, "usage_limit_exceeded", "rate_limit", "quota"),
        (403, "quota_exceeded", "auth", "quota"),
        (429, "slow_down", "billing", "quota"),
        (429, "slow_down", "rate_limit", "rate_limit"),
        (400, "oops", "model_not_found", "model_not_found"),
    ],
)
def test_hermess_verdict_and_the_providers_code_name_the_failure(
    recorder: Any, status: int, code: str, reason: str, kind: str
) -> None:
    body = {"error": {"message": "Not now.", "code": code}}
    error = {"message": f"Error code: {status} - {body}"}
    recorder.fire("api_request_error", status_code=status, reason=reason, error=error)
    assert recorder.turn.failure.kind == kind


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"retryable": True, "retry_count": 0, "max_retries": 3}, "retry 1 of 2"),
        ({"retryable": True, "retry_count": 1, "max_retries": 3}, "retry 2 of 2"),
        ({"retryable": True, "retry_count": 2, "max_retries": 3}, ""),
        ({"retryable": False, "retry_count": 0, "max_retries": 3}, ""),
        ({"retryable": True}, ""),
    ],
)
def test_the_peer_is_told_that_hermes_repeats_a_failed_call(
    recorder: Any, given: dict[str, Any], expected: str
) -> None:
    recorder.fire("api_request_error", status_code=429, reason="rate_limit", **given)
    notices = [callback.content for callback in recorder.callbacks]
    assert notices == ([f"the model call failed (rate_limit); {expected}"] if expected else [])


def test_a_subagent_does_not_answer_for_the_agent(recorder: Any) -> None:
    recorder.fire("post_llm_call", platform="subagent", assistant_response="inner thought")
    recorder.current.message_id = ""
    recorder.fire("post_llm_call", platform="molecule_a2a", assistant_response="no turn")
    assert recorder.turn.answer is None


def test_tool_calls_are_reported_briefly_and_without_secrets(recorder: Any) -> None:
    arguments = {"command": "curl -H 'Authorization: Bearer abcdefghijk' " + "x" * 500}
    recorder.fire("pre_tool_call", tool_name="terminal", args=arguments)
    recorder.fire("post_tool_call", tool_name="t", args={"n": 1}, duration_ms=1500, status="error")
    began, ended = (callback.body for callback in recorder.callbacks)
    assert isinstance(began, Tool)
    assert len(began.preview) == 200
    assert "abcdefghijk" not in began.preview
    assert ended == Tool("t", "end", '{"n": 1}', 1.5, False)


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        ('{"output": "two\\nlines", "exit_code": 0}', "two lines"),
        ('{"output": "", "exit_code": 1}', '{"output": "", "exit_code": 1}'),
        ({"n": 1}, '{"n": 1}'),
        ("plain", "plain"),
        (None, ""),
        ('{"output": "\\ud83d"}', "?"),
        ("password=hunter2hunter2", "password=***"),
        ("x" * 500, "x" * 199 + "…"),
    ],
)
def test_the_beginning_of_a_tools_result_is_reported(
    recorder: Any, result: object, shown: str
) -> None:
    recorder.fire("post_tool_call", tool_name="t", args={}, status="ok", result=result)
    assert recorder.callbacks[0].body.output == shown


@pytest.mark.parametrize(
    "content", ["a result\n\n[…]\nuse blue\n[/…]", [{"type": "text", "text": "use blue"}, "x"]]
)
def test_a_text_in_a_tools_result_was_read_by_the_agent(recorder: Any, content: Any) -> None:
    recorder.turn.steered("use blue")
    history = [{"role": "user", "content": "use blue"}, None]
    recorder.fire("post_llm_call", assistant_response="hi", conversation_history=history)
    assert recorder.turn.unheard == ["use blue"]
    history = [{"role": "tool", "content": content}, {"role": "tool", "content": None}]
    recorder.fire("post_llm_call", assistant_response="hi", conversation_history=history)
    assert recorder.turn.unheard == []


def test_a_second_run_with_the_text_makes_the_first_answer_an_interim_one(recorder: Any) -> None:
    recorder.turn.steered("use blue")
    recorder.fire("post_llm_call", assistant_response="red")
    recorder.fire("pre_llm_call", user_message=["not", "text"])
    assert recorder.turn.interim == []
    recorder.fire("pre_llm_call", user_message="use blue")
    recorder.fire("post_llm_call", assistant_response="blue")
    assert (recorder.turn.interim, recorder.turn.answer) == (["red"], "blue")
