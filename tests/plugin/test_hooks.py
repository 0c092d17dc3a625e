from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from molecule_hermes.plugin.dispatcher import Dispatcher
from molecule_hermes.plugin.hooks import Effect, Hooks
from molecule_hermes.plugin.ledger import Ledger
from molecule_hermes.plugin.settings import PLATFORM
from molecule_hermes.plugin.turn import Turn
from molecule_hermes.wire import (
    Callback,
    Context,
    Inbound,
    Notice,
    Reasoning,
    Spent,
    Subagent,
    Tool,
    Usage,
)

WANTS = ("usage", "subagent", "reasoning", "tool_detail")


class Recorder:
    """A listener whose dispatcher posts into a list."""

    def __init__(self) -> None:
        self.turn = Turn(Inbound("c", "p", "m", "http://127.0.0.1:1/", "hi", wants=WANTS))
        self.callbacks: list[Callback] = []
        self.begun: list[str] = []
        gateway: Any = SimpleNamespace(
            context=lambda turn: Context(50, 200), shown=lambda answer: answer
        )
        outbox: Any = SimpleNamespace(put=lambda journal, callback: self.callbacks.append(callback))
        self.dispatcher = Dispatcher(gateway, Ledger(), outbox)

    def on_hook(self, message_id: str, effect: Effect) -> None:
        if message_id == self.turn.message_id:
            effect(self.dispatcher, self.turn)

    def on_agent_start(self, message_id: str) -> None:
        self.begun.append(message_id)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Recorder()
    hooks = Hooks()
    registered: dict[str, Any] = {}
    hooks.register(
        SimpleNamespace(
            register_hook=registered.__setitem__, register_middleware=registered.__setitem__
        )
    )
    hooks.attach(made)
    current = SimpleNamespace(message_id="m", cost=None)
    monkeypatch.setattr("molecule_hermes.plugin.hooks.current_platform", lambda: PLATFORM)
    monkeypatch.setattr(
        "molecule_hermes.plugin.hooks.current_message_id", lambda: current.message_id
    )
    monkeypatch.setattr("molecule_hermes.plugin.spending.cost_of", lambda *call: current.cost)

    def fire(name: str, **given: Any) -> None:
        # Anything but None would be taken for a directive.
        assert registered[name](telemetry_schema_version=1, **given) is None

    def call(**given: Any) -> None:
        """The agent calls its model."""
        answer = registered["llm_execution"](next_call=lambda: "answer", request={}, **given)
        assert answer == "answer"

    return SimpleNamespace(
        fire=fire,
        call=call,
        current=current,
        turn=made.turn,
        callbacks=made.callbacks,
        begun=made.begun,
        dispatcher=made.dispatcher,
    )


def test_hooks_record_how_a_turn_went(recorder: Any) -> None:
    recorder.fire("pre_llm_call", platform="molecule_a2a")
    assert recorder.turn.agent_ran
    assert recorder.begun == ["m"]
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
    assert began.args["command"] == began.preview
    assert ended == Tool("t", "end", '{"n": 1}', 1.5, False, args={"n": 1})


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


OURS = {"platform": "molecule_a2a"}
USED = {
    "prompt_tokens": 30,
    "output_tokens": 4,
    "total_tokens": 34,
    "cache_read_tokens": 20,
    "reasoning_tokens": 3,
}


def test_a_retry_says_which_one_it_is_and_of_how_many(recorder: Any) -> None:
    recorder.fire("api_request_error", retryable=True, retry_count=1, max_retries=4, **OURS)
    (callback,) = recorder.callbacks
    assert callback.body == Notice(kind="retrying", attempt=2, of=3)


