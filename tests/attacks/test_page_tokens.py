"""A malformed page token is an error of the peer that sent it."""

from __future__ import annotations

import base64

import pytest
from a2a.types import ListTasksRequest
from a2a.utils.errors import InvalidParamsError

from molecule_hermes.turns.model import Completed
from tests.conftest import StartBridge
from tests.support.fakes import ScriptedTransport
from tests.support.peers import peer


@pytest.mark.parametrize("store", ["sqlite", "memory"])
async def test_a_deeply_nested_page_token_is_an_error_of_the_peer(
    bridge: StartBridge, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    token = base64.urlsafe_b64encode(b"[" * 150_000).decode()
    async with bridge(ScriptedTransport(Completed("x")), STORE=store) as b, peer(b.url) as client:
        with pytest.raises(InvalidParamsError):
            await client.list_tasks(ListTasksRequest(page_token=token))
    assert "Traceback" not in caplog.text
