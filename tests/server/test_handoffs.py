"""Handoffs in the bridge: whose, when they are refused, and what counts as arrived."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hermes_state import SessionDB
from pydantic import SecretStr

from molecule_hermes.config import AgentConfig, Configuration, PeerConfig, Settings, Webhook
from molecule_hermes.errors import Unreachable
from molecule_hermes.server.bridge import Bridge
from molecule_hermes.server.handoff_records import Handoff, HandoffRecords
from molecule_hermes.server.handoff_requests import requested_in
from molecule_hermes.server.operator import HANDOFFS_PATH, read_access
from molecule_hermes.turns.features import features_of
from molecule_hermes.turns.model import Completed
from tests.server.test_delivery_feed import ends, webhook
from tests.support.fakes import ScriptedTransport
from tests.support.operator_hermes import request_handoff
from tests.support.peers import ask, peer
from tests.support.waiting import until

ANN = "ann-token-of-the-tests"
TOKENS = f"ann:{ANN},bob:bob-token-of-the-tests"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The operator's Hermes, with a session."""
    folder = tmp_path / "operator"
    folder.mkdir()
    database = SessionDB(folder / "state.db")
    database.create_session("s1", "cli")
    database.append_message("s1", "user", "hello")
    database.append_message("s1", "assistant", "hi")
    database.close()
    return folder


def state(home: Path, session: str = "s1") -> dict[str, Any]:
    database = SessionDB(home / "state.db")
    try:
        return dict(database.get_handoff_state(session) or {})
    finally:
        database.close()


async def handed(settings: Settings, folder: Path, **asked: str) -> Handoff:
    """The handoff when it is over."""
    access = read_access(settings.state_dir)
    assert access is not None
    body = {"session": "s1", "peer": "ann", "home": str(folder), **asked}
    headers = {"Authorization": f"Bearer {access[1]}"}
    async with httpx.AsyncClient() as http:
        answer = await http.post(access[0] + HANDOFFS_PATH, json=body, headers=headers)
        assert answer.status_code == 202
    records, name = HandoffRecords(settings.handoffs_dir), answer.json()["id"]

    def over() -> Handoff | None:
        found = records.find(name)
        return found if found is not None and found.is_over else None

    handoff: Handoff = await until(over, 30)
    return handoff


@pytest.mark.parametrize(("status", "ended"), [(200, "completed"), (403, "failed")])
async def test_completed_means_that_the_peers_webhook_has_taken_it(
    settings: Callable[..., Settings], home: Path, status: int, ended: str
) -> None:
    known = settings(PEER_TOKENS=TOKENS)
    async with webhook(status) as (url, got):
        hook = Webhook(url, SecretStr("hook-token"))
        configuration = Configuration(
            agents={"main": AgentConfig()}, peers={"ann": PeerConfig("ann", webhook=hook)}
        )
        transport = ScriptedTransport(Completed("I go on here"))
        async with Bridge(known, transport, configuration=configuration):
            handoff = await handed(known, home)
    assert (handoff.state, bool(handoff.reason)) == (ended, ended == "failed")
    assert ends(got) == [handoff.task_id]
    assert state(home)["state"] == ended
    (turn,) = transport.turns
    assert turn.peer == "ann"
    assert turn.handoff is not None
    assert [each["content"] for each in turn.handoff.messages] == ["hello", "hi"]


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"peer": "carol"}, "unknown peer"),
        ({"agent": "other"}, "does not reach the agent"),
        ({"session": "s2"}, "there is no session"),
        ({"home": "/nonexistent"}, "has no sessions"),
    ],
)
async def test_what_cannot_be_handed_over_fails_with_the_reason(
    settings: Callable[..., Settings], home: Path, asked: dict[str, str], reason: str
) -> None:
    known = settings(PEER_TOKENS=TOKENS)
    transport = ScriptedTransport(Completed("I go on here"))
    async with Bridge(known, transport):
        handoff = await handed(known, home, **asked)
    assert handoff.state == "failed"
    assert reason in handoff.reason
    assert state(home)["state"] is None
    assert transport.turns == []


async def test_an_agent_that_cannot_be_reached_takes_no_handoff(
    settings: Callable[..., Settings], home: Path
) -> None:
    known = settings(PEER_TOKENS=TOKENS)
    transport = ScriptedTransport(Completed("I go on here"))
    transport.failure = Unreachable("the plugin does not answer")
    async with Bridge(known, transport):
        assert "does not answer" in (await handed(known, home)).reason
        transport.failure = None
        transport.features = features_of("chat")
        assert "over chat completions" in (await handed(known, home)).reason
    assert state(home)["state"] is None


async def test_only_the_plugin_gives_a_conversation_to_a_platform(
    settings: Callable[..., Settings], home: Path
) -> None:
    known = settings(PEER_TOKENS=TOKENS)
    transport = ScriptedTransport(Completed("hello"))
    async with Bridge(known, transport) as bridge:
        async with peer(bridge.local_url, token=ANN) as client:
            await ask(client, "hello", "c1")
        handoff = await handed(known, home, session="c1", peer="telegram")
        assert (handoff.state, handoff.context_id) == ("failed", "c1")
        assert "over chat completions" in handoff.reason
        elsewhere = await handed(known, home, session="c1", peer="telegram", owner="bob")
        assert "no conversation in context 'c1'" in elsewhere.reason
        assert "unknown peer 'telegram'; known are ann, bob" in elsewhere.reason
        assert "not to a peer" in (await handed(known, home, owner="bob")).reason


