"""What a message changes in the requests to the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from molecule_hermes.plugin.model_requests import ModelRequests, ResponseFormatRefused
from molecule_hermes.plugin.settings import PLATFORM
from molecule_hermes.plugin.turn import Turn
from molecule_hermes.wire import Inbound
from tests.support.gateway import callback_server, running_hermes
from tests.support.recorded_model import RecordedModel, recorded_model

FORM = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}}
PRIMARY = {"platform": PLATFORM, "provider": "custom", "base_url": "http://a", "model": "own"}
CHAT = {**PRIMARY, "api_mode": "chat_completions"}


class Model:
    """The next call in the chain, and the middleware before it."""

    def __init__(self, turn: Turn | None) -> None:
        self.seen: list[dict[str, Any]] = []
        self.error: Exception | None = None
        self._requests = ModelRequests(lambda: turn)
        self._requests.register(self)

    def register_middleware(self, kind: str, function: Any) -> None:
        assert kind == "llm_execution"
        self._function = function

    def call(self, **context: Any) -> dict[str, Any]:
        original = {"model": "own", "messages": []}
        assert self._function(request=original, next_call=self._next, **context) == "answer"
        assert original == {"model": "own", "messages": []}
        return self.seen[-1]

    def _next(self, request: dict[str, Any]) -> str:
        self.seen.append(request)
        if self.error is not None and "response_format" in request:
            raise RuntimeError("wrapped, as Hermes does") from self.error
        return "answer"


class ProviderError(Exception):
    def __init__(self, text: str, status_code: int) -> None:
        super().__init__(text)
        self.status_code = status_code


def turn(**fields: Any) -> Turn:
    return Turn(Inbound("c", "p", "m", "http://127.0.0.1/a2a/reply", **fields))


def test_a_request_outside_of_a_turn_or_of_a_subagent_stays_as_it_is() -> None:
    plain = {"model": "own", "messages": []}
    wishes = turn(model="large", response_format=FORM)
    assert Model(None).call(**CHAT) == plain
    assert Model(turn()).call(**CHAT) == plain
    assert Model(wishes).call(**{**CHAT, "platform": "subagent"}) == plain


def test_the_model_and_the_format_are_put_into_each_request_of_the_turn() -> None:
    model = Model(turn(model="large", response_format=FORM))
    for _ in range(2):
        asked = model.call(**CHAT)
        assert asked == {"model": "large", "messages": [], "response_format": FORM}


def test_another_provider_that_hermes_falls_back_to_keeps_its_own_model() -> None:
    model = Model(turn(model="large"))
    assert model.call(**CHAT)["model"] == "large"
    assert model.call(**{**CHAT, "base_url": "http://b"})["model"] == "own"
    assert model.call(**{**CHAT, "model": "second"})["model"] == "own"


def test_a_provider_without_the_parameter_is_not_asked_for_a_format() -> None:
    model = Model(turn(model="large", response_format=FORM))
    asked = model.call(**{**PRIMARY, "api_mode": "anthropic_messages"})
    assert asked == {"model": "large", "messages": []}


def test_a_format_that_is_refused_is_left_out_when_hermes_tries_again() -> None:
    model = Model(turn(response_format=FORM))
    model.error = ProviderError("Unknown parameter: 'response_format'", 400)
    with pytest.raises(ResponseFormatRefused) as caught:
        model.call(**CHAT)
    # Hermes retries it, unless it finds a status in what led to it.
    assert isinstance(caught.value, ConnectionError)
    assert caught.value.__context__ is None
    assert "response_format" not in model.call(**CHAT)


@pytest.mark.parametrize(
    "error", [ProviderError("json_schema", 500), ProviderError("too long", 400), ValueError()]
)
def test_other_errors_of_the_provider_stay_what_they_are(error: Exception) -> None:
    model = Model(turn(response_format=FORM))
    model.error = error
    for _ in range(2):
        with pytest.raises(RuntimeError) as caught:
            model.call(**CHAT)
        assert caught.value.__cause__ is error


def asked_with(model: RecordedModel, text: str) -> list[dict[str, Any]]:
    """The agent's requests for this message, without those for titles."""
    return [
        request
        for request in model.requests
        if request.get("tools") and text in json.dumps(request["messages"][-3:])
    ]


@pytest.mark.hermes
async def test_the_provider_is_asked_for_the_format_and_the_model_in_this_turn_only(
    tmp_path: Path,
) -> None:
    sent = [
        ("demo:say first", {}),
        ("demo:run echo second", {"response_format": FORM, "model": "large"}),
        ("demo:say third", {}),
    ]
    async with recorded_model() as model, callback_server() as callbacks:
        over = {"model": {"base_url": model.url}}
        async with running_hermes(tmp_path, over=over) as hermes:
            for text, wishes in sent:
                said = await hermes.say(callbacks, text, chat="one", **wishes)
                assert (await callbacks.final(said))[1].status == "completed"
    first, second, third = (asked_with(model, text) for text, _ in sent)
    assert [(r.get("response_format"), r["model"]) for r in second[:2]] == [(FORM, "large")] * 2
    for request in (first[0], third[-1]):
        assert (request.get("response_format"), request["model"]) == (None, "molecule-demo")


@pytest.mark.hermes
async def test_a_subagent_is_not_asked_for_the_format_of_the_answer(tmp_path: Path) -> None:
    said = 'demo:call=delegate_task {"goal": "demo:say the goal of a subagent"}'
    async with recorded_model() as model, callback_server() as callbacks:
        over = {"model": {"base_url": model.url}}
        async with running_hermes(tmp_path, over=over) as hermes:
            message = await hermes.say(callbacks, said, response_format=FORM, model="large")
            assert (await callbacks.final(message))[1].status == "completed"
    users = [
        (str([m["content"] for m in request["messages"] if m["role"] == "user"]), request)
        for request in model.requests
        if request.get("tools")
    ]
    parent = [request for text, request in users if "delegate_task" in text]
    child = [request for text, request in users if "delegate_task" not in text]
    assert [(r["model"], "response_format" in r) for r in parent] == [("large", True)] * 2
    assert [(r["model"], "response_format" in r) for r in child] == [("molecule-demo", False)]
    assert "the goal of a subagent" in str(child)


@pytest.mark.hermes
async def test_a_turn_completes_although_the_provider_refuses_the_format(tmp_path: Path) -> None:
    async with recorded_model() as model, callback_server() as callbacks:
        model.refuses = "response_format"
        over = {"model": {"base_url": model.url}, "agent": {"api_max_retries": 3}}
        async with running_hermes(tmp_path, over=over) as hermes:
            for text in ("demo:say one", "demo:say two"):
                said = await hermes.say(callbacks, text, chat="c", response_format=FORM)
                final, end = await callbacks.final(said)
                assert (end.status, final.content) == ("completed", text[-3:])
    refused = [request for request in model.requests if "response_format" in request]
    assert len(refused) == 1