def test_every_call_is_added_up_and_reported_with_the_context(recorder: Any) -> None:
    recorder.current.cost = 0.5
    for _ in range(2):
        recorder.fire("post_api_request", usage=USED, model="m1", provider="p", **OURS)
    reports = [c.body for c in recorder.callbacks]
    twice = Usage(60, 8, 68, "m1", 40, 6, "p", 1.0)
    assert reports == [
        Spent(Usage(30, 4, 34, "m1", 20, 3, "p", 0.5), Context(50, 200)),
        Spent(twice, Context(50, 200)),
    ]
    assert (recorder.turn.usage, recorder.turn.context) == (twice, Context(50, 200))


def test_a_subagents_calls_are_the_turns_and_its_model_is_not(recorder: Any) -> None:
    recorder.fire("post_api_request", usage=USED, model="big", provider="p", **OURS)
    recorder.fire(
        "subagent_start",
        parent_session_id="main",
        child_session_id="child",
        child_subagent_id="s1",
        child_goal="look it up",
    )
    # Its threads do not have the message's context, nor has the subagent that it starts itself.
    recorder.current.message_id = ""
    recorder.fire("subagent_start", parent_session_id="child", child_session_id="grandchild")
    for session in ("child", "grandchild", "unknown"):
        recorder.fire(
            "post_api_request", platform="subagent", session_id=session, usage=USED, model="small"
        )
    recorder.fire(
        "subagent_stop", child_session_id="child", child_status="completed", duration_ms=1500
    )
    recorder.fire("subagent_stop", child_session_id="unknown", child_status="completed")
    usage = recorder.turn.usage
    assert (usage.total_tokens, usage.model, usage.provider) == (3 * 34, "big", "p")
    assert [(m.model, m.total_tokens) for m in usage.models] == [("big", 34), ("small", 68)]
    shown = [c.body for c in recorder.callbacks if isinstance(c.body, Subagent)]
    assert shown[0] == Subagent("s1", "look it up", "start")
    assert shown[-1] == Subagent("s1", "look it up", "end", 1.5, True)


def test_a_subagent_whose_conversation_is_compressed_still_counts_and_ends(recorder: Any) -> None:
    recorder.fire("subagent_start", child_session_id="child", child_subagent_id="s1")
    recorder.current.message_id = ""
    # From here on its session is another one.
    given = {"platform": "subagent", "task_id": "s1", "usage": USED, "model": "small"}
    recorder.fire("post_api_request", session_id="child-2", **given)
    recorder.fire("subagent_stop", child_session_id="child-2", child_status="completed")
    assert recorder.turn.usage.total_tokens == 34
    shown = [c.body for c in recorder.callbacks if isinstance(c.body, Subagent)]
    assert [(body.id, body.phase) for body in shown] == [("s1", "start"), ("s1", "end")]


