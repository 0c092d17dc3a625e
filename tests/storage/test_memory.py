"""Tasks in memory."""

from __future__ import annotations

from a2a.types import Artifact, Part, Task, TaskState

from molecule_hermes.storage.contents import merge_text
from molecule_hermes.storage.memory import MemoryTaskStore
from tests.support.tasks import context, task


async def test_only_the_oldest_ended_tasks_are_deleted() -> None:
    store = MemoryTaskStore(max_ended=3)
    await store.save(task("working", TaskState.TASK_STATE_WORKING), context())
    for i in range(6):
        await store.save(task(f"t{i}"), context("alice" if i % 2 else "bob"))
    kept = [i for i in range(6) if await store.get(f"t{i}", context("alice" if i % 2 else "bob"))]
    assert kept == [3, 4, 5]
    assert await store.get("working", context())


async def test_saving_an_ended_task_again_does_not_count_twice() -> None:
    store = MemoryTaskStore(max_ended=2)
    for name in ("a", "b", "b", "b"):
        await store.save(task(name), context())
    assert await store.get("a", context())


async def test_large_tasks_are_deleted_sooner() -> None:
    store = MemoryTaskStore(max_bytes=10_000)
    for i in range(6):
        large = task(f"t{i}")
        large.history.add(message_id="m", parts=[Part(text="x" * 3000)])
        await store.save(large, context())
        await store.save(large, context())
    assert [i for i in range(6) if await store.get(f"t{i}", context())] == [3, 4, 5]


def test_streamed_text_becomes_one_part() -> None:
    parts = [Part(text=t) for t in ("Hel", "", "lo ", "🙂")]
    merged = Task(artifacts=[Artifact(artifact_id="reply", parts=parts)])
    merge_text(merged)
    assert [p.text for p in merged.artifacts[0].parts] == ["Hello 🙂"]


def test_artifacts_with_other_parts_stay_as_they_are() -> None:
    parts = [Part(text="a"), Part(raw=b"b"), Part(text="c")]
    mixed = Task(artifacts=[Artifact(artifact_id="x", parts=parts)])
    merge_text(mixed)
    assert len(mixed.artifacts[0].parts) == 3
