"""Usage and progress as they really were, on the real Hermes, over each transport that has it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from a2a.client import Client
from a2a.types import CancelTaskRequest, GetTaskRequest

from molecule_hermes.client.connection import message
from molecule_hermes.hermes.demo_model import demo_model
from molecule_hermes.protocol.extensions import REASONING_URI, TOOL_DETAIL_URI
from molecule_hermes.protocol.reply import REASONING
from molecule_hermes.turns.features import Feature, TransportName, why_not
from tests.support.peers import Turn, artifact_text, ask, peer
from tests.support.stack import Stack, environment, up

pytestmark = pytest.mark.asyncio(loop_scope="module")

WINDOW = 256_000
"""What Hermes takes for the context window of a model that it does not know."""
PRICES = {"prompt": "0.001", "completion": "0.01"}
CALLS = 5
"""Hermes's limit of model calls for a turn here."""


@pytest.fixture(scope="module", params=["plugin", "chat"])
def way(request: pytest.FixtureRequest) -> TransportName:
    found: TransportName = request.param
    return found


@pytest.fixture(autouse=True)
def _as_the_table_says(request: pytest.FixtureRequest, way: TransportName) -> None:
    for mark in request.node.iter_markers():
        if mark.name in ("feature", "without"):
            reason = why_not(mark.args[0], way)
            if bool(reason) is (mark.name == "feature"):
                pytest.skip(f"{way}: {mark.args[0].value.what}: {reason or 'yes'}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(
    tmp_path_factory: pytest.TempPathFactory, way: TransportName
) -> AsyncIterator[Stack]:
    """A demo model with prices, and a second name of it as the fallback."""
    async with demo_model(prices=PRICES) as url:
        environ = environment(
            tmp_path_factory.mktemp("stack"),
            MOLECULE_A2A_PLATFORM_ENABLED="true" if way == "plugin" else "false",
            HERMES_CUSTOM_BASE_URL=url,
            HERMES_CUSTOM_API_KEY="the-custom-key-0123456789",
            HERMES_INFERENCE_MODEL="molecule-demo",
            MOLECULE_HERMES_TURN_TIMEOUT="20",
        )
        home = Path(environ["MOLECULE_HERMES_STATE_DIR"]) / "hermes"
        home.mkdir()
        second = {"provider": "custom", "model": "second", "base_url": url, "api_key": "k" * 20}
        config = {
            "agent": {"api_max_retries": 3, "max_turns": CALLS},
            "fallback_providers": [second],
            "compression": {"protect_first_n": 0, "protect_last_n": 1},
        }
        (home / "config.yaml").write_text(json.dumps(config))
        async with up(environ) as running:
            yield running


@pytest_asyncio.fixture(loop_scope="module")
async def alice(stack: Stack) -> AsyncIterator[Client]:
    async with peer(stack.url) as client, asyncio.timeout(60):
        yield client


async def tokens(stack: Stack) -> dict[str, float]:
    """The counters of tokens and cost."""
    async with httpx.AsyncClient() as http:
        text = (await http.get(f"{stack.url}/metrics")).text
    found = re.findall(r"^molecule_hermes_((?:tokens|cost_usd)_total\S*) (\S+)$", text, re.M)
    return {name: float(value) for name, value in found}


@pytest.mark.feature(Feature.MODEL)
async def test_the_end_says_what_the_turn_used_and_what_it_cost(alice: Client) -> None:
    turn = await ask(alice, "demo:words=7\ndemo:cached=90\ndemo:think one two three")
    usage = turn.figures["usage"]
    assert usage == {
        "inputTokens": 100,
        "outputTokens": 10,
        "cachedTokens": 90,
        "reasoningTokens": 3,
        "totalTokens": 110,
        "model": "molecule-demo",
        "provider": "custom",
    }
    assert turn.figures["context"] == {"used": 100, "window": WINDOW}
    priced = await ask(alice, "demo:words=7")
    # No price is known for cached tokens, so the cost of the first turn is not, either.
    assert priced.figures["usage"]["costUsd"] == pytest.approx(10 * 0.001 + 7 * 0.01)


@pytest.mark.feature(Feature.TOKENS)
async def test_all_model_calls_of_a_turn_count(alice: Client) -> None:
    turn = await ask(alice, "demo:run echo hi")
    task = await alice.get_task(GetTaskRequest(id=turn.task_id))
    assert turn.figures["usage"]["inputTokens"] == 20
    assert task.metadata["usage"]["inputTokens"] == 20


@pytest.mark.feature(Feature.TOKENS_OF_FAILURES)
async def test_a_turn_that_fails_says_what_it_used(alice: Client) -> None:
    turn = await ask(alice, "demo:empty")
    assert turn.states[-1] == "FAILED"
    assert turn.figures["usage"]["inputTokens"] >= 10


