"""Chats that are lent to their operator."""

from __future__ import annotations

import contextlib

import pytest

from molecule_hermes.errors import Busy
from molecule_hermes.plugin.lending import Lending


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_chat_is_lent_once_until_it_is_given_back() -> None:
    lending = Lending(Clock())
    assert not lending.is_lent("chat")
    lending.lend("chat", "one", 20)
    assert lending.is_lent("chat")
    assert not lending.is_lent("other")
    with pytest.raises(Busy):
        lending.lend("chat", "two", 20)
    lending.give_back("chat", "two")
    assert lending.is_lent("chat")
    lending.give_back("chat", "one")
    assert not lending.is_lent("chat")


def test_a_chat_whose_borrower_died_is_free_again() -> None:
    clock = Clock()
    lending = Lending(clock)
    lending.lend("chat", "one", 20)
    clock.now = 15
    lending.lend("chat", "one", 20)
    clock.now = 30
    assert lending.is_lent("chat")
    clock.now = 35
    assert not lending.is_lent("chat")
    lending.lend("chat", "two", 20)


def test_a_platform_takes_one_conversation_at_a_time_from_the_lease_that_holds_it() -> None:
    clock = Clock()
    lending = Lending(clock)
    with pytest.raises(Busy), lending.passing("chat", "one", "pager"):
        pass
    lending.lend("chat", "one", 20)
    lending.lend("other", "two", 20)
    with lending.passing("chat", "one", "pager"):
        with pytest.raises(Busy), lending.passing("other", "two", "pager"):
            pass
        clock.now = 30
        assert lending.is_lent("chat"), "whatever became of its lease"
        with pytest.raises(Busy):
            lending.lend("chat", "three", 20)
    assert not lending.is_lent("chat")
    assert (lending.take_passed("chat"), lending.take_passed("chat")) == ("pager", "")
    assert lending.take_passed("other") == ""


def test_a_conversation_that_was_not_taken_leaves_no_trace() -> None:
    lending = Lending(Clock())
    lending.lend("chat", "one", 20)
    with contextlib.suppress(OSError), lending.passing("chat", "one", "pager"):
        raise OSError
    assert lending.take_passed("chat") == ""
    with lending.passing("chat", "one", "pager"):
        pass


def test_only_so_many_conversations_that_were_taken_are_remembered() -> None:
    lending = Lending(Clock())
    for number in range(1025):
        lending.lend(str(number), "one", 20)
        with lending.passing(str(number), "one", "pager"):
            pass
    assert (lending.take_passed("0"), lending.take_passed("1024")) == ("", "pager")
