"""The state machine of a turn, without sockets."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.errors import Interrupted
from molecule_hermes.turns.model import (
    Canceled,
    Completed,
    End,
    Failed,
    Notice,
    Question,
    TextDelta,
    TurnEvent,
    Usage,
)
from molecule_hermes.turns.run import MAX_OPEN, TRANSITIONS, IllegalTransition, State, TurnRun

ENDS = {State.COMPLETED, State.FAILED, State.CANCELED}
FIRST, SECOND = Question("1", "clarify", "?"), Question("2", "approval", "?", ("once", "deny"))


def running(*events: TurnEvent) -> TurnRun:
    run = TurnRun()
    run.send()
    for event in events or (Notice("begun"),):
        run.receive(event)
    return run


def asking() -> TurnRun:
    run = running()
    run.ask(FIRST)
    return run


def shown(run: TurnRun) -> list[TurnEvent]:
    events = []
    while (event := run.next_event()) is not None:
        events.append(event)
    return events


def test_a_turn_goes_from_queued_to_its_end() -> None:
    run = TurnRun()
    states = [run.state]
    run.send()
    states.append(run.state)
    run.receive(TextDelta("a"))
    states.append(run.state)
    run.ask(FIRST)
    states.append(run.state)
    assert run.settle(FIRST)
    states.append(run.state)
    run.end(Completed("a"))
    states.append(run.state)
    assert [state.value for state in states] == [
        "queued",
        "sent",
        "running",
        "asking",
        "running",
        "completed",
    ]
    assert run.ended
    assert run.asked


def test_only_ends_have_no_way_out_and_every_state_can_fail_or_be_canceled() -> None:
    assert set(TRANSITIONS) == set(State)
    for state, following in TRANSITIONS.items():
        assert (state in ENDS) is (not following)
        assert state in ENDS or {State.FAILED, State.CANCELED} <= following


@pytest.mark.parametrize(
    "step",
    [
        lambda run: run.send(),
        lambda run: run.ask(SECOND),
        lambda run: run.end(Completed("again")),
        lambda run: run.end(Canceled()),
    ],
)
def test_nothing_follows_the_end(step: Callable[[TurnRun], object]) -> None:
    run = running()
    run.end(Completed("done"))
    with pytest.raises(IllegalTransition, match="from completed to"):
        step(run)


@pytest.mark.parametrize(
    "step",
    [
        lambda run: run.receive(TextDelta("a")),
        lambda run: run.ask(FIRST),
        lambda run: run.end(Completed("a")),
    ],
)
def test_a_queued_turn_has_no_events_questions_or_answer(step: Callable[[TurnRun], object]) -> None:
    with pytest.raises(IllegalTransition, match="from queued to"):
        step(TurnRun())


def test_a_turn_is_sent_once() -> None:
    run = TurnRun()
    run.send()
    with pytest.raises(IllegalTransition):
        run.send()


def test_several_questions_wait_at_once_and_the_turn_goes_on_when_none_is_left() -> None:
    run = asking()
    run.ask(SECOND)
    assert list(run.open) == ["1", "2"]
    assert run.question is FIRST
    assert run.settle(FIRST)
    assert (run.state, run.question) == (State.ASKING, SECOND)
    assert run.settle(SECOND)
    assert (run.state, run.question) == (State.RUNNING, None)


def test_a_turn_has_a_limited_number_of_open_questions() -> None:
    run = running()
    for number in range(MAX_OPEN):
        assert not run.full
        run.ask(Question(str(number), "clarify", "?"))
    assert run.full
    with pytest.raises(IllegalTransition, match="more than 16 questions"):
        run.ask(Question("one more", "clarify", "?"))
    assert len(run.open) == MAX_OPEN
    run.settle(Question("3", "clarify", "?"))
    run.ask(Question("one more", "clarify", "?"))
    assert list(run.open)[-1] == "one more"


def test_events_behind_an_open_question_wait_for_it() -> None:
    run = running(TextDelta("a"), FIRST, TextDelta("b"))
    assert [run.next_event(), run.next_event()] == [TextDelta("a"), FIRST]
    run.ask(FIRST)
    assert run.next_event() is None
    assert not run.settle(SECOND)
    assert run.next_event() is None
    assert run.settle(FIRST)
    assert not run.settle(FIRST)
    assert shown(run) == [TextDelta("b")]


def test_a_further_question_does_not_wait_behind_an_open_one() -> None:
    run = running(FIRST, TextDelta("a"), SECOND, TextDelta("b"))
    assert run.next_event() is FIRST
    run.ask(FIRST)
    assert run.next_event() is SECOND
    run.ask(SECOND)
    assert run.next_event() is None
    assert run.settle(SECOND)
    assert run.next_event() is None
    assert run.settle(FIRST)
    assert shown(run) == [TextDelta("a"), TextDelta("b")]


def test_a_question_is_not_asked_once_hermes_has_ended_the_turn() -> None:
    run = running(TextDelta("a"), FIRST, TextDelta("b"), Completed("ab"))
    assert run.asks_no_more
    assert shown(run) == [TextDelta("a"), TextDelta("b")]


def test_a_turn_that_goes_on_with_a_further_message_can_ask_again() -> None:
    run = running(Completed("not usable"))
    assert run.asks_no_more
    run.go_on()
    run.receive(FIRST)
    assert not run.asks_no_more
    assert FIRST in shown(run)


def test_a_question_that_is_withdrawn_before_it_was_asked_is_not_asked() -> None:
    run = running(FIRST, SECOND)
    run.discard("1")
    assert shown(run) == [SECOND]


def test_hermes_may_end_a_turn_without_the_answer() -> None:
    run = asking()
    run.ask(SECOND)
    assert run.end(Completed("so I guessed")) == Completed("so I guessed")
    assert (run.question, run.open) == (None, {})


def test_events_after_the_end_are_dropped() -> None:
    run = running()
    run.end(Canceled())
    run.receive(TextDelta("late"))
    assert shown(run) == []


def test_a_turn_that_the_bridge_stops_has_failed_and_the_peers_own_cancel_counts_first() -> None:
    cut = Failed(Interrupted())
    run = running()
    run.request_stop(cut)
    run.request_stop(Canceled())
    spent = Usage(1, 2, 3, "m")
    assert run.end(Canceled(spent)) == Failed(cut.failure, spent)
    assert run.state is State.FAILED
    run = running()
    run.request_stop(Canceled())
    run.request_stop(cut)
    assert run.end(Canceled()) == Canceled()


def test_a_turn_that_completes_before_it_is_stopped_has_completed() -> None:
    run = running()
    run.request_stop(Canceled())
    assert run.end(Completed("done")) == Completed("done")


_questions = st.sampled_from([FIRST, SECOND])
_ends: st.SearchStrategy[End] = st.sampled_from([Completed("x"), Failed(Interrupted()), Canceled()])
_steps = st.one_of(
    st.just(("send",)),
    st.tuples(st.just("receive"), st.builds(TextDelta, st.text(max_size=3)) | _questions | _ends),
    st.just(("next_event",)),
    st.tuples(st.just("ask"), _questions),
    st.tuples(st.just("settle"), _questions),
    st.tuples(st.just("discard"), st.sampled_from(["1", "2"])),
    st.tuples(st.just("request_stop"), _ends.filter(lambda end: not isinstance(end, Completed))),
    st.tuples(st.just("end"), _ends),
)


@given(st.lists(_steps, max_size=40))
def test_any_order_of_steps_keeps_to_the_table(steps: list[tuple[object, ...]]) -> None:
    """Whatever happens in whatever order: the state moves along the table or the step raises and
    changes nothing, questions are open exactly while asking, and there is at most one end."""
    run, ends = TurnRun(), 0
    for name, *arguments in steps:
        before, questions = run.state, list(run.open)
        try:
            getattr(run, str(name))(*arguments)
        except IllegalTransition:
            assert (run.state, list(run.open)) == (before, questions)
        assert run.state is before or run.state in TRANSITIONS[before]
        assert bool(run.open) is (run.state is State.ASKING)
        ends += run.ended and run.state is not before
        if run.state is not State.RUNNING:
            shown = run.next_event()
            assert shown is None or (run.state is State.ASKING and isinstance(shown, Question))
    assert ends == run.ended


@given(st.lists(st.builds(TextDelta, st.text(max_size=3)) | st.none(), max_size=20), st.data())
def test_every_event_is_shown_once_and_in_order(
    given: list[TextDelta | None], data: st.DataObject
) -> None:
    """However receiving, showing and answering interleave. Only a question may overtake others."""
    events = [event or Question(str(n), "clarify", "?") for n, event in enumerate(given)]
    run, seen = TurnRun(), []
    run.send()
    left = list(events)
    while left or run.open:
        step = data.draw(st.sampled_from(["receive", "show", "settle"]))
        if step == "receive" and left:
            run.receive(left.pop(0))
        elif step == "show" and not run.full and (event := run.next_event()) is not None:
            seen.append(event)
            if isinstance(event, Question):
                run.ask(event)
        elif step == "settle" and run.open:
            assert run.settle(data.draw(st.sampled_from(list(run.open.values()))))
    while (event := run.next_event()) is not None:
        seen.append(event)
    for kind in (TextDelta, Question):
        assert [e for e in seen if isinstance(e, kind)] == [
            e for e in events if isinstance(e, kind)
        ]
