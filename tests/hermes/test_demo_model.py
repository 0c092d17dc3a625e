from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from molecule_hermes.hermes.demo_model import DEMO_MODEL, demo_model
from molecule_hermes.protocol.json_answers import judge
from molecule_hermes.protocol.structured_output import StructuredOutput
from molecule_hermes.turns.model import Turn


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with demo_model() as url, httpx.AsyncClient(base_url=url, timeout=10) as client:
        yield client


async def say(http: httpx.AsyncClient, *texts: str, **more: Any) -> httpx.Response:
    messages = [{"role": "user", "content": t} for t in texts]
    return await http.post("/chat/completions", json={"messages": messages, **more})


def content(response: httpx.Response) -> str:
    return str(response.json()["choices"][0]["message"]["content"])


async def test_it_says_that_it_is_a_demo_and_repeats_the_message(http: httpx.AsyncClient) -> None:
    text = content(await say(http, "earlier words", "hello"))
    assert "Demo model" in text
    assert "not a real one" in text
    assert "You said: hello" in text
    assert "earlier words" in text
    assert (await http.get("/models")).json()["data"][0]["id"] == DEMO_MODEL


async def test_a_streamed_answer_has_the_same_text_as_a_plain_one(http: httpx.AsyncClient) -> None:
    whole = content(await say(http, "hello  there\nyou"))
    streamed = await say(http, "hello  there\nyou", stream=True)
    chunks = [json.loads(x[6:]) for x in streamed.text.splitlines() if x.startswith("data: {")]
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == whole
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["usage"]["total_tokens"] > 0
    assert streamed.text.endswith("data: [DONE]\n\n")


async def test_it_calls_a_tool_when_asked_and_reports_the_result(http: httpx.AsyncClient) -> None:
    asked = (await say(http, "please demo:run echo hi")).json()["choices"][0]
    call = asked["message"]["tool_calls"][0]["function"]
    assert asked["finish_reason"] == "tool_calls"
    assert call["name"] == "terminal"
    assert json.loads(call["arguments"]) == {"command": "echo hi"}
    messages = [
        {"role": "user", "content": "demo:run echo hi"},
        {"role": "tool", "content": "the result"},
    ]
    answer = await http.post("/chat/completions", json={"messages": messages})
    assert content(answer) == "The tool answered: the result"


async def test_it_lists_the_images_in_the_message(http: httpx.AsyncClient) -> None:
    def image(url: str) -> dict[str, Any]:
        return {"type": "image_url", "image_url": {"url": url}}

    shown = [
        {"type": "text", "text": "look\n\n[Image attached at: /x/a.png]"},
        image("data:image/png;base64,AAAA"),
        image("https://x.example/a.png"),
        image("data:image/gif;base64,?"),
    ]
    messages = [{"role": "user", "content": shown}]
    answer = content(await http.post("/chat/completions", json={"messages": messages}))
    assert answer.endswith(
        "You said: look\nI see 3 images: image/png, 3 bytes; an address; image/gif, 0 bytes"
    )


async def test_it_reads_the_attached_file(http: httpx.AsyncClient) -> None:
    note = "[The user sent a document: 'a b.pdf'. It is saved at: /x/1_a b.pdf. Its text is not…]"
    asked = (await say(http, f"{note}\n\ndemo:read")).json()["choices"][0]
    call = asked["message"]["tool_calls"][0]["function"]
    assert json.loads(call["arguments"]) == {"command": "cat '/x/1_a b.pdf'"}
    assert "You said: [file: a b.pdf]\n\nhi" in content(await say(http, f"{note}\n\nhi"))


