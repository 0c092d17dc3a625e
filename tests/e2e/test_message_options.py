"""What a message can ask for, on the real Hermes: data, earlier results, another model."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from a2a.client import Client
from a2a.types import GetTaskRequest, SendMessageRequest, Task
from a2a.utils.errors import InvalidParamsError
from google.protobuf import json_format

from molecule_hermes.client.connection import message
from molecule_hermes.protocol.extensions import STRUCTURED_OUTPUT
from molecule_hermes.protocol.numbers import with_whole_numbers
from molecule_hermes.turns.features import Feature, TransportName
from tests.e2e.test_features import ALICE, BOB, settings
from tests.support.features import skip_unless_the_table_says_so
from tests.support.peers import ask, peer, reply_text, send
from tests.support.stack import Stack, up

pytestmark = pytest.mark.asyncio(loop_scope="module")

OFFERED = "molecule-demo-large"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]+$"},
        "age": {"type": "integer", "minimum": 41},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "minItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
    "$defs": {"tag": {"enum": ["red", "blue"]}},
}
FITTING = {"name": "demo", "age": 41, "tags": ["red", "red"]}


@pytest.fixture(scope="module", params=["plugin", "chat"])
def way(request: pytest.FixtureRequest) -> TransportName:
    found: TransportName = request.param
    return found


@pytest.fixture(autouse=True)
def _as_the_table_says(request: pytest.FixtureRequest, way: TransportName) -> None:
    skip_unless_the_table_says_so(request, way)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(
    tmp_path_factory: pytest.TempPathFactory, way: TransportName
) -> AsyncIterator[Stack]:
    environ = settings(
        tmp_path_factory.mktemp("stack"), way, MOLECULE_HERMES_MODELS=f"{OFFERED}, other"
    )
    async with up(environ) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def alice(stack: Stack) -> AsyncIterator[Client]:
    async with peer(stack.url, token=ALICE) as client, asyncio.timeout(60):
        yield client


def asking_for(
    text: str, schema: Any = None, accepted: tuple[str, ...] = (), context_id: str = ""
) -> SendMessageRequest:
    request = message(text, context_id)
    if schema is not None:
        request.message.metadata.update({STRUCTURED_OUTPUT: {"schema": schema}})
    request.configuration.accepted_output_modes.extend(accepted)
    return request


def data_of(task: Task) -> Any:
    (artifact,) = task.artifacts
    (part,) = artifact.parts
    assert artifact.artifact_id == "reply"
    assert part.WhichOneof("content") == "data", part
    assert part.media_type == "application/json"
    return with_whole_numbers(json_format.MessageToDict(part.data))


async def stored(client: Client, task_id: str) -> Task:
    return await client.get_task(GetTaskRequest(id=task_id))


@pytest.mark.feature(Feature.DATA_OUT)
@pytest.mark.parametrize("said", ["demo:json", "demo:slow=0.02\ndemo:json=fenced"])
async def test_the_answer_to_a_message_with_a_schema_is_data_that_is_valid(
    alice: Client, said: str
) -> None:
    turn = await send(alice, asking_for(said, PERSON))
    assert turn.states[-1] == "COMPLETED", turn.failure
    assert turn.text == ""
    assert turn.updates == 1
    assert turn.reply_updates[0].last_chunk
    assert data_of(await stored(alice, turn.task_id)) == FITTING


@pytest.mark.feature(Feature.DATA_OUT)
async def test_a_client_that_accepts_only_json_gets_json(alice: Client) -> None:
    turn = await send(alice, asking_for("demo:json", accepted=("application/json",)))
    assert turn.states[-1] == "COMPLETED"
    assert data_of(await stored(alice, turn.task_id)) == {"demo": True}
    both = await send(alice, asking_for("hello", accepted=("application/json", "text/plain")))
    assert "You said: hello" in both.text


@pytest.mark.feature(Feature.DATA_OUT)
async def test_an_answer_that_is_not_valid_is_corrected_once(alice: Client) -> None:
    turn = await send(alice, asking_for("demo:json=second", PERSON, context_id="corrected"))
    assert turn.states[-1] == "COMPLETED"
    assert [data["kind"] for data in turn.data if "notice" in data] == ["retrying"]
    task = await stored(alice, turn.task_id)
    assert data_of(task) == FITTING
    assert task.metadata["usage"]["totalTokens"] > 20  # of both model calls
    after = await ask(alice, "what did I say?", "corrected")
    assert "Your last answer cannot be used: it is not JSON" in after.text


@pytest.mark.feature(Feature.DATA_OUT)
async def test_an_answer_that_stays_invalid_fails_and_its_text_is_kept(alice: Client) -> None:
    turn = await send(alice, asking_for("demo:json=never", PERSON))
    task = await stored(alice, turn.task_id)
    assert turn.states[-1] == "FAILED"
    assert turn.failure["kind"] == "bad_request"
    assert "not JSON" in turn.failure["message"]
    assert turn.text == reply_text(task) == '{"this is not":'


@pytest.mark.feature(Feature.DATA_OUT)
async def test_the_agent_is_told_how_its_answer_breaks_the_schema(alice: Client) -> None:
    said = 'demo:say {"name": "x", "age": 3, "tags": ["red", "blue"]}'
    turn = await send(alice, asking_for(said, PERSON, context_id="broken"))
    # The demo model repeats what it was told, which is not JSON.
    assert turn.states[-1] == "FAILED"
    assert "cannot be used: $.age: 3 is less than the minimum of 41]" in turn.text


@pytest.mark.feature(Feature.DATA_OUT)
async def test_tools_are_shown_while_data_is_prepared(alice: Client) -> None:
    turn = await send(alice, asking_for("demo:run echo between\ndemo:json", PERSON))
    assert turn.states[-1] == "COMPLETED"
    assert [d["tool"]["phase"] for d in turn.data if "tool" in d] == ["start", "end"]
    assert turn.updates == 1


@pytest.mark.feature(Feature.DATA_OUT)
async def test_a_schema_that_is_none_is_refused_before_anything_runs(alice: Client) -> None:
    for schema, why in [
        ({"type": "strin"}, r"\$\.type"),
        ({"$ref": "https://example.com/schema.json"}, "another document"),
        ({"type": "string", "pattern": "("}, "regex"),
        ({"$ref": "#/$defs/nowhere"}, "leads nowhere"),
    ]:
        with pytest.raises(InvalidParamsError, match=why):
            await send(alice, asking_for("demo:json", schema))


@pytest.mark.feature(Feature.DATA_OUT)
async def test_a_pattern_that_takes_for_ever_fails_its_own_turn_only(alice: Client) -> None:
    schema = {"type": "string", "pattern": "^(a+)+$"}
    slow = asyncio.create_task(
        send(alice, asking_for(f'demo:say "{"a" * 40}!"', schema, context_id="slow"))
    )
    other = await ask(alice, "demo:say still here", "quick")
    turn = await slow
    assert other.text == "still here"
    assert turn.failure["kind"] == "bad_request"
    assert "takes more than" in turn.failure["message"]
    assert turn.text == f'"{"a" * 40}!"'


@pytest.mark.feature(Feature.DATA_OUT)
async def test_a_0_3_client_gets_its_data_with_whole_numbers(stack: Stack, alice: Client) -> None:
    parts = [{"kind": "text", "text": "demo:json"}]
    said = {
        "kind": "message",
        "messageId": "m-03",
        "role": "user",
        "parts": parts,
        "metadata": {STRUCTURED_OUTPUT: {"schema": PERSON}},
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": said}}
    async with httpx.AsyncClient(timeout=60) as http:
        headers = {"Authorization": f"Bearer {ALICE}"}
        answer = await http.post(stack.url + "/", json=body, headers=headers)
    result = answer.json()["result"]
    assert result["status"]["state"] == "completed", answer.text
    (part,) = result["artifacts"][0]["parts"]
    assert (part["kind"], part["data"]) == ("data", FITTING)
    assert re.search(r'"age": ?41[,}]', answer.text)


@pytest.mark.feature(Feature.DATA_OUT)
async def test_a_reply_as_one_message_holds_the_data(tmp_path: Path, way: TransportName) -> None:
    environ = settings(tmp_path / "stack", way, MOLECULE_HERMES_REPLY="message")
    async with up(environ) as running, peer(running.url, token=ALICE) as client:
        replies = [
            [event.message async for event in client.send_message(asking_for(said, PERSON))]
            for said in ("demo:json=second", "demo:json=never")
        ]
    (valid,), (invalid,) = replies
    assert [part.WhichOneof("content") for part in valid.parts] == ["data"]
    assert with_whole_numbers(json_format.MessageToDict(valid.parts[0].data)) == FITTING
    assert '{"this is not":' in invalid.parts[0].text
    assert "bad_request" in invalid.parts[0].text


@pytest.mark.feature(Feature.REFERENCES)
async def test_the_answers_of_referenced_tasks_come_before_the_message(alice: Client) -> None:
    first = await ask(alice, "demo:say the fruit is a quince", "one conversation")
    data = await send(alice, asking_for("demo:json", PERSON, context_id="a second one"))
    request = message("which fruit?", "a third one")
    request.message.reference_task_ids.extend([first.task_id, data.task_id, first.task_id])
    turn = await send(alice, request)
    assert turn.states[-1] == "COMPLETED"
    assert turn.text.count("the fruit is a quince") == 1
    assert f"[Earlier result: task {first.task_id}, completed]" in turn.text
    assert '"age": 41' in turn.text
    assert turn.text.index("quince") < turn.text.index("which fruit?")
    # What the task keeps is what the peer said.
    assert (await stored(alice, turn.task_id)).history[0].parts[0].text == "which fruit?"


@pytest.mark.feature(Feature.REFERENCES)
async def test_a_task_of_another_peer_cannot_be_told_from_one_that_does_not_exist(
    stack: Stack, alice: Client
) -> None:
    mine = await ask(alice, "demo:say a secret quince")
    errors = []
    async with peer(stack.url, token=BOB) as bob:
        for name in (mine.task_id, "no-such-task"):
            request = message("what is it?")
            request.message.reference_task_ids.append(name)
            with pytest.raises(InvalidParamsError) as caught:
                await send(bob, request)
            errors.append(str(caught.value).replace(name, "ID"))
    assert errors[0] == errors[1]
    assert "ID not found" in errors[0]


def choosing(model: Any, text: str, context_id: str = "") -> SendMessageRequest:
    request = message(text, context_id)
    request.message.metadata.update({"model": model})
    return request


@pytest.mark.feature(Feature.MODEL_CHOICE)
async def test_a_message_chooses_its_model_and_the_next_one_has_the_default_again(
    alice: Client,
) -> None:
    said = []
    for request in (
        message("demo:model", "models"),
        choosing(OFFERED, "demo:run true\ndemo:model", "models"),
        message("demo:model", "models"),
        choosing("other", "demo:model", "models"),
        message("demo:model", "models"),
    ):
        turn = await send(alice, request)
        assert turn.states[-1] == "COMPLETED"
        said.append(turn.text)
    assert said == ["molecule-demo", OFFERED, "molecule-demo", "other", "molecule-demo"]


@pytest.mark.feature(Feature.MODEL_CHOICE)
@pytest.mark.parametrize("model", ["gpt-unheard-of", 7, {"name": "other"}])
async def test_a_model_that_is_not_offered_is_refused_by_name(alice: Client, model: Any) -> None:
    turn = await send(alice, choosing(model, "hello"))
    assert turn.states[-1] == "REJECTED"
    assert turn.failure["kind"] == "bad_request"
    assert "is not offered" in turn.failure["message"]
    assert OFFERED in turn.failure["hint"]
    if isinstance(model, str):
        assert model in turn.failure["message"]


@pytest.mark.feature(Feature.MODEL_CHOICE)
async def test_the_card_names_the_models_that_can_be_chosen(stack: Stack) -> None:
    async with httpx.AsyncClient() as http:
        card = (await http.get(stack.url + "/.well-known/agent-card.json")).json()
    (declared,) = [e for e in card["capabilities"]["extensions"] if "turn-metadata" in e["uri"]]
    assert declared["params"]["models"] == [OFFERED, "other"]


@pytest.mark.without(Feature.MODEL_CHOICE)
async def test_where_hermes_uses_its_own_model_every_choice_is_refused(alice: Client) -> None:
    turn = await send(alice, choosing(OFFERED, "hello"))
    assert turn.states[-1] == "REJECTED"
    assert turn.failure["kind"] == "bad_request"
    assert OFFERED in turn.failure["message"]
