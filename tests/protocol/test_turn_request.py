"""What a turn may ask of other agents, from the message that began it."""

from __future__ import annotations

from typing import Any

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.context import ServerCallContext
from a2a.types import Message, Part, SendMessageRequest

from molecule_hermes.protocol.chain import CHAIN_URI, Chain
from molecule_hermes.protocol.incoming import without_bytes
from molecule_hermes.protocol.policy import Policy
from molecule_hermes.protocol.turn_request import turn_of
from molecule_hermes.turns.outbound import Outbound, Progress, TurnCalls


class Asking:
    def __init__(self, chain: Chain) -> None:
        self.chain = chain

    def begin(self, conversation: str, progress: Progress) -> TurnCalls:
        raise AssertionError("nobody asks")


class Reach:
    def after(self, chain: Chain) -> Outbound:
        return Asking(chain)


def outbound(message: Message | None, policy: Policy | None = None) -> Any:
    request = SendMessageRequest(message=message) if message is not None else None
    context = RequestContext(ServerCallContext(), request)
    return turn_of(context, policy or Policy(reach=Reach())).outbound


def message(chain: Any) -> Message:
    sent = Message(message_id="m", parts=[Part(raw=b"x" * 100_000, filename="f")])
    sent.metadata.update({CHAIN_URI: chain})
    return sent


def test_a_turn_knows_which_agents_led_to_its_message_also_from_the_history() -> None:
    sent = message({"agents": ["a", "b"], "hops": 3})
    assert outbound(sent).chain == Chain(("a", "b"), 3)
    # What a bridge that is restarted has of it.
    assert outbound(without_bytes(sent)).chain == Chain(("a", "b"), 3)


@pytest.mark.parametrize("sent", [None, message("no chain")], ids=["no message", "no chain"])
def test_a_turn_of_which_it_is_not_known_asks_nobody(sent: Message | None) -> None:
    assert outbound(sent) is None


def test_a_turn_whose_agent_may_ask_nobody_does_not() -> None:
    assert outbound(message({"agents": [], "hops": 0}), Policy()) is None
