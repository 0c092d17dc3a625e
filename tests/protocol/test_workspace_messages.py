"""What the metadata of a platform's messages says about sender and earlier turns."""

from __future__ import annotations

from typing import Any

from a2a.types import Message
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.protocol.workspace_messages import (
    MAX_HISTORY,
    MAX_HISTORY_TEXT,
    WorkspaceMessages,
    history_of,
    sender_of,
)
from molecule_hermes.turns.model import Turn, Utterance

JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
TURN = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "agent", "system"]) | JSON},
    optional={"parts": st.lists(st.fixed_dictionaries({"text": st.text() | JSON}) | JSON) | JSON},
)


def _message(metadata: dict[str, Any]) -> Message:
    message = Message()
    message.metadata.update(metadata)
    return message


def _turn(context_id: str) -> Turn:
    return Turn("m", "", context_id, "t", "text")


def test_the_first_name_of_the_sender_counts() -> None:
    assert sender_of(_message({})) == "user"
    assert sender_of(_message({"peer_name": "Ada", "peer_id": " "})) == "Ada"
    assert sender_of(_message({"peer_id": "p", "source_workspace_id": "w"})) == "w"
    assert sender_of(_message({"peer_id": 7})) == "user"


def test_names_that_run_together_are_different_conversations() -> None:
    random = "0b8c1a0e-4f0c-4c55-9d3e-3d8f6f0f9a11"
    one = WorkspaceMessages("a").complete(_turn(random), _message({"peer_id": "bc"}))
    two = WorkspaceMessages("ab").complete(_turn(random), _message({"peer_id": "c"}))
    assert one.conversation != two.conversation
    assert one.context_id == random


@given(metadata=st.dictionaries(st.sampled_from(["history", "peer_id", "x"]), JSON))
def test_any_metadata_is_read(metadata: dict[str, Any]) -> None:
    message = _message(metadata)
    assert sender_of(message)
    history_of(message)


@given(turns=st.lists(TURN, max_size=40))
def test_a_history_is_bounded_and_has_only_turns(turns: list[Any]) -> None:
    history = history_of(_message({"history": turns}))
    assert len(history) <= MAX_HISTORY
    assert sum(len(each.text) for each in history) <= MAX_HISTORY_TEXT
    assert all(isinstance(each, Utterance) and each.text.strip() for each in history)