async def test_it_writes_a_file_and_delivers_it(http: httpx.AsyncClient, tmp_path: Path) -> None:
    asked = "demo:file=../it's.txt it's $HOME; 42"
    call = (await say(http, asked)).json()["choices"][0]["message"]["tool_calls"][0]["function"]
    command = json.loads(call["arguments"])["command"]
    run = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, check=True)
    made = tmp_path / "it's.txt"
    assert made.read_text() == "it's $HOME; 42"
    for answered, answer in {
        json.dumps({"output": run.stdout.decode(), "exit_code": 0}): f"MEDIA:{made}",
        "no": "The file was not written: no",
        '{"output": ""}': 'The file was not written: {"output": ""}',
    }.items():
        messages = [{"role": "user", "content": asked}, {"role": "tool", "content": answered}]
        reply = content(await http.post("/chat/completions", json={"messages": messages}))
        assert reply.endswith(answer)


@pytest.mark.parametrize(
    ("cause", "status"),
    [("401", 401), ("404", 404), ("429", 429), ("500", 500), ("quota", 429), ("context", 400)],
)
async def test_it_fails_as_a_provider_would(
    http: httpx.AsyncClient, cause: str, status: int
) -> None:
    failed = await say(http, f"demo:fail={cause}")
    assert failed.status_code == status
    assert failed.json()["error"]["message"]


async def test_its_answer_can_be_empty_silent_or_long(http: httpx.AsyncClient) -> None:
    assert content(await say(http, "demo:empty")) == ""
    assert content(await say(http, "demo:silent")) == "[SILENT]"
    assert len(content(await say(http, "demo:words=50")).split()) == 50


async def test_it_answers_with_json_for_the_schema_that_it_is_asked_for(
    http: httpx.AsyncClient,
) -> None:
    schema = {
        "type": "object",
        "properties": {
            "kind": {"enum": ["a", "b"]},
            "items": {"type": "array", "items": {"$ref": "#/$defs/item"}, "minItems": 2},
            "either": {"anyOf": [{"type": "null"}, {"type": "number"}]},
        },
        "$defs": {"item": {"type": "object", "properties": {"n": {"type": "integer"}}}},
    }
    value = {"kind": "a", "items": [{"n": 1}, {"n": 1}], "either": None}
    output = StructuredOutput(schema)
    for how, valid_at in {"": 0, "=fenced": 0, "=second": 1, "=never": 2}.items():
        first = output.prompt(Turn("m", "p", "c", "t", f"demo:json{how}"))
        second = output.repair(first, "it is not JSON")
        said = [await say(http, first.text), await say(http, first.text, second.text)]
        verdicts = [judge(schema, content(each)) for each in said]
        assert [v.get("value") == value for v in verdicts] == [valid_at <= 0, valid_at <= 1], how
    assert json.loads(content(await say(http, "demo:json"))) == {"demo": True}


async def test_it_names_the_model_that_was_asked_for(http: httpx.AsyncClient) -> None:
    assert content(await say(http, "demo:model", model="large")) == "large"


async def test_it_can_close_the_connection_in_the_middle(http: httpx.AsyncClient) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        await say(http, "demo:break now", stream=True)


@pytest.mark.parametrize("body", ["", "{", "[]", "{}", '{"messages": 1}', '{"messages": []}'])
async def test_a_malformed_request_is_refused(http: httpx.AsyncClient, body: str) -> None:
    headers = {"Content-Type": "application/json"}
    answered = await http.post("/chat/completions", content=body, headers=headers)
    assert answered.status_code == 400


_content = st.one_of(
    st.none(), st.integers(), st.text(max_size=50), st.lists(st.dictionaries(st.text(), st.text()))
)
_message = st.dictionaries(st.sampled_from(["role", "content", "x"]), _content)


@given(st.lists(st.one_of(_message, st.text(), st.none()), min_size=1, max_size=5))
@settings(max_examples=50, deadline=None)
async def test_any_messages_are_answered_or_refused(messages: list[Any]) -> None:
    async with demo_model() as url, httpx.AsyncClient(base_url=url, timeout=10) as client:
        answered = await client.post("/chat/completions", json={"messages": messages})
    assert answered.status_code in (200, 400)