async def test_what_a_bridge_that_died_was_giving_to_a_platform_has_failed(
    settings: Callable[..., Settings], home: Path
) -> None:
    known = settings(PEER_TOKENS=TOKENS)
    left = Handoff("c1", "pager", "main", "c1", str(home), state="running", to_platform=True)
    records = HandoffRecords(known.handoffs_dir)
    records.save(left)
    async with Bridge(known, ScriptedTransport(Completed("hello"))):
        await until(lambda: (found := records.find(left.id)) and found.is_over, 30)
    found = records.find(left.id)
    assert found is not None
    assert (found.state, "pager" in found.reason) == ("failed", True)


async def test_a_bridge_that_is_stopped_ends_its_handoffs(
    settings: Callable[..., Settings], home: Path
) -> None:
    known = settings(PEER_TOKENS=TOKENS, DRAIN_TIMEOUT=0)
    transport = ScriptedTransport(asyncio.Event())
    async with Bridge(known, transport):
        handing = asyncio.create_task(handed(known, home))
        await until(lambda: transport.turns, 30)
    handoff = await handing
    assert handoff.state == "failed"
    assert state(home)["state"] == "failed"


async def test_a_handoff_that_a_bridge_left_before_its_task_fails(
    settings: Callable[..., Settings], home: Path
) -> None:
    known = settings(PEER_TOKENS=TOKENS)
    records = HandoffRecords(known.handoffs_dir)
    left = Handoff("s1", "ann", "main", "ctx", str(home), claimed=True)
    records.save(left)
    async with Bridge(known, ScriptedTransport()):
        await until(lambda: (found := records.find(left.id)) is not None and found.is_over, 30)
    found = records.find(left.id)
    assert found is not None
    assert "restarted" in found.reason


def test_only_the_last_handoffs_are_kept(tmp_path: Path) -> None:
    records = HandoffRecords(tmp_path, keep=2)
    for number in range(4):
        handoff = Handoff("s", "ann", "", "ctx", "/home", began=f"2026-01-0{number + 1}")
        handoff.end("")
        records.save(handoff)
    open_one = Handoff("s", "ann", "", "ctx", "/home", began="2025-01-01")
    records.save(open_one)
    records.prune()
    assert [each.began for each in records] == ["2025-01-01", "2026-01-03", "2026-01-04"]


# Hermes's own command.


def of_home(settings: Callable[..., Settings], home: Path, **more: str) -> Settings:
    return settings(PEER_TOKENS=TOKENS, **more).model_copy(update={"hermes_home": home})


async def until_over(home: Path) -> dict[str, Any]:
    return dict(await until(lambda: (s := state(home))["state"] != "running" and s, 30))


async def test_hermess_own_command_hands_over_to_the_peer_of_the_settings(
    settings: Callable[..., Settings], home: Path
) -> None:
    known = of_home(settings, home, HANDOFF_TO="ann/from-the-terminal")
    transport = ScriptedTransport(Completed("I go on here"))
    async with Bridge(known, transport):
        request_handoff(home, "s1", "running")
        assert (await until_over(home))["state"] == "completed"
    (turn,) = transport.turns
    assert (turn.peer, turn.context_id) == ("ann", "from-the-terminal")
    (handoff,) = HandoffRecords(known.handoffs_dir)
    assert handoff.state == "completed"


@pytest.mark.parametrize(("to", "reason"), [("", "HANDOFF_TO"), ("carol", "unknown peer")])
async def test_hermess_own_command_fails_if_the_settings_name_no_peer(
    settings: Callable[..., Settings], home: Path, to: str, reason: str
) -> None:
    async with Bridge(of_home(settings, home, HANDOFF_TO=to), ScriptedTransport()):
        request_handoff(home, "s1", "running")
        ended = await until_over(home)
    assert ended["state"] == "failed"
    assert reason in ended["error"]


async def test_a_request_that_cannot_be_claimed_fails_once(
    settings: Callable[..., Settings], home: Path
) -> None:
    database = SessionDB(home / "state.db")
    database.append_message("s1", "user", "what else?")
    database.close()
    known = of_home(settings, home, HANDOFF_TO="ann")
    async with Bridge(known, ScriptedTransport()):
        request_handoff(home, "s1", "running")
        assert "mid-turn" in (await until_over(home))["error"]
    assert len(list(HandoffRecords(known.handoffs_dir))) == 1


def test_a_database_that_is_none_asks_for_nothing(tmp_path: Path) -> None:
    assert requested_in(tmp_path) is None
    (tmp_path / "state.db").write_bytes(b"not a database" * 100)
    assert requested_in(tmp_path) is None


def test_a_database_that_takes_for_ever_is_given_up(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "state.db") as database:
        database.execute(
            "CREATE VIEW sessions AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 "
            "FROM n) SELECT i AS id, 'running' AS handoff_state, i AS handoff_platform, "
            "i AS started_at FROM n"
        )
    assert requested_in(tmp_path) is None


async def test_requests_are_taken_one_after_another(
    settings: Callable[..., Settings], home: Path
) -> None:
    database = SessionDB(home / "state.db")
    database.create_session("s2", "cli")
    database.append_message("s2", "user", "hello")
    database.append_message("s2", "assistant", "hi")
    database.close()
    transport = ScriptedTransport(Completed("I go on here"))
    async with Bridge(of_home(settings, home, HANDOFF_TO="ann"), transport):
        request_handoff(home, "s1", "running")
        request_handoff(home, "s2", "running")
        for session in ("s1", "s2"):
            await until(lambda name=session: state(home, name)["state"] == "completed", 30)
    assert len(transport.turns) == 2