@pytest.mark.feature(Feature.TOKENS_OF_CANCELS)
async def test_a_turn_that_is_canceled_says_what_it_used(alice: Client) -> None:
    turn = await _canceled(alice)
    assert turn.figures["usage"]["inputTokens"] == 10
    assert turn.figures["usage"]["outputTokens"] == 5
    assert turn.figures["usage"]["model"] == "molecule-demo"
    assert turn.figures["context"]["used"] == 10


@pytest.mark.without(Feature.TOKENS_OF_CANCELS)
async def test_no_figures_are_made_up_for_a_canceled_turn(alice: Client) -> None:
    assert "usage" not in (await _canceled(alice)).figures


async def _canceled(client: Client) -> Turn:
    turn, canceled = Turn(), False
    async for event in client.send_message(message("demo:run sleep 30")):
        turn.add(event)
        if "tool" in (turn.data or [{}])[-1] and turn.states[-1] == "WORKING" and not canceled:
            canceled = True
            await client.cancel_task(CancelTaskRequest(id=turn.task_id))
    assert turn.states[-1] == "CANCELED"
    return turn


@pytest.mark.feature(Feature.TOKENS_OF_CANCELS)
async def test_a_turn_that_takes_too_long_says_what_it_used(alice: Client) -> None:
    turn = await ask(alice, "demo:run sleep 30")
    assert turn.failure["kind"] == "timeout"
    assert turn.figures["usage"]["inputTokens"] == 10


@pytest.mark.feature(Feature.SUBAGENTS)
@pytest.mark.feature(Feature.SUBAGENT_TOKENS)
async def test_a_subagent_is_shown_and_its_calls_are_the_turns(alice: Client) -> None:
    turn = await ask(alice, 'demo:call=delegate_task {"goal": "demo:words=40"}')
    assert turn.states[-1] == "COMPLETED"
    shown = [data["subagent"] for data in turn.data if "subagent" in data]
    assert [(s["phase"], s["goal"]) for s in shown] == [
        ("start", "demo:words=40"),
        ("end", "demo:words=40"),
    ], (turn.progress, turn.text, turn.figures)
    assert shown[0]["id"] == shown[1]["id"]
    assert shown[1]["ok"] is True
    assert shown[1]["duration"] > 0
    # Two calls of the agent, and one of the subagent.
    assert turn.figures["usage"]["inputTokens"] == 30
    assert turn.figures["usage"]["outputTokens"] >= 40
    assert turn.figures["usage"]["model"] == "molecule-demo"


@pytest.mark.feature(Feature.NOTICES)
async def test_each_retry_says_which_it_is(alice: Client) -> None:
    turn = await ask(alice, "demo:flaky=2\ndemo:words=3")
    assert turn.states[-1] == "COMPLETED"
    retries = [data for data in turn.data if data.get("kind") == "retrying"]
    assert [(r["attempt"], r["of"]) for r in retries] == [(1, 2), (2, 2)]
    assert retries[0]["notice"] == "the model call failed (internal); retry 1 of 2"


@pytest.mark.feature(Feature.NOTICES)
async def test_a_fallback_names_both_models_before_the_answer(alice: Client) -> None:
    turn = await ask(alice, "demo:model=second\ndemo:words=3")
    assert turn.states[-1] == "COMPLETED"
    (notice,) = [data for data in turn.data if data.get("kind") == "fallback"]
    assert (notice["from"], notice["to"]) == ("molecule-demo", "second")
    assert turn.figures["usage"]["model"] == "second"
    kinds = [
        "text" if event.HasField("artifact_update") else "fallback"
        for event in turn.events
        if event.HasField("artifact_update") or "second" in str(event.status_update)
    ]
    assert kinds[0] == "fallback"
    assert not [line for line in turn.progress if "🔄" in line]


@pytest.mark.feature(Feature.NOTICES)
async def test_a_compression_is_reported(alice: Client) -> None:
    for number in range(4):
        await ask(alice, f"demo:words=200\n{number}", "long")
    turn = await ask(alice, "demo:run echo hi\ndemo:cached=230000", "long")
    assert turn.states[-1] == "COMPLETED"
    assert "compressed" in [data.get("kind") for data in turn.data], turn.progress


async def test_a_turn_that_waits_for_its_conversation_says_so(alice: Client) -> None:
    first, second = await asyncio.gather(
        ask(alice, "demo:slow=0.1\nfirst", "one"), ask(alice, "demo:words=1\nsecond", "one")
    )
    kinds = [data.get("kind") for turn in (first, second) for data in turn.data]
    assert kinds == ["waiting"]