async def test_a_canceled_turn_is_not_an_error(caplog: pytest.LogCaptureFixture) -> None:
    body = {"messages": [{"role": "user", "content": "demo:slow=0.01 " * 20}], "stream": True}
    async with (
        demo_model() as url,
        httpx.AsyncClient(base_url=url) as http,
        http.stream("POST", "/chat/completions", json=body) as response,
    ):
        await anext(response.aiter_raw())
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    ("said", "tool", "arguments"),
    [
        (
            "demo:ask=red|blue Which one?",
            "clarify",
            {"question": "Which one?", "choices": ["red", "blue"]},
        ),
        ("demo:ask Why?", "clarify", {"question": "Why?"}),
        ('demo:call=read_file {"path": "x"}', "read_file", {"path": "x"}),
    ],
)
async def test_it_calls_hermes_tools(
    http: httpx.AsyncClient, said: str, tool: str, arguments: dict[str, object]
) -> None:
    choice = (await say(http, said)).json()["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == tool
    assert json.loads(call["function"]["arguments"]) == arguments


async def test_it_fails_a_number_of_times_and_then_answers(http: httpx.AsyncClient) -> None:
    said = "demo:flaky=2:429\ndemo:say done"
    answers = [await say(http, said) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [429, 429, 200]
    assert content(answers[-1]) == "done"
    assert (await say(http, "demo:flaky\nanother message")).status_code == 500


async def test_it_answers_only_for_the_model_that_the_message_names(
    http: httpx.AsyncClient,
) -> None:
    assert (await say(http, "demo:model=b", model="a")).status_code == 404
    answer = await say(http, "demo:model=b", model="b")
    assert (answer.status_code, answer.json()["model"]) == (200, "b")


async def test_it_thinks_and_reports_cached_tokens(http: httpx.AsyncClient) -> None:
    said = "demo:think one two\ndemo:cached=90\ndemo:say done"
    whole = (await say(http, said)).json()
    assert whole["choices"][0]["message"]["reasoning_content"] == "one two"
    streamed = await say(http, said, stream=True)
    chunks = [json.loads(x[6:]) for x in streamed.text.splitlines() if x.startswith("data: {")]
    deltas = [c["choices"][0]["delta"].get("reasoning_content", "") for c in chunks]
    assert "".join(deltas) == "one two"
    assert whole["usage"] == chunks[-1]["usage"]
    assert whole["usage"] == {
        "prompt_tokens": 100,
        "prompt_tokens_details": {"cached_tokens": 90},
        "completion_tokens": 3,
        "completion_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 103,
    }


async def test_it_calls_a_tool_as_long_as_there_are_any(http: httpx.AsyncClient) -> None:
    messages = [
        {"role": "user", "content": "demo:loop date"},
        {"role": "tool", "content": "a result"},
    ]
    for tools, finish in (([{"type": "function"}], "tool_calls"), ([], "stop")):
        body = {"messages": messages, "tools": tools}
        answer = await http.post("/chat/completions", json=body)
        assert answer.json()["choices"][0]["finish_reason"] == finish


async def test_it_has_prices_only_if_it_is_given_some() -> None:
    prices = {"prompt": "0.1", "completion": "0.2"}
    for set_prices in (None, prices):
        async with demo_model(prices=set_prices) as url, httpx.AsyncClient() as client:
            (model,) = (await client.get(f"{url}/models")).json()["data"]
        assert model.get("pricing") == set_prices


async def test_it_repeats_what_the_peer_said_while_a_tool_ran(http: httpx.AsyncClient) -> None:
    from agent.prompt_builder import format_steer_marker

    result = "a result" + format_steer_marker("use blue\nor red") + format_steer_marker("now")
    messages = [{"role": "user", "content": "demo:run x"}, {"role": "tool", "content": result}]
    text = content(await http.post("/chat/completions", json={"messages": messages}))
    assert text == (
        "The tool answered: a result\nMeanwhile you said: use blue\nor red\nMeanwhile you said: now"
    )
