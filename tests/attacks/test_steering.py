"""A peer can steer only its own tasks, and cannot fill the store or Hermes by doing so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError, UnsupportedOperationError

from molecule_hermes.client.connection import message
from molecule_hermes.protocol.validation import MAX_ANSWERS, MAX_STEERS
from molecule_hermes.turns.model import Turn
from molecule_hermes.wire import Steered
from tests.conftest import StartBridge
from tests.protocol.test_steering import Working, begun
from tests.support.peers import ask, peer, send
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(60)


async def test_a_peer_cannot_steer_another_peers_task(bridge: StartBridge) -> None:
    transport = Working()
    tokens = "alice:alice-token-0123456789,bob:bob-token-0123456789"
    async with (
        bridge(transport, PEER_TOKENS=tokens) as b,
        peer(b.url, token="alice-token-0123456789") as alice,
        peer(b.url, token="bob-token-0123456789") as bob,
    ):
        turn = await begun(alice)
        with pytest.raises(TaskNotFoundError):
            await ask(bob, "use blue", task_id=turn.task_id)
        transport.over.set()
    assert not transport.steers


async def test_a_flood_of_messages_is_bounded_in_number_and_bytes(bridge: StartBridge) -> None:
    transport = Working()
    async with (
        bridge(transport) as b,
        peer(b.url) as client,
        peer(b.url, streaming=False) as plain,
        asyncio.timeout(60),
    ):
        turn = await begun(client)

        async def steer(text: str) -> None:
            request = message(text, task_id=turn.task_id)
            request.configuration.return_immediately = True
            await send(plain, request)

        with pytest.raises(InvalidParamsError, match="without taskId"):
            await steer("x" * (MAX_ANSWERS + 1))
        with pytest.raises(UnsupportedOperationError, match=f"taken {MAX_STEERS} further"):
            for number in range(MAX_STEERS + 1):
                await steer(f"text {number}")
                await until(lambda n=number: len(transport.steers) > n)  # type: ignore[misc]
        transport.over.set()
    assert len(transport.steers) == MAX_STEERS


class Slow(Working):
    """Does not answer before `answers` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.answers_now = asyncio.Event()

    async def steer(self, turn: Turn, text: str) -> Steered:
        await self.answers_now.wait()
        return await super().steer(turn, text)


async def test_messages_that_arrive_at_once_do_not_pass_the_bound(bridge: StartBridge) -> None:
    transport = Slow()
    async with (
        bridge(transport) as b,
        peer(b.url) as client,
        peer(b.url, streaming=False) as plain,
        asyncio.timeout(50),
    ):
        turn = await begun(client)

        async def steer(number: int) -> Any:
            request = message(f"text {number}", task_id=turn.task_id)
            request.configuration.return_immediately = True
            return await send(plain, request)

        flood = [asyncio.create_task(steer(number)) for number in range(MAX_STEERS + 20)]
        transport.answers_now.set()
        await asyncio.gather(*flood, return_exceptions=True)
        transport.over.set()

        await until(lambda: not b.turns)
    assert len(transport.steers) <= MAX_STEERS
