"""Only the operator of this machine hands conversations over."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from molecule_hermes.config import Settings
from molecule_hermes.server.bridge import Bridge
from molecule_hermes.server.operator import HANDOFFS_PATH, read_access
from tests.support.fakes import ScriptedTransport
from tests.support.raw_http import TOKEN, TOKENS

ASKED = {"session": "s", "peer": "nobody", "home": "/nowhere"}


def token_in(settings: Settings) -> str:
    access = read_access(settings.state_dir)
    assert access is not None
    return access[1]


async def test_a_peer_cannot_hand_a_conversation_over(settings: Callable[..., Settings]) -> None:
    known = settings(PEER_TOKENS=TOKENS)
    async with Bridge(known, ScriptedTransport()) as bridge, httpx.AsyncClient() as http:
        operator = token_in(known)
        for token in ("-", TOKEN, "wrong", operator[:-1]):
            headers = {"Authorization": f"Bearer {token}"}
            answer = await http.post(bridge.url + HANDOFFS_PATH, json=ASKED, headers=headers)
            assert answer.status_code == 401
        headers = {"Authorization": f"Bearer {operator}"}
        for forwarded in ({"X-Forwarded-For": "203.0.113.7"}, {"Via": "1.1 proxy"}):
            given = headers | forwarded
            answer = await http.post(bridge.url + HANDOFFS_PATH, json=ASKED, headers=given)
            assert answer.status_code == 401
        answer = await http.post(bridge.url + HANDOFFS_PATH, json=ASKED, headers=headers)
        assert answer.status_code == 202
        answer = await http.post(bridge.url + "/", json={}, headers=headers)
        assert answer.status_code == 401, "it is no peer's token"


async def test_the_operators_token_is_new_at_each_start_and_gone_afterwards(
    settings: Callable[..., Settings],
) -> None:
    known = settings()
    async with Bridge(known, ScriptedTransport()):
        first = token_in(known)
        (file,) = Path(known.state_dir).glob("operator.json")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_access(known.state_dir) is None
    async with Bridge(known, ScriptedTransport()):
        assert token_in(known) != first


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b"[" * 10_000,
        b"{}",
        b"x" * 20_000,
        json.dumps(ASKED | {"session": 1}).encode(),
        json.dumps(ASKED | {"peer": "x" * 2000}).encode(),
        json.dumps(ASKED | {"home": "a\nb"}).encode(),
    ],
)
async def test_a_request_that_makes_no_sense_is_refused(
    settings: Callable[..., Settings], body: bytes
) -> None:
    known = settings()
    async with Bridge(known, ScriptedTransport()) as bridge, httpx.AsyncClient() as http:
        headers = {"Authorization": f"Bearer {token_in(known)}"}
        answer = await http.post(bridge.url + HANDOFFS_PATH, content=body, headers=headers)
        assert answer.status_code == 400
        assert list(known.handoffs_dir.glob("*")) == []


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"url": "http://x"}'])
def test_a_file_that_makes_no_sense_means_that_no_bridge_runs(tmp_path: Path, text: str) -> None:
    (tmp_path / "operator.json").write_text(text)
    assert read_access(tmp_path) is None
