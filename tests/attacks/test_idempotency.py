"""No peer makes the bridge forget what another peer sent."""

from __future__ import annotations

import uuid

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.client.connection import message
from molecule_hermes.turns import idempotency as module
from molecule_hermes.turns.idempotency import IdempotencyIndex
from molecule_hermes.turns.model import Completed
from tests.conftest import StartBridge
from tests.support.fakes import ScriptedTransport
from tests.support.peers import peer, send

TOKENS = "alice:alice-token-0123456789,mallory:mallory-token-0123456789"
ALICE, MALLORY = "alice-token-0123456789", "mallory-token-0123456789"


def rejected(message_id: str = "") -> dict[str, object]:
    """A message with nothing to do in it."""
    sent = {
        "messageId": message_id or uuid.uuid4().hex,
        "role": "ROLE_USER",
        "parts": [{"text": ""}],
    }
    return {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": sent}}


@pytest.mark.parametrize("text", ["", "hi"], ids=["rejected", "run"])
async def test_many_messages_of_one_peer_do_not_evict_those_of_another(
    bridge: StartBridge, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(module, "MAX_ENTRIES", 60)
    transport = ScriptedTransport(Completed("done"))
    request = message("go")
    async with (
        bridge(transport, PEER_TOKENS=TOKENS) as b,
        peer(b.url, token=ALICE) as alice,
        httpx.AsyncClient(
            headers={"Authorization": f"Bearer {MALLORY}", "A2A-Version": "1.0"}
        ) as mallory,
    ):
        first = await send(alice, request)
        for _ in range(70):
            flood = rejected()
            flood["params"]["message"]["parts"] = [{"text": text}]  # type: ignore[index]
            assert "result" in (await mallory.post(b.url, json=flood)).json()
        again = await send(alice, request)
        assert b.known_messages <= 60
    assert again.task_id == first.task_id
    assert sum(turn.peer == "alice" for turn in transport.turns) == 1


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_rejected_messages_are_not_remembered(bridge: StartBridge, store: str) -> None:
    async with (
        bridge(ScriptedTransport(Completed("x")), STORE=store) as b,
        httpx.AsyncClient(headers={"A2A-Version": "1.0"}) as http,
    ):
        for _ in range(5):
            answered = (await http.post(b.url, json=rejected("same"))).json()
            assert answered["result"]["task"]["status"]["state"] == "TASK_STATE_REJECTED"
        assert b.known_messages == 0
        tasks = (await http.get(b.url + "/tasks")).json()["tasks"]
        assert len(tasks) == 5, "each was taken anew"


async def test_rejected_messages_are_not_read_back_at_the_start(bridge: StartBridge) -> None:
    async with bridge(ScriptedTransport(Completed("x"))) as b, peer(b.url) as client:
        async with httpx.AsyncClient(headers={"A2A-Version": "1.0"}) as http:
            for _ in range(5):
                await http.post(b.url, json=rejected())
        await send(client, message("run me"))
    async with bridge(ScriptedTransport()) as b:
        assert b.known_messages == 2, "one message, with and without its context"


def test_a_peer_that_sends_many_messages_loses_its_own_oldest_ones() -> None:
    index = IdempotencyIndex(60.0, max_entries=100, max_entries_of_peer=20)
    index.claim("alice", "", "first", "task")
    for number in range(1000):
        index.claim("mallory", "", str(number), "x")
    assert index.find("alice", "", "first") == "task"
    assert index.find("mallory", "", "999") == "x"
    assert index.find("mallory", "", "0") is None
    assert len(index) == 21


STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 30), st.integers(0, 3)), max_size=80
)


@given(STEPS)
def test_the_limits_hold_and_only_the_peer_with_most_messages_loses_any(
    steps: list[tuple[str, int, int]],
) -> None:
    now = 0.0
    index = IdempotencyIndex(1000.0, lambda: now, max_entries=12, max_entries_of_peer=8)
    claimed: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    for name, number, later in steps:
        now += later
        if before := index.find(name, "", str(number)):
            assert before == f"{name}{number}"
        else:
            index.claim(name, "", str(number), f"{name}{number}")
            if number in claimed[name]:
                claimed[name].remove(number)
            claimed[name].append(number)
        assert len(index) <= 12
    for name, numbers in claimed.items():
        # A third of the places is everybody's own.
        for number in numbers[-4:]:
            assert index.find(name, "", str(number)) == f"{name}{number}"
