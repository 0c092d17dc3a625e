from __future__ import annotations

import asyncio
import contextlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.errors import Busy, Draining
from molecule_hermes.turns.scheduler import Scheduler, Slot


async def test_a_free_line_starts_at_once() -> None:
    line = Scheduler()
    async with line.enter("a") as slot:
        assert slot.started
        assert await slot.wait()
        assert (line.running, line.waiting) == (1, 0)
    assert (line.running, line.waiting) == (0, 0)


async def test_one_conversation_runs_one_turn_at_a_time_in_order() -> None:
    line = Scheduler()
    first, second, third = (line.enter("a") for _ in range(3))
    assert [s.started for s in (first, second, third)] == [True, False, False]
    line._leave(first)
    assert [s.started for s in (second, third)] == [True, False]


async def test_conversations_run_side_by_side_up_to_the_limit() -> None:
    line = Scheduler(max_running=2)
    a, b, c = (line.enter(name) for name in "abc")
    assert [s.started for s in (a, b, c)] == [True, True, False]
    line._leave(a)
    assert c.started


async def test_a_busy_conversation_does_not_hold_up_another() -> None:
    line = Scheduler(max_running=2)
    line.enter("a")
    again = line.enter("a")
    other = line.enter("b")
    assert (again.started, other.started) == (False, True)


async def test_a_full_line_is_busy() -> None:
    line = Scheduler(max_running=1, max_waiting=1)
    line.enter("a")
    line.enter("b")
    with pytest.raises(Busy, match="1 turns run and 1 wait"):
        line.enter("c")
    assert line.waiting == 1


async def test_one_peer_does_not_take_every_place() -> None:
    line = Scheduler(max_running=3, max_running_of_peer=2)
    first, _, third = (line.enter(f"a{i}", "ann") for i in range(3))
    assert (third.started, line.running) == (False, 2)
    bob = line.enter("b", "bob")
    assert bob.started
    line._leave(bob)
    assert not third.started, "the last place is not for ann"
    line._leave(first)
    assert third.started


async def test_a_peer_at_its_limit_does_not_hold_up_those_behind_it() -> None:
    line = Scheduler(max_running=2, max_running_of_peer=1)
    line.enter("a1", "ann")
    line.enter("a2", "ann")
    bob, carl = line.enter("b", "bob"), line.enter("c", "carl")
    assert (bob.started, carl.started) == (True, False)
    line._leave(bob)
    assert carl.started


async def test_what_waits_has_so_many_bytes_at_most_and_half_of_one_peer() -> None:
    line = Scheduler(max_running=1, max_waiting_bytes=100)
    running = line.enter("a", "ann", 1000)
    waiting = line.enter("a1", "ann", 50)
    with pytest.raises(Busy, match="your turns that wait would have 51 bytes, more than 50"):
        line.enter("a2", "ann", 1)
    line.enter("b", "bob", 40)
    with pytest.raises(Busy, match="the turns that wait have 90 bytes already"):
        line.enter("c", "carl", 20)
    assert line.waiting_bytes == 90
    line._leave(running)
    assert (waiting.started, line.waiting_bytes) == (True, 40)
    line.close()
    assert line.waiting_bytes == 0


async def test_with_no_room_to_wait_a_free_turn_still_starts() -> None:
    line = Scheduler(max_running=1, max_waiting=0)
    assert line.enter("a").started
    with pytest.raises(Busy):
        line.enter("b")


async def test_a_withdrawn_turn_does_not_run_and_frees_its_place() -> None:
    line = Scheduler(max_running=1)
    first = line.enter("a")
    async with line.enter("b") as waiting:
        waiting.withdraw()
        assert not await waiting.wait()
    third = line.enter("c")
    line._leave(first)
    assert third.started


async def test_leaving_by_cancellation_frees_the_place() -> None:
    line = Scheduler(max_running=1)
    first = line.enter("a")

    async def wait() -> None:
        async with line.enter("b") as slot:
            await slot.wait()

    waiter = asyncio.create_task(wait())
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    assert line.waiting == 0
    line._leave(first)
    assert line.enter("c").started


async def test_closing_answers_those_who_wait_and_lets_the_running_go_on() -> None:
    line = Scheduler(max_running=1)
    running, waiting = line.enter("a"), line.enter("b")
    line.close()
    with pytest.raises(Draining):
        await waiting.wait()
    with pytest.raises(Draining):
        line.enter("c")
    assert running.started


async def test_any_mixture_keeps_the_bounds_and_loses_nobody() -> None:
    chance = random.Random(7)
    line = Scheduler(max_running=3, max_waiting=20)
    order: dict[str, list[int]] = {}
    inside: set[str] = set()

    async def turn(number: int, name: str) -> None:
        async with line.enter(name) as slot:
            if await slot.wait():
                assert name not in inside
                inside.add(name)
                assert len(inside) <= 3
                order.setdefault(name, []).append(number)
                await asyncio.sleep(chance.random() / 500)
                inside.remove(name)

    names = [chance.choice("abcdef") for _ in range(20)]
    await asyncio.gather(*(turn(i, name) for i, name in enumerate(names)))
    assert sorted(n for numbers in order.values() for n in numbers) == list(range(20))
    assert all(numbers == sorted(numbers) for numbers in order.values())
    assert (line.running, line.waiting) == (0, 0)


