"""`/metrics`: what it counts and what it shows of the present."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import httpx

from molecule_hermes.errors import Busy, Interrupted
from molecule_hermes.telemetry.metrics import Metrics
from molecule_hermes.turns.model import Completed, Failed, Spent, TextDelta, Usage
from tests.conftest import StartBridge
from tests.support.fakes import ScriptedTransport
from tests.support.peers import ask, peer
from tests.support.waiting import until


async def figures(url: str, token: str = "") -> dict[str, float]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with httpx.AsyncClient(headers=headers) as http:
        answer = await http.get(f"{url}/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    found = re.findall(r"^molecule_hermes_(\S+) (\S+)$", answer.text, re.M)
    return {name: float(value) for name, value in found}


async def test_turns_are_counted_by_state_and_kind(bridge: StartBridge) -> None:
    transport = ScriptedTransport(TextDelta("a"), Completed("a"))
    async with bridge(transport) as b, peer(b.url) as client:
        await ask(client, "one")
        transport.script = [Failed(Busy())]
        await ask(client, "two")
        await ask(client, "")
        seen = await figures(b.url)
    assert seen['turns_total{agent="main",kind="",state="completed"}'] == 1
    assert seen['turns_total{agent="main",kind="busy",state="failed"}'] == 1
    assert seen['turns_total{agent="main",kind="bad_request",state="rejected"}'] == 1
    assert seen['turn_seconds_count{agent="main"}'] == 3
    assert seen["first_text_seconds_count"] == 1
    assert seen['http_responses_total{status="200"}'] >= 3


async def test_running_and_waiting_turns_are_gauges(bridge: StartBridge) -> None:
    go = asyncio.Event()
    transport = ScriptedTransport(go, Completed("done"))
    async with bridge(transport, MAX_RUNNING=1) as b, peer(b.url) as client:
        turns = [asyncio.create_task(ask(client, "x")) for _ in range(3)]
        await until(lambda: b.turns == 3)
        seen = await figures(b.url)
        go.set()
        await asyncio.gather(*turns)
        after = await figures(b.url)
    assert seen["running_turns"] == 1
    assert seen["open_questions"] == 0
    assert (after["running_turns"], after["waiting_turns"]) == (0, 0)


async def test_with_peer_tokens_the_metrics_require_one(bridge: StartBridge) -> None:
    token = "alice-token-0123456789"
    async with bridge(ScriptedTransport(), PEER_TOKENS=f"alice:{token}") as b:
        async with httpx.AsyncClient() as http:
            assert (await http.get(f"{b.url}/metrics")).status_code == 401
        seen = await figures(b.url, token)
    assert seen['http_responses_total{status="401"}'] == 1
    assert "alice" not in str(seen)


async def test_tokens_and_cost_are_counted_by_model_however_the_turn_ended(
    bridge: StartBridge,
) -> None:
    small = Usage(10, 5, 15, "small", 4, 2, cost_usd=0.5)
    both = replace(small + Usage(1, 1, 2, "big"), models=(small, Usage(1, 1, 2, "big")))
    transport = ScriptedTransport(Completed("a", small))
    async with bridge(transport) as b, peer(b.url) as client:
        await ask(client, "one")
        transport.script = [Failed(Busy(), both)]
        await ask(client, "two")
        transport.script = [Spent(small), Interrupted()]
        await ask(client, "three")
        seen = await figures(b.url)
    counted = {
        kind: seen[f'tokens_total{{agent="main",kind="{kind}",model="small"}}']
        for kind in ("input", "output", "cached", "reasoning")
    }
    assert counted == {"input": 30, "output": 15, "cached": 12, "reasoning": 6}
    assert seen['tokens_total{agent="main",kind="input",model="big"}'] == 1
    assert seen['cost_usd_total{agent="main",model="small"}'] == 1.5
    assert 'cost_usd_total{agent="main",model="big"}' not in seen


def test_a_provider_cannot_make_series_without_end() -> None:
    metrics = Metrics()
    for number in range(1000):
        metrics.spent("main", Usage(1, 1, 2, f"model-{number}"))
    text = metrics.text().decode()
    assert text.count('tokens_total{agent="main",kind="input"') == 65
    assert 'tokens_total{agent="main",kind="input",model="other"} 936.0' in text
