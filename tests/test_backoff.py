"""The one retry policy, without a clock of its own."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.backoff import Backoff


class _Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_each_delay_is_twice_the_one_before_up_to_the_longest() -> None:
    delays = Backoff(first=0.5, longest=3.0).delays()
    assert list(islice(delays, 5)) == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_the_delay_after_any_number_of_failures_is_known() -> None:
    backoff = Backoff(first=1.0, longest=30.0)
    assert [backoff.delay(failures) for failures in (1, 2, 5, 6, 100_000)] == [1, 2, 16, 30, 30]


def test_delays_end_at_their_deadline_with_one_last_attempt() -> None:
    clock = _Clock()
    slept = []
    for delay in Backoff(first=1.0, longest=8.0).delays(within=10.0, clock=clock):
        slept.append(delay)
        clock.now += delay
    assert slept == [1.0, 2.0, 4.0, 3.0]


def test_time_spent_in_the_first_attempt_counts() -> None:
    clock = _Clock()
    delays = Backoff(first=1.0, longest=8.0).delays(within=10.0, clock=clock)
    clock.now += 10.0
    assert list(delays) == []


@given(st.integers(1, 50))
def test_jitter_varies_a_delay_by_its_fraction_only(failures: int) -> None:
    plain = Backoff(first=0.5, longest=30.0).delay(failures)
    assert 0.8 * plain <= Backoff(0.5, 30.0, jitter=0.2).delay(failures) <= 1.2 * plain


@pytest.mark.parametrize(
    "values",
    [
        {"first": 0, "longest": 1},
        {"first": 2, "longest": 1},
        {"first": 1, "longest": 2, "factor": 0.5},
        {"first": 1, "longest": 2, "jitter": 1},
    ],
)
def test_a_policy_that_cannot_work_is_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="not a retry policy"):
        Backoff(**values)
