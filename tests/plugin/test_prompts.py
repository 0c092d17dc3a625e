from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.plugin import prompts


@given(st.text() | st.from_regex(r"\s*[/@](file|diff|git|url|stop)[: ]?.*"))
def test_a_peers_text_is_neither_a_command_nor_a_reference(text: str) -> None:
    from agent.context_references import parse_context_references
    from gateway.platforms.base import MessageEvent

    text_for_hermes = prompts.neutralized(text)
    assert not MessageEvent(text_for_hermes).is_command()
    assert parse_context_references(text_for_hermes) == []
    assert text_for_hermes.replace(" ", "") == text.replace("\x00", "").replace(" ", "")


def test_ordinary_text_is_unchanged() -> None:
    text = "mail bob@example.com, see a/b and @someone; diff@git"
    assert prompts.neutralized(text) == text


def test_the_agent_learns_of_files_that_were_not_delivered() -> None:
    assert prompts.with_notes("hello", prompts.refusals([])) == "hello"
    text = prompts.with_notes("hello", prompts.refusals(["the file a is not available"]))
    assert text == "[Your last answer: the file a is not available]\n\nhello"


def test_the_agent_learns_which_files_are_still_there() -> None:
    assert prompts.kept_files("/f", []) == []
    (note,) = prompts.kept_files("/f", ["a b.pdf", "c.txt"])
    assert note == "[Files of earlier messages are still in /f: 'a b.pdf', 'c.txt']"
    (note,) = prompts.kept_files("/f", ["a.pdf"], 3)
    assert note == "[Files of earlier messages are still in /f: 'a.pdf' and 3 more]"


@pytest.mark.parametrize("text", ["/new", "  /stop now", "\x00/steer x"])
def test_a_command_stays_text_when_hermes_strips_it(text: str) -> None:
    from gateway.platforms.base import MessageEvent

    steering = prompts.steering(text)
    assert steering == steering.strip()
    assert not MessageEvent(steering).is_command()
    assert steering.endswith(text.strip("\x00 "))
    assert prompts.steering(" \x00\n") == ""
