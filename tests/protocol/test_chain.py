"""The chain of agents that led to a message."""

from __future__ import annotations

from typing import Any

import pytest
from a2a.types import AgentCard, Message
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.errors import BadRequest, Forbidden
from molecule_hermes.protocol.chain import (
    CHAIN_URI,
    Chain,
    Loops,
    agent_id,
    chain_extension,
    id_on_card,
)

names = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))


def carrying(value: Any) -> Message:
    message = Message()
    message.metadata.update({CHAIN_URI: value})
    return message


def card(agent: str) -> AgentCard:
    found = AgentCard()
    found.capabilities.extensions.append(chain_extension(agent))
    return found


def test_a_message_without_a_chain_comes_from_no_agent() -> None:
    assert Chain.of(Message()) == Chain.of(None) == Chain()


@given(names, st.integers(0, 1000))
def test_a_chain_is_read_back_and_grows_by_one_agent(agents: list[str], hops: int) -> None:
    chain = Chain(tuple(agents), max(hops, len(agents)))
    message = Message()
    chain.followed_by("me").mark(message)
    read = Chain.of(message)
    assert read == Chain((*agents, "me"), chain.hops + 1)
    assert list(message.extensions) == [CHAIN_URI]
    chain.mark(message)
    assert list(message.extensions) == [CHAIN_URI]


def test_agents_count_as_hops_even_if_the_number_says_less() -> None:
    assert Chain.of(carrying({"agents": ["a", "b"], "hops": 0})).hops == 2


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        "x",
        [],
        {},
        {"agents": []},
        {"hops": 1},
        {"agents": "x", "hops": 1},
        {"agents": [1], "hops": 1},
        {"agents": [""], "hops": 1},
        {"agents": ["x" * 257], "hops": 1},
        {"agents": ["x"] * 65, "hops": 65},
        {"agents": [], "hops": -1},
        {"agents": [], "hops": 1.5},
        {"agents": [], "hops": 1e9},
        {"agents": [], "hops": "1"},
        {"agents": [], "hops": True},
    ],
)
def test_what_is_no_chain_is_a_bad_request(value: Any) -> None:
    with pytest.raises(BadRequest):
        Chain.of(carrying(value))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["agents", "hops", "x"]), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(json_values)
def test_anything_is_a_chain_or_a_bad_request(value: Any) -> None:
    try:
        chain = Chain.of(carrying(value))
    except BadRequest:
        return
    assert chain.hops >= len(chain.agents)


def test_an_agent_refuses_what_it_has_called_for_itself_and_too_many_hops() -> None:
    loops = Loops("me", 3)
    loops.refuse(Chain(("a", "b", "c"), 3))
    with pytest.raises(Forbidden):
        loops.refuse(Chain(("a", "me"), 2))
    with pytest.raises(Forbidden):
        loops.refuse(Chain((), 4))


def test_an_agent_calls_none_that_waits_for_it_nor_itself_nor_too_far_away() -> None:
    loops = Loops("me", 3)
    chain = Chain(("a", "b"), 2)
    loops.refuse_call(chain, card("c"))
    loops.refuse_call(chain, AgentCard())
    for refused in ("a", "b", "me"):
        with pytest.raises(Forbidden):
            loops.refuse_call(chain, card(refused))
    with pytest.raises(Forbidden):
        loops.refuse_call(Chain((), 3), card("c"))
    with pytest.raises(Forbidden):
        Loops("me", 0).refuse_call(Chain(), card("c"))


def test_each_agent_of_each_bridge_has_a_name_of_its_own_that_tells_nothing() -> None:
    known = {agent_id(b, a) for b in ("https://a.example", "b") for a in ("main", "other")}
    assert len(known) == 4
    assert agent_id("b", "main") in known
    assert not any("main" in name or "example" in name for name in known)


def test_a_card_that_does_not_say_its_name_is_in_no_chain() -> None:
    assert id_on_card(card("me")) == "me"
    assert id_on_card(AgentCard()) == id_on_card(card("")) == "?"
