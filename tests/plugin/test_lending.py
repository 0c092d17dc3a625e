"""Chats that are lent to their operator."""

from __future__ import annotations

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