async def test_a_peer_that_floods_does_not_starve_another() -> None:
    line = Scheduler(max_running=1)
    running = line.enter("flood-0", "flooder")
    flood = [line.enter(f"flood-{i}", "flooder") for i in range(1, 50)]
    quiet = [line.enter(f"quiet-{i}", "quiet") for i in range(2)]
    started = []
    for _ in range(5):
        line._leave(running)
        running = next(slot for slot in flood + quiet if slot.started)
        started.append(running.conversation)
    assert started == ["flood-1", "quiet-0", "flood-2", "quiet-1", "flood-3"]


async def test_one_peer_cannot_take_all_the_room_to_wait() -> None:
    line = Scheduler(max_running=1, max_waiting=10, max_waiting_of_peer=3)
    line.enter("a", "flooder")
    for i in range(3):
        line.enter(f"a{i}", "flooder")
    with pytest.raises(Busy, match="3 of your turns wait already"):
        line.enter("b", "flooder")
    assert not line.enter("c", "quiet").started


async def test_a_paused_turn_gives_its_place_to_others_and_keeps_its_conversation() -> None:
    line = Scheduler(max_running=1)
    asking, other, same = line.enter("a", "p"), line.enter("b", "q"), line.enter("a", "p")
    assert [slot.started for slot in (asking, other, same)] == [True, False, False]
    asking.pause()
    assert [slot.started for slot in (asking, other, same)] == [True, True, False]
    assert line.running == 1
    asking.resume()
    assert line.running == 2
    third = line.enter("c", "q")
    line._leave(other)
    assert not third.started
    line._leave(asking)
    assert same.started != third.started


async def test_paused_turns_are_bounded_in_all_and_for_each_peer() -> None:
    line = Scheduler(max_running=1, max_paused=2, max_paused_of_peer=1)
    for peer in ("p", "q"):
        line.enter(peer, peer).pause()
    with pytest.raises(Busy, match="2 questions wait"):
        line.enter("r", "r").pause()
    line = Scheduler(max_running=2, max_paused=2, max_paused_of_peer=1)
    line.enter("a", "p").pause()
    refused = line.enter("b", "p")
    with pytest.raises(Busy, match="1 of your questions"):
        refused.pause()
    assert line.running == 1
    line._leave(refused)
    assert line.running == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9))))
async def test_pauses_lose_no_place_and_make_none(steps: list[tuple[int, int]]) -> None:
    line = Scheduler(max_running=2, max_paused=2, max_paused_of_peer=2)
    inside: list[Slot] = []
    for number, action in steps:
        if action < 5:
            inside.append(line.enter(f"{number}", f"{number % 2}"))
            continue
        started = [slot for slot in inside if slot.started]
        if not started:
            continue
        slot = started[number % len(started)]
        if action < 7 and slot not in line._paused:
            with contextlib.suppress(Busy):
                slot.pause()
        elif action < 9:
            slot.resume()
        else:
            inside.remove(slot)
            line._leave(slot)
        running = [s for s in inside if s.started and s not in line._paused]
        assert line.running == len(running)
        assert line._running_of.total() == len(running)
    for slot in list(inside):
        line._leave(slot)
    assert (line.running, line.waiting, line._paused, line._running_of) == (0, 0, set(), {})
    assert not line._paused_of


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(0, 9))))
async def test_the_line_is_fair_in_order_and_forgets_nobody(
    steps: list[tuple[str, int, int]],
) -> None:
    """Enter, leave and withdraw in any order: within a conversation first come, first served."""
    line = Scheduler(max_running=2, max_waiting=1000, max_waiting_of_peer=1000)
    inside: list[Slot] = []
    for peer, number, action in steps:
        if action < 6:
            inside.append(line.enter(f"{peer}{number}", peer))
        elif inside:
            slot = inside.pop(action % len(inside))
            if action == 9:
                slot.withdraw()
            line._leave(slot)
        running = [slot for slot in inside if slot.started]
        assert line.running == len(running) <= 2
        assert line.waiting == len(inside) - len(running)
        for slot in running:
            same = [other for other in inside if other.conversation == slot.conversation]
            assert same[0] is slot
        if len(running) < 2:
            assert len({slot.conversation for slot in inside}) == len(running)
    while inside:
        slot = next(slot for slot in inside if slot.started)
        inside.remove(slot)
        line._leave(slot)
    assert (line.running, line.waiting, line._lines, line._ready) == (0, 0, {}, {})


async def test_a_slot_knows_its_conversation() -> None:
    assert isinstance(slot := Scheduler().enter("a"), Slot)
    assert slot.conversation == "a"