def test_a_review_after_the_turn_changes_nothing_of_it(
    recorder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder.fire("post_llm_call", assistant_response="the answer", **OURS)
    monkeypatch.setattr("molecule_hermes.plugin.hooks.is_background_review", lambda: True)
    recorder.fire("post_api_request", usage=USED, model="m", **OURS)
    recorder.fire("pre_tool_call", tool_name="skill_manage")
    recorder.fire("subagent_start", child_session_id="c")
    recorder.fire("post_llm_call", assistant_response="Nothing to save.", **OURS)
    recorder.fire("on_session_end", completed=False, **OURS)
    assert recorder.turn.answer == "the answer"
    assert (recorder.turn.usage, recorder.turn.incomplete) == (None, False)
    assert not recorder.callbacks


def test_another_model_in_the_same_run_is_a_fallback(recorder: Any) -> None:
    recorder.call(model="a", provider="p", turn_id="t1", **OURS)
    recorder.call(model="a", provider="p", turn_id="t1", **OURS)
    assert not recorder.callbacks
    recorder.call(model="b", provider="q", turn_id="t1", **OURS)
    recorder.call(model="b", provider="r", turn_id="t1", **OURS)
    # A further run of the agent in the same turn begins with the first model again.
    recorder.call(model="a", provider="p", turn_id="t2", **OURS)
    recorder.call(model="c", provider="p", turn_id="t3", platform="subagent")
    models = [(c.body.kind, c.body.from_model, c.body.to_model) for c in recorder.callbacks]
    assert models == [("fallback", "a", "b"), ("fallback", "b (q)", "b (r)")]
    assert recorder.turn.usage == Usage(model="a", provider="p")


def test_hermess_own_words_about_a_fallback_are_not_repeated(recorder: Any) -> None:
    for model in ("a", "b"):
        recorder.call(model=model, turn_id="t", **OURS)
    assert len(recorder.callbacks) == 1
    for text in ("🔄 Switched to fallback model: a via p → b via p", "anything else"):
        recorder.dispatcher.remark(recorder.turn, text)
    assert [c.content for c in recorder.callbacks[1:]] == ["anything else"]


@pytest.mark.parametrize(
    ("given", "incomplete"),
    [
        ({"completed": False, "interrupted": False}, True),
        ({"completed": False, "interrupted": True}, False),
        ({"completed": True}, False),
        ({}, False),
    ],
)
def test_a_turn_that_spent_its_calls_is_incomplete(
    recorder: Any, given: dict[str, Any], incomplete: bool
) -> None:
    recorder.fire("on_session_end", **given, **OURS)
    assert recorder.turn.incomplete is incomplete


def test_reasoning_that_was_not_streamed_comes_with_the_answer(recorder: Any) -> None:
    history = [
        {"role": "assistant", "reasoning": "an earlier turn's"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "reasoning": "first, the password=hunter2hunter2"},
        {"role": "tool", "content": "x"},
        {"role": "assistant", "reasoning": "then the rest", "content": "hello"},
    ]
    for _ in range(2):
        recorder.fire(
            "post_llm_call", assistant_response="hello", conversation_history=history, **OURS
        )
    thought = "".join(c.content for c in recorder.callbacks if isinstance(c.body, Reasoning))
    assert thought == "first, the password=***\n\nthen the rest"


def test_a_tool_calls_arguments_error_and_result_are_bounded_and_without_secrets(
    recorder: Any,
) -> None:
    arguments = {
        "path": "x" * 500,
        "api_key": "abc",
        "keyword": "abc",
        "depth": 3,
        "deep": {"token": "0123456789"},
        **{f"more{i}": None for i in range(50)},
    }
    given = {
        "tool_name": "t",
        "tool_call_id": "call_1",
        "args": arguments,
        "status": "error",
        "error_message": "no such file: token=0123456789",
        "result": "line 1\nline 2 password=hunter2hunter2 " + "x" * 20_000,
    }
    recorder.fire("pre_tool_call", **given)
    recorder.fire("post_tool_call", **given)
    began, ended = (c.body for c in recorder.callbacks)
    assert (began.id, ended.id) == ("call_1", "call_1")
    assert len(ended.args) == 16
    assert len(ended.args["path"]) == 200
    assert [ended.args[name] for name in ("api_key", "keyword", "depth")] == ["***", "abc", 3]
    assert ended.error == "no such file: token=***"
    assert ended.result.startswith("line 1\nline 2 password=*** xxx")
    assert len(ended.result) <= 8000
    assert "0123456789" not in str(ended)


def test_a_bridge_gets_only_what_it_wants(recorder: Any) -> None:
    recorder.turn.inbound = replace(recorder.turn.inbound, wants=())
    recorder.fire("post_api_request", usage=USED, model="m", **OURS)
    recorder.fire("subagent_start", child_session_id="c", child_goal="g")
    history = [{"role": "assistant", "reasoning": "hm", "content": "hi"}]
    recorder.fire("post_llm_call", assistant_response="hi", conversation_history=history, **OURS)
    recorder.fire("post_tool_call", tool_name="t", args={}, status="ok", result="x")
    (tool,) = recorder.callbacks
    assert (tool.body.output, tool.body.result) == ("x", "")
    assert recorder.turn.usage.total_tokens == 34


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
