"""The workers of a bridge: started when they are needed, stopped when nothing of them lives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from molecule_hermes.errors import Busy, Draining, StartError, Unreachable
from molecule_hermes.hermes.fleet import Fleet
from molecule_hermes.hermes.seat import WorkerKey
from tests.support.waiting import until

ALICE, BOB, CAROL = (WorkerKey("main", name) for name in ("alice", "bob", "carol"))
SHARED = WorkerKey("research")


class Worker:
    """Records what the fleet does with it."""

    def __init__(self, world: World, key: WorkerKey) -> None:
        self.world = world
        self.key = key
        self.plan: object = world.plans[key.agent]
        self.eager = key.peer is None
        self.jobs = 0
        self.running = False
        self.open_now = False

    async def open(self) -> None:
        assert not self.open_now
        self.open_now = True

    async def close(self) -> None:
        assert not self.running
        self.open_now = False

    async def start(self) -> None:
        assert self.open_now
        assert not self.running
        self.world.log.append(f"start {self.key}")
        self.running = True  # a process that is there, but not ready
        self.world.most = max(self.world.most, self.world.running)
        await self.world.may_start.wait()
        if self.world.failures.get(self.key, 0) > 0:
            self.world.failures[self.key] -= 1
            raise StartError("no port", "the log is at /secret/path")

    async def stop(self) -> None:
        if self.running:
            self.world.log.append(f"stop {self.key}")
        await asyncio.sleep(0)
        self.running = False

    async def leave(self) -> None:
        await self.stop()

    async def has_jobs(self) -> bool:
        await asyncio.sleep(0)
        if self.world.unreachable:
            raise Unreachable
        return self.jobs > 0

    def describe(self) -> Mapping[str, Any]:
        return {}


class World:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.made: list[Worker] = []
        self.plans: dict[str, object] = {"main": 1, "research": 1}
        self.failures: dict[WorkerKey, int] = {}
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.unreachable = False
        self.most = 0
        self.time = 0.0

    @property
    def running(self) -> int:
        return sum(worker.running for worker in self.made)

    def make(self, key: WorkerKey) -> Worker:
        self.made.append(Worker(self, key))
        return self.made[-1]

    def plan_of(self, key: WorkerKey) -> object:
        return self.plans[key.agent]

    def fleet(self, **options: Any) -> Fleet[Worker]:
        clock: Callable[[], float] = lambda: self.time  # noqa: E731
        return Fleet(self.make, self.plan_of, **{"idle": 0.04, "clock": clock, **options})

    def age(self) -> None:
        """Makes every worker that does nothing now long idle."""
        self.time += 1.0


async def use(fleet: Fleet[Worker], key: WorkerKey) -> Worker:
    async with fleet.lease(key) as lease, asyncio.timeout(5):
        return await lease.ready()


async def stays(condition: Callable[[], bool]) -> None:
    """Sweeps happen every 10 ms."""
    with pytest.raises(TimeoutError):
        await until(lambda: not condition(), 0.2)


async def test_a_worker_starts_with_the_first_turn_and_serves_the_next() -> None:
    world = World()
    async with world.fleet() as fleet:
        assert world.log == []
        first, second = await use(fleet, ALICE), await use(fleet, ALICE)
        assert first is second
        assert world.log == ["start main@alice"]
    assert world.log == ["start main@alice", "stop main@alice"]
    assert not any(worker.open_now for worker in world.made)


async def test_turns_share_a_start_and_one_that_is_given_up_does_not_end_it() -> None:
    world = World()
    world.may_start.clear()
    async with world.fleet() as fleet:
        turns = [asyncio.create_task(use(fleet, ALICE)) for _ in range(3)]
        await until(lambda: world.log)
        turns[0].cancel()
        await asyncio.wait(turns[:1])
        world.may_start.set()
        assert await turns[1] is await turns[2]
    assert world.log.count("start main@alice") == 1


async def test_an_idle_worker_is_stopped_and_starts_again_with_the_next_turn() -> None:
    world = World()
    async with world.fleet() as fleet:
        await use(fleet, ALICE)
        world.age()
        await until(lambda: "stop main@alice" in world.log)
        await use(fleet, ALICE)
        assert world.log == ["start main@alice", "stop main@alice", "start main@alice"]


async def test_a_worker_that_was_long_gone_leaves_nothing_behind() -> None:
    world = World()
    async with world.fleet() as fleet:
        await use(fleet, ALICE)
        world.age()
        await until(lambda: not fleet.workers)
        assert not world.made[0].open_now


async def test_a_worker_with_a_turn_or_a_job_is_not_stopped_however_long_it_takes() -> None:
    world = World()
    async with world.fleet() as fleet:
        (await use(fleet, BOB)).jobs = 1
        async with fleet.lease(ALICE) as lease:
            await lease.ready()
            idle = await use(fleet, CAROL)
            world.age()
            await until(lambda: not idle.running)
            assert "stop main@alice" not in world.log
            assert "stop main@bob" not in world.log
        world.made[0].jobs = 0
        world.age()
        await until(lambda: {"stop main@alice", "stop main@bob"} <= {*world.log})


async def test_a_worker_that_cannot_be_asked_about_its_jobs_is_not_stopped() -> None:
    world = World()
    async with world.fleet() as fleet:
        one = await use(fleet, ALICE)
        world.unreachable = True
        world.age()
        await stays(lambda: one.running)
        world.unreachable = False
        await until(lambda: not one.running)


async def test_a_shared_worker_is_never_idle() -> None:
    world = World()
    async with world.fleet() as fleet:
        await fleet.start(SHARED)
        await use(fleet, ALICE)
        world.age()
        await until(lambda: "stop main@alice" in world.log)
        assert "stop research" not in world.log


async def test_there_are_never_more_workers_than_allowed_and_all_turns_get_one() -> None:
    world = World()
    keys = [WorkerKey("main", f"peer{number}") for number in range(12)]
    async with world.fleet(max_workers=3, idle=60) as fleet:

        async def turn(key: WorkerKey) -> str:
            async with fleet.lease(key) as lease:
                worker = await lease.ready()
                await asyncio.sleep(0.001)
                assert worker.running
                return worker.key.peer or ""

        async with asyncio.timeout(10):
            done = await asyncio.gather(*map(turn, keys * 3))
        assert sorted(done) == sorted(key.peer or "" for key in keys * 3)
    assert world.most <= 3


async def test_the_worker_that_was_idle_longest_makes_room() -> None:
    world = World()
    async with world.fleet(max_workers=2, idle=60) as fleet:
        for key in (ALICE, BOB):
            await use(fleet, key)
            world.age()
        await use(fleet, ALICE)
        world.age()
        await use(fleet, CAROL)
        assert world.log[-2:] == ["stop main@bob", "start main@carol"]


async def test_a_turn_waits_while_all_workers_have_work_and_gets_the_first_that_is_free() -> None:
    world = World()
    async with world.fleet(max_workers=1, idle=60) as fleet:
        async with fleet.lease(ALICE) as lease:
            await lease.ready()
            waiting = asyncio.create_task(use(fleet, BOB))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(waiting), 0.1)
        assert (await waiting).key == BOB
        assert world.log == ["start main@alice", "stop main@alice", "start main@bob"]


async def test_a_turn_that_waits_for_room_gets_it_when_a_job_has_ended() -> None:
    world = World()
    async with world.fleet(max_workers=1, idle=0.2) as fleet:
        (await use(fleet, ALICE)).jobs = 1
        waiting = asyncio.create_task(use(fleet, BOB))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 0.1)
        world.made[0].jobs = 0
        assert (await waiting).key == BOB


async def test_a_peer_with_many_agents_leaves_room_for_others_and_keeps_nobody_waiting() -> None:
    world = World()
    agents = [WorkerKey(name, "alice") for name in ("main", "research", "archive")]
    world.plans |= {"archive": 1}
    async with world.fleet(max_workers=3, max_of_peer=2, idle=60) as fleet:
        for key in agents[:2]:
            (await use(fleet, key)).jobs = 1
        waiting = asyncio.create_task(use(fleet, agents[2]))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 0.1)
        assert (await use(fleet, BOB)).running
        # Not even a worker of somebody else that is idle is stopped for it, but one of its own.
        world.made[0].jobs = 0
        assert (await use(fleet, agents[1])).running
        assert (await waiting).key == agents[2]
        assert "stop main@bob" not in world.log


async def test_a_start_that_fails_is_tried_once_more_with_another_worker() -> None:
    world = World()
    world.failures[ALICE] = 1
    async with world.fleet() as fleet:
        worker = await use(fleet, ALICE)
        assert worker is not world.made[0]
        assert not world.made[0].running
        assert not world.made[0].open_now
        assert fleet.failure(ALICE) is None


async def test_a_peer_is_told_that_its_agent_cannot_be_started_but_not_the_reason() -> None:
    world = World()
    world.failures[ALICE] = 2
    async with world.fleet() as fleet:
        with pytest.raises(Unreachable) as caught:
            await use(fleet, ALICE)
        assert "/secret" not in f"{caught.value}{caught.value.hint}"
        failure = fleet.failure(ALICE)
        assert failure is not None
        assert "/secret/path" in str(failure)
        (told,) = fleet.describe()
        assert told["state"] == "failed"
        assert "alice" not in str(told)  # the tools of every peer can ask for it
        assert (await use(fleet, ALICE)).running
        assert fleet.failure(ALICE) is None


async def test_a_worker_is_replaced_when_its_plan_has_changed_and_its_turns_have_ended() -> None:
    world = World()
    async with world.fleet() as fleet:
        async with fleet.lease(ALICE) as lease:
            old = await lease.ready()
            world.plans["main"] = 2
            fleet.revise()
            assert await use(fleet, ALICE) is old  # a turn of its own is still running
            assert old.running
        new = await use(fleet, ALICE)
        assert (new.plan, old.running) == (2, False)


async def test_no_start_from_outside_ends_a_turn_of_a_worker_whose_plan_has_changed() -> None:
    world = World()
    async with world.fleet(idle=60) as fleet:
        async with fleet.lease(SHARED) as lease:
            old = await lease.ready()
            world.plans["research"] = 2
            fleet.revise()
            await fleet.start(SHARED)
            assert old.running
        await until(lambda: len(world.made) == 2 and world.made[1].running)
        assert not old.running


async def test_turns_that_come_together_get_a_stopped_worker_by_its_new_plan() -> None:
    world = World()
    async with world.fleet(max_workers=1, idle=60) as fleet:
        old = await use(fleet, ALICE)
        await use(fleet, BOB)  # takes its room
        assert not old.running
        world.plans["main"] = 2
        served = await asyncio.gather(*(use(fleet, ALICE) for _ in range(3)))
        assert old not in served
        assert {worker.plan for worker in served} == {2}


async def test_a_shared_worker_with_another_plan_starts_again_without_being_asked() -> None:
    world = World()
    async with world.fleet() as fleet:
        await fleet.start(SHARED)
        async with fleet.lease(SHARED) as lease:
            old = await lease.ready()
            world.plans["research"] = 2
            fleet.revise()
            await stays(lambda: old.running)
        await until(lambda: fleet.worker(SHARED) is not old and fleet.worker(SHARED).running)


async def test_the_worker_of_an_agent_that_is_gone_ends_with_its_last_turn() -> None:
    world = World()
    async with world.fleet() as fleet:
        async with fleet.lease(SHARED) as lease:
            worker = await lease.ready()
            del world.plans["research"]
            fleet.revise()
            await stays(lambda: worker.running)
        await until(lambda: not fleet.workers)
        assert not worker.running


async def test_at_the_end_turns_that_wait_for_a_worker_are_told_so() -> None:
    world = World()
    world.may_start.clear()
    async with world.fleet() as fleet:
        waiting = asyncio.create_task(use(fleet, ALICE))
        await until(lambda: world.log)
    with pytest.raises(Draining):
        await waiting
    with pytest.raises(Draining):
        await use(fleet, BOB)
    assert world.running == 0


async def test_a_turn_that_waits_for_room_too_long_is_told_that_all_are_busy() -> None:
    world = World()
    async with world.fleet(max_workers=1, room_within=0.1) as fleet:
        (await use(fleet, ALICE)).jobs = 1
        with pytest.raises(Busy):
            await use(fleet, BOB)
        world.made[0].jobs = 0
        assert (await use(fleet, BOB)).running


async def test_a_worker_that_answers_nonsense_or_nothing_about_its_jobs_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()

    async def nonsense() -> bool:
        raise OverflowError("cannot convert float infinity to integer")

    async def nothing() -> bool:
        await asyncio.Event().wait()
        return False

    monkeypatch.setattr("molecule_hermes.hermes.fleet._ANSWERS_WITHIN", 0.1)
    async with world.fleet(max_workers=3, idle=60) as fleet:
        for key, answer in ((ALICE, nonsense), (BOB, nothing)):
            worker = await use(fleet, key)
            worker.has_jobs = answer  # type: ignore[method-assign]
        await use(fleet, CAROL)
        assert (await use(fleet, WorkerKey("main", "dave"))).running
        assert world.log[-2] == "stop main@carol"
