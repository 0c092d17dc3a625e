"""The model of a turn."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.turns.model import conversation_id

_anything = st.text(st.characters(), max_size=300)


@given(_anything, _anything)
def test_a_conversation_has_a_name_that_hermes_accepts(peer: str, context_id: str) -> None:
    assert re.fullmatch(r"a2a-[0-9a-f]{40}", conversation_id(peer, context_id))
    assert conversation_id(peer, context_id) == conversation_id(peer, context_id)


@given(st.tuples(_anything, _anything), st.tuples(_anything, _anything))
def test_two_conversations_never_share_a_name(one: tuple[str, str], two: tuple[str, str]) -> None:
    assert (conversation_id(*one) == conversation_id(*two)) == (one == two)


def test_moving_the_border_between_peer_and_context_changes_the_name() -> None:
    assert conversation_id("ab", "c") != conversation_id("a", "bc")
    assert conversation_id("", "1:a") != conversation_id("a", "")