@pytest.mark.feature(Feature.TOOL_CALLS)
async def test_a_tool_call_has_an_id_its_arguments_and_why_it_failed(alice: Client) -> None:
    said = 'demo:call=read_file {"path": "/nowhere/at/all", "limit": 3, "api_key": "0123456789"}'
    turn = await ask(alice, said)
    began, ended = (data["tool"] for data in turn.data if "tool" in data)
    assert began["id"] == ended["id"] != ""
    assert began["args"] == {"path": "/nowhere/at/all", "limit": 3, "api_key": "***"}
    assert ended["ok"] is False
    assert "/nowhere/at/all" in ended["error"]
    assert "result" not in ended


@pytest.mark.feature(Feature.TOOL_DETAIL)
async def test_a_peer_that_asks_for_it_gets_the_result_of_a_tool(stack: Stack) -> None:
    async with peer(stack.url, extensions=[TOOL_DETAIL_URI]) as client:
        turn = await ask(client, "demo:run seq 1 300")
    (ended,) = [d["tool"] for d in turn.data if d.get("tool", {}).get("phase") == "end"]
    assert len(ended["output"]) == 200
    assert "299" in ended["result"]
    assert not turn.artifact(REASONING)


THOUGHT = " ".join(f"thought{number}" for number in range(100))


@pytest.mark.feature(Feature.REASONING)
@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_a_peer_that_asks_for_it_sees_what_the_model_thinks(
    stack: Stack, version: str
) -> None:
    said = f"demo:slow=0.01\ndemo:think {THOUGHT}"
    async with peer(stack.url, version=version, extensions=[REASONING_URI]) as client:
        turn = await ask(client, said)
        task = await client.get_task(GetTaskRequest(id=turn.task_id))
    updates = [e.artifact_update for e in turn.events if e.HasField("artifact_update")]
    order = [update.artifact.artifact_id for update in updates]
    assert turn.artifact(REASONING).split() == THOUGHT.split()
    assert artifact_text(task, REASONING).split() == THOUGHT.split()
    assert order.count(REASONING) > 2
    assert order[0] == REASONING
    assert "thought" in turn.text, "the demo model repeats the message"
    assert turn.figures["usage"]["reasoningTokens"] == 100


@pytest.mark.feature(Feature.REASONING)
async def test_a_peer_that_does_not_ask_for_it_sees_no_reasoning(
    stack: Stack, alice: Client
) -> None:
    async with peer(stack.url, extensions=[REASONING_URI]) as client:
        first = await ask(client, "demo:think hm\nfirst", "thinking")
    # Hermes keeps the agent of a conversation, and with it who listens.
    second = await ask(alice, "demo:think hm\nsecond", "thinking")
    assert (first.artifact(REASONING), second.artifact(REASONING)) == ("hm", "")


@pytest.mark.without(Feature.REASONING)
async def test_the_card_declares_only_what_a_peer_can_activate(stack: Stack) -> None:
    async with httpx.AsyncClient() as http:
        card = (await http.get(f"{stack.url}/.well-known/agent-card.json")).json()
    declared = [extension["uri"] for extension in card["capabilities"]["extensions"]]
    assert declared == [
        "urn:molecule-hermes:a2a:turn-metadata:1",
        "urn:molecule-hermes:a2a:structured-output:1",
        "urn:molecule-hermes:a2a:chain:1",
    ]


@pytest.mark.feature(Feature.INCOMPLETE)
async def test_an_answer_that_the_limit_of_calls_cut_is_marked(alice: Client) -> None:
    turn = await ask(alice, "demo:loop true")
    whole = await ask(alice, "demo:run true")
    assert turn.states[-1] == "COMPLETED"
    assert turn.figures["incomplete"] is True
    assert turn.figures["usage"]["inputTokens"] >= 10 * CALLS
    assert "incomplete" not in whole.figures


@pytest.mark.feature(Feature.MODEL)
async def test_operators_see_tokens_and_cost_by_model(stack: Stack, alice: Client) -> None:
    before = await tokens(stack)
    await ask(alice, "demo:words=7")
    await ask(alice, "demo:model=second\ndemo:words=3")
    after = await tokens(stack)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    assert grown('tokens_total{agent="main",kind="output",model="molecule-demo"}') == 7
    assert grown('tokens_total{agent="main",kind="output",model="second"}') == 3
    assert grown('tokens_total{agent="main",kind="input",model="second"}') == 10
    assert grown('cost_usd_total{agent="main",model="molecule-demo"}') == pytest.approx(0.08)


# The last test: it kills the Hermes of this module.
@pytest.mark.feature(Feature.TOKENS_OF_CANCELS)
async def test_a_turn_whose_hermes_dies_says_what_it_used(stack: Stack, alice: Client) -> None:
    turn, killed = Turn(), False
    async for event in alice.send_message(message("demo:run sleep 30")):
        turn.add(event)
        if not killed and any("tool" in data for data in turn.data):
            killed = True
            os.kill(stack.hermes_pid(), signal.SIGKILL)
    assert turn.failure["kind"] == "interrupted"
    assert turn.figures["usage"]["inputTokens"] == 10
    assert turn.figures["context"]["used"] == 10
