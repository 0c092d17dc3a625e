"""The scheduler: order, fairness and limits, without I/O."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.config import Limits
from molecule_hermes.errors import Busy, Draining
from molecule_hermes.turns.scheduler import Scheduler, Slot


async def test_a_turn_starts_at_once_while_there_is_capacity() -> None:
    scheduler = Scheduler()
    async with scheduler.enter("a") as slot:
        assert slot.started
        assert await slot.wait()
        assert (scheduler.running, scheduler.waiting) == (1, 0)
    assert (scheduler.running, scheduler.waiting) == (0, 0)


async def test_one_conversation_runs_one_turn_at_a_time_in_order() -> None:
    scheduler = Scheduler()
    first, second, third = (scheduler.enter("a") for _ in range(3))
    assert [s.started for s in (first, second, third)] == [True, False, False]
    first.leave()
    assert [s.started for s in (second, third)] == [True, False]


async def test_conversations_run_side_by_side_up_to_the_limit() -> None:
    scheduler = Scheduler(max_running=2)
    a, b, c = (scheduler.enter(name) for name in "abc")
    assert [s.started for s in (a, b, c)] == [True, True, False]
    a.leave()
    assert c.started


async def test_a_busy_conversation_does_not_hold_up_another() -> None:
    scheduler = Scheduler(max_running=2)
    scheduler.enter("a")
    again = scheduler.enter("a")
    other = scheduler.enter("b")
    assert (again.started, other.started) == (False, True)


async def test_a_full_queue_is_busy() -> None:
    scheduler = Scheduler(max_running=1, max_waiting=1)
    scheduler.enter("a")
    scheduler.enter("b")
    with pytest.raises(Busy, match="1 turns are running and 1 are queued"):
        scheduler.enter("c")
    assert scheduler.waiting == 1


async def test_one_peer_does_not_take_all_capacity() -> None:
    scheduler = Scheduler(max_running=3, max_running_of_peer=2)
    first, _, third = (scheduler.enter(f"a{i}", "ann") for i in range(3))
    assert (third.started, scheduler.running) == (False, 2)
    bob = scheduler.enter("b", "bob")
    assert bob.started
    bob.leave()
    assert not third.started, "ann is at her limit"
    first.leave()
    assert third.started


async def test_a_peer_at_its_limit_does_not_hold_up_other_peers() -> None:
    scheduler = Scheduler(max_running=2, max_running_of_peer=1)
    scheduler.enter("a1", "ann")
    scheduler.enter("a2", "ann")
    bob, carl = scheduler.enter("b", "bob"), scheduler.enter("c", "carl")
    assert (bob.started, carl.started) == (True, False)
    bob.leave()
    assert carl.started


async def test_queued_bytes_are_bounded_and_one_peer_may_have_half() -> None:
    scheduler = Scheduler(max_running=1, max_waiting_bytes=100)
    running = scheduler.enter("a", "ann", 1000)
    waiting = scheduler.enter("a1", "ann", 50)
    with pytest.raises(Busy, match="your queued turns would have 51 bytes, more than 50"):
        scheduler.enter("a2", "ann", 1)
    scheduler.enter("b", "bob", 40)
    with pytest.raises(Busy, match="the queued turns have 90 bytes"):
        scheduler.enter("c", "carl", 20)
    assert scheduler.waiting_bytes == 90
    running.leave()
    assert (waiting.started, scheduler.waiting_bytes) == (True, 40)
    scheduler.close()
    assert scheduler.waiting_bytes == 0


async def test_without_a_queue_a_turn_still_starts_while_there_is_capacity() -> None:
    scheduler = Scheduler(max_running=1, max_waiting=0)
    assert scheduler.enter("a").started
    with pytest.raises(Busy):
        scheduler.enter("b")


async def test_a_withdrawn_turn_does_not_run_and_leaves_the_queue() -> None:
    scheduler = Scheduler(max_running=1)
    first = scheduler.enter("a")
    async with scheduler.enter("b") as waiting:
        waiting.withdraw()
        assert not await waiting.wait()
    third = scheduler.enter("c")
    first.leave()
    assert third.started


async def test_a_canceled_waiter_leaves_the_queue() -> None:
    scheduler = Scheduler(max_running=1)
    first = scheduler.enter("a")

    async def wait() -> None:
        async with scheduler.enter("b") as slot:
            await slot.wait()

    waiter = asyncio.create_task(wait())
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    assert scheduler.waiting == 0
    first.leave()
    assert scheduler.enter("c").started


async def test_closing_fails_queued_turns_and_lets_running_ones_go_on() -> None:
    scheduler = Scheduler(max_running=1)
    running, waiting = scheduler.enter("a"), scheduler.enter("b")
    scheduler.close()
    with pytest.raises(Draining):
        await waiting.wait()
    with pytest.raises(Draining):
        scheduler.enter("c")
    assert running.started


async def test_any_mixture_keeps_the_bounds_and_loses_no_turn() -> None:
    chance = random.Random(7)
    scheduler = Scheduler(max_running=3, max_waiting=20)
    order: dict[str, list[int]] = {}
    inside: set[str] = set()

    async def turn(number: int, name: str) -> None:
        async with scheduler.enter(name) as slot:
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
    assert (scheduler.running, scheduler.waiting) == (0, 0)


async def test_a_peer_that_floods_does_not_starve_another() -> None:
    scheduler = Scheduler(max_running=1)
    running = scheduler.enter("flood-0", "flooder")
    flood = [scheduler.enter(f"flood-{i}", "flooder") for i in range(1, 50)]
    quiet = [scheduler.enter(f"quiet-{i}", "quiet") for i in range(2)]
    started = []
    for _ in range(5):
        running.leave()
        running = next(slot for slot in flood + quiet if slot.started)
        started.append(running.conversation)
    assert started == ["flood-1", "quiet-0", "flood-2", "quiet-1", "flood-3"]


async def test_one_peer_cannot_fill_the_queue() -> None:
    scheduler = Scheduler(max_running=1, max_waiting=10, max_waiting_of_peer=3)
    scheduler.enter("a", "flooder")
    for i in range(3):
        scheduler.enter(f"a{i}", "flooder")
    with pytest.raises(Busy, match="3 of your turns are queued"):
        scheduler.enter("b", "flooder")
    assert not scheduler.enter("c", "quiet").started


async def test_an_agent_at_its_limit_does_not_hold_up_another_agent_of_the_same_peer() -> None:
    scheduler = Scheduler(max_running=3)
    scheduler.limit({"small": Limits(running=1)}, {})
    first, second = (scheduler.enter(f"s{i}", "ann", agent="small") for i in range(2))
    other = scheduler.enter("l", "ann", agent="large")
    assert [slot.started for slot in (first, second, other)] == [True, False, True]
    first.pause()
    assert second.started, "a turn that waits for its peer takes no capacity of its agent"
    third = scheduler.enter("s2", "ann", agent="small")
    second.leave()
    assert third.started


async def test_an_agent_with_a_full_queue_is_busy_and_another_is_not() -> None:
    scheduler = Scheduler(max_running=1)
    scheduler.limit({"small": Limits(waiting=1)}, {})
    scheduler.enter("a", "ann", agent="small")
    waiting = scheduler.enter("b", "ann", agent="small")
    with pytest.raises(Busy, match="1 turns are queued for this agent"):
        scheduler.enter("c", "bob", agent="small")
    assert not scheduler.enter("d", "bob", agent="large").started
    waiting.leave()
    assert not scheduler.enter("c", "bob", agent="small").started


async def test_a_peer_can_have_limits_of_its_own() -> None:
    scheduler = Scheduler(max_running=4, max_waiting_of_peer=1, max_running_of_peer=1)
    scheduler.limit({}, {"ann": Limits(running=2, waiting=2)}, max_running_of_peer=1)
    ann = [scheduler.enter(f"a{i}", "ann", agent=f"agent-{i}") for i in range(4)]
    bob = [scheduler.enter(f"b{i}", "bob") for i in range(2)]
    assert [slot.started for slot in ann] == [True, True, False, False]
    assert [slot.started for slot in bob] == [True, False]
    for peer in ("ann", "bob"):
        with pytest.raises(Busy, match="of your turns are queued"):
            scheduler.enter("more", peer)


async def test_new_limits_count_at_once_and_end_no_turn() -> None:
    scheduler = Scheduler(max_running=4)
    scheduler.limit({"a": Limits(running=1)}, {})
    first, second = (scheduler.enter(f"{i}", agent="a") for i in range(2))
    assert not second.started
    scheduler.limit({"a": Limits(running=2)}, {})
    assert second.started
    scheduler.limit({"a": Limits(running=1)}, {})
    third = scheduler.enter("3", agent="a")
    assert first.started
    assert second.started
    first.leave()
    assert not third.started
    second.leave()
    assert third.started


async def test_a_peer_gets_no_larger_share_by_using_several_agents() -> None:
    scheduler = Scheduler(max_running=1)
    running = scheduler.enter("0", "many", agent="a0")
    many = [scheduler.enter(f"m{i}", "many", agent=f"a{i % 3}") for i in range(6)]
    one = [scheduler.enter(f"o{i}", "one", agent="a0") for i in range(2)]
    started = []
    for _ in range(5):
        running.leave()
        running = next(slot for slot in many + one if slot.started)
        started.append(running.conversation)
    assert started == ["m0", "o0", "m1", "o1", "m2"]


async def test_a_paused_turn_frees_capacity_and_keeps_its_conversation() -> None:
    scheduler = Scheduler(max_running=1)
    asking, other, same = (
        scheduler.enter("a", "p"),
        scheduler.enter("b", "q"),
        scheduler.enter("a", "p"),
    )
    assert [slot.started for slot in (asking, other, same)] == [True, False, False]
    asking.pause()
    assert [slot.started for slot in (asking, other, same)] == [True, True, False]
    assert scheduler.running == 1
    asking.resume()
    assert scheduler.running == 2
    third = scheduler.enter("c", "q")
    other.leave()
    assert not third.started
    asking.leave()
    assert same.started != third.started


async def test_paused_turns_are_bounded_in_total_and_per_peer() -> None:
    scheduler = Scheduler(max_running=1, max_paused=2, max_paused_of_peer=1)
    for peer in ("p", "q"):
        scheduler.enter(peer, peer).pause()
    with pytest.raises(Busy, match="2 questions are waiting"):
        scheduler.enter("r", "r").pause()
    scheduler = Scheduler(max_running=2, max_paused=2, max_paused_of_peer=1)
    scheduler.enter("a", "p").pause()
    refused = scheduler.enter("b", "p")
    with pytest.raises(Busy, match="1 of your questions"):
        refused.pause()
    assert scheduler.running == 1
    refused.leave()
    assert scheduler.running == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9))))
async def test_pausing_and_resuming_keeps_the_count_of_running_turns(
    steps: list[tuple[int, int]],
) -> None:
    scheduler = Scheduler(max_running=2, max_paused=2, max_paused_of_peer=2)
    inside: list[Slot] = []
    for number, action in steps:
        if action < 5:
            inside.append(scheduler.enter(f"{number}", f"{number % 2}"))
            continue
        started = [slot for slot in inside if slot.started]
        if not started:
            continue
        slot = started[number % len(started)]
        if action < 7 and not slot.paused:
            with contextlib.suppress(Busy):
                slot.pause()
        elif action < 9:
            slot.resume()
        else:
            inside.remove(slot)
            slot.leave()
        running = [s for s in inside if s.started and not s.paused]
        assert scheduler.running == len(running)
        # Private: the count by peer, which limits each peer, must agree with the total.
        assert scheduler._running_of.total() == len(running)
    for slot in list(inside):
        slot.leave()
    assert (scheduler.running, scheduler.waiting) == (0, 0)
    # Private: no public figure tells whether counts of peers that left are kept for ever.
    assert not (scheduler._paused or scheduler._paused_of or scheduler._running_of)


@given(st.lists(st.tuples(st.sampled_from("pq"), st.sampled_from("abc"), st.integers(0, 9))))
async def test_no_limit_is_exceeded_and_no_capacity_is_wasted(
    steps: list[tuple[str, str, int]],
) -> None:
    scheduler = Scheduler(max_running=4)
    limits = {"a": Limits(running=1), "b": Limits(running=2)}
    scheduler.limit(limits, {"p": Limits(running=3)})
    most = {"a": 1, "b": 2, "c": 4, "p": 3, "q": 4}
    inside: list[Slot] = []
    for number, (peer, agent, action) in enumerate(steps):
        if action < 6:
            inside.append(scheduler.enter(f"{number}", peer, agent=agent))
        elif inside:
            inside.pop(action % len(inside)).leave()
        running = Counter(name for s in inside if s.started for name in (s.peer, s.agent))
        assert all(count <= most[name] for name, count in running.items())
        assert scheduler.running <= 4
        for slot in inside:
            names = (slot.peer, slot.agent)
            room = all(running[name] < most[name] for name in names) and scheduler.running < 4
            assert slot.started or not room
    for slot in list(inside):
        slot.leave()
    assert (scheduler.running, scheduler.waiting) == (0, 0)
    # Private: no public figure tells whether counts of agents are kept for ever.
    assert not (scheduler._ready or scheduler._running_at or scheduler._waiting_at)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(0, 9))))
async def test_the_queue_is_fair_ordered_and_complete(
    steps: list[tuple[str, int, int]],
) -> None:
    """Enter, leave and withdraw in any order: within a conversation first come, first served."""
    scheduler = Scheduler(max_running=2, max_waiting=1000, max_waiting_of_peer=1000)
    inside: list[Slot] = []
    for peer, number, action in steps:
        if action < 6:
            inside.append(scheduler.enter(f"{peer}{number}", peer))
        elif inside:
            slot = inside.pop(action % len(inside))
            if action == 9:
                slot.withdraw()
            slot.leave()
        running = [slot for slot in inside if slot.started]
        assert scheduler.running == len(running) <= 2
        assert scheduler.waiting == len(inside) - len(running)
        for slot in running:
            same = [other for other in inside if other.conversation == slot.conversation]
            assert same[0] is slot
        if len(running) < 2:
            assert len({slot.conversation for slot in inside}) == len(running)
    while inside:
        slot = next(slot for slot in inside if slot.started)
        inside.remove(slot)
        slot.leave()
    assert (scheduler.running, scheduler.waiting) == (0, 0)
    # Private, as above.
    assert not (scheduler._queues or scheduler._ready)


async def test_a_slot_knows_its_conversation() -> None:
    assert isinstance(slot := Scheduler().enter("a"), Slot)
    assert slot.conversation == "a"


async def test_what_does_not_count_takes_no_place_also_after_a_question() -> None:
    scheduler = Scheduler(max_running=1)
    async with contextlib.AsyncExitStack() as stack:
        for number in range(3):
            beside = scheduler.enter(f"beside-{number}", "a", runs=True, counts=False)
            await stack.enter_async_context(beside)
            assert await beside.wait()
            beside.pause()
            beside.resume()
        turn = await stack.enter_async_context(scheduler.enter("c", "a"))
        assert turn.started
        waiting = await stack.enter_async_context(scheduler.enter("d", "a"))
        assert not waiting.started
    assert scheduler.running == 0
