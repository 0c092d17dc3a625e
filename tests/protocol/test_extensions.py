"""Extensions that a client activates: what it gets, and what others do not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx
import pytest

from molecule_hermes.config import Settings
from molecule_hermes.errors import Unreachable
from molecule_hermes.protocol.card import build_card
from molecule_hermes.protocol.extensions import (
    DELIVERIES,
    QUESTIONS,
    REASONING_URI,
    STRUCTURED_OUTPUT,
    TOOL_DETAIL_URI,
    TURN_METADATA,
    requested,
)
from molecule_hermes.protocol.reply import REASONING
from molecule_hermes.turns.features import TransportName, features_of
from molecule_hermes.turns.model import (
    Completed,
    Failed,
    Reasoning,
    TextDelta,
    ToolProgress,
    TurnEvent,
)
from tests.conftest import StartBridge
from tests.support.fakes import ScriptedTransport
from tests.support.peers import Turn, ask, peer

THINKS: tuple[TurnEvent, ...] = (
    Reasoning("Let me "),
    Reasoning("see. "),
    ToolProgress("terminal", "start", "ls"),
    Reasoning("So."),
    TextDelta("Found."),
    Completed("Found."),
)


def order(turn: Turn) -> list[str]:
    """The artifacts and status updates of a turn by name, repetitions left out."""
    names = []
    for event in turn.events:
        if event.HasField("artifact_update"):
            names.append(event.artifact_update.artifact.artifact_id)
        elif event.HasField("status_update") and event.status_update.status.HasField("message"):
            names.append("status")
    return [name for at, name in enumerate(names) if at == 0 or names[at - 1] != name]


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_the_reasoning_is_an_artifact_for_a_client_that_asks_for_it(
    bridge: StartBridge, version: str, binding: str
) -> None:
    transport = ScriptedTransport(*THINKS)
    way = {"version": version, "binding": binding}
    uris = ["urn:somebody:else", REASONING_URI]
    async with bridge(transport) as b, peer(b.url, extensions=uris, **way) as client:
        turn = await ask(client, "hi")
    assert transport.turns[0].extensions == {"reasoning"}
    assert turn.artifact(REASONING) == "Let me see. So."
    assert turn.text == "Found."
    assert order(turn)[:3] == [REASONING, "status", REASONING]


async def test_nobody_else_gets_the_reasoning(bridge: StartBridge) -> None:
    transport = ScriptedTransport(*THINKS)
    async with bridge(transport) as b, peer(b.url) as client:
        turn = await ask(client, "hi")
    assert transport.turns[0].extensions == frozenset()
    assert order(turn) == ["status", "reply"]


async def test_the_reasoning_of_a_turn_that_fails_stays(bridge: StartBridge) -> None:
    transport = ScriptedTransport(Reasoning("Hm."), Failed(Unreachable()))
    async with bridge(transport) as b, peer(b.url, extensions=[REASONING_URI]) as client:
        turn = await ask(client, "hi")
    assert (turn.states[-1], turn.artifact(REASONING)) == ("FAILED", "Hm.")
    last = [e.artifact_update for e in turn.events if e.HasField("artifact_update")][-1]
    assert last.last_chunk


async def test_much_reasoning_is_coalesced_into_few_updates(bridge: StartBridge) -> None:
    words = [f"w{number} " for number in range(2000)]
    pause = asyncio.Event()
    pause.set()
    transport = ScriptedTransport(*map(Reasoning, words), pause, Completed("done"))
    async with bridge(transport) as b, peer(b.url, extensions=[REASONING_URI]) as client:
        turn = await ask(client, "hi")
    assert turn.artifact(REASONING) == "".join(words)
    assert turn.updates < 100


async def test_the_response_names_what_was_activated(bridge: StartBridge) -> None:
    message = {"role": "ROLE_USER", "messageId": "m", "parts": [{"text": "hi"}]}
    headers = {"A2A-Version": "1.0", "A2A-Extensions": f"urn:x:1, {REASONING_URI}"}
    async with bridge(ScriptedTransport(Completed("x"))) as b, httpx.AsyncClient() as http:
        asked = await http.post(f"{b.url}/message:send", json={"message": message}, headers=headers)
        del headers["A2A-Extensions"]
        plain = await http.post(f"{b.url}/message:send", json={"message": message}, headers=headers)
    assert (asked.status_code, asked.headers["A2A-Extensions"]) == (200, REASONING_URI)
    assert "A2A-Extensions" not in plain.headers


@pytest.mark.parametrize(
    ("transport", "uris"),
    [
        ("plugin", [QUESTIONS, DELIVERIES, REASONING_URI, TOOL_DETAIL_URI]),
        ("chat", []),
    ],
)
def test_the_card_declares_what_the_transport_can_do(
    settings: Callable[..., Settings], transport: TransportName, uris: list[str]
) -> None:
    features = features_of(transport)
    card = build_card(settings(), "http://127.0.0.1", features)
    declared = [extension.uri for extension in card.capabilities.extensions]
    assert declared == [TURN_METADATA, STRUCTURED_OUTPUT, *uris]
    active = requested({REASONING_URI, TOOL_DETAIL_URI, "urn:x"}, features)
    assert active == ({"reasoning", "tool_detail"} if transport == "plugin" else frozenset())
