"""Replies: callbacks find the turn that waits for them."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from molecule_hermes import wire
from molecule_hermes.errors import Draining, InternalFailure, Interrupted
from molecule_hermes.transports.plugin.replies import Replies, Reply
from molecule_hermes.turns.model import (
    Canceled,
    Completed,
    Context,
    Failed,
    FileProduced,
    Notice,
    Question,
    Reasoning,
    Spent,
    SubagentProgress,
    TextDelta,
    ToolProgress,
    TurnEvent,
    Usage,
)
from molecule_hermes.wire import Callback

USED = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3, "model": "m"}


def callback(content: str = "", seq: int | None = None, to: str = "m", **metadata: Any) -> Callback:
    if seq is not None:
        metadata["seq"] = seq
    return Callback.parse(
        {"chat_id": "c", "content": content, "reply_to": to, "metadata": metadata}
    )


def delta(text: str, seq: int, to: str = "m") -> Callback:
    return callback(text, seq, to, type="delta")


def final(text: str, seq: int | None = None, to: str = "m", **more: Any) -> Callback:
    return callback(text, seq, to, type="final", **({"status": "completed"} | more))


async def drained(reply: Reply) -> list[TurnEvent]:
    """What has come so far."""
    events = []
    with suppress(TimeoutError):
        async with asyncio.timeout(0):
            while True:
                events.append(await reply.next())
    return events


async def test_callbacks_reach_the_reply_that_is_registered() -> None:
    replies = Replies()
    with replies.register("m") as reply:
        assert replies.take(delta("he", 0)) == "taken"
        assert replies.take(final("hello", 1)) == "taken"
        assert await drained(reply) == [TextDelta("he"), Completed("hello")]
        assert reply.ended
        assert reply.final


async def test_a_callback_is_stale_before_and_after_its_turn() -> None:
    replies = Replies()
    assert replies.take(final("x")) == "stale"
    with replies.register("m"):
        assert replies.take(final("x")) == "taken"
        assert replies.take(final("again")) == "stale"
    assert replies.take(final("late")) == "stale"
    assert len(replies) == 0


async def test_a_callback_for_another_message_is_stale() -> None:
    replies = Replies()
    with replies.register("m") as reply:
        assert replies.take(final("x", to="other")) == "stale"
        assert await drained(reply) == []


async def test_a_repeated_or_older_callback_is_a_duplicate() -> None:
    replies = Replies()
    with replies.register("m") as reply:
        outcomes = [replies.take(delta(str(n), n)) for n in (0, 0, 1, 0, 2)]
        assert await drained(reply) == [TextDelta("0"), TextDelta("1"), TextDelta("2")]
    assert outcomes == ["taken", "duplicate", "taken", "duplicate", "taken"]


async def test_a_duplicate_final_does_not_end_the_turn() -> None:
    with Replies().register("m") as reply:
        assert reply.take(delta("a", 3)) == "taken"
        assert reply.take(final("old", 2)) == "duplicate"
        assert not reply.ended
        assert not reply.final


async def test_a_gap_is_not_waited_for() -> None:
    with Replies().register("m") as reply:
        reply.take(delta("c", 5))
        reply.take(final("abc", 7))
        assert await drained(reply) == [TextDelta("c"), Completed("abc")]


async def test_a_callback_without_a_type_is_the_answer_of_an_older_plugin() -> None:
    replies = Replies()
    with replies.register("m") as reply:
        replies.take(callback("the answer"))
        assert await drained(reply) == [Completed("the answer")]


@pytest.mark.parametrize(
    ("given_", "event"),
    [
        (callback("x", type="delta", replace=True), TextDelta("x", replace=True)),
        (
            callback(
                "",
                type="tool",
                tool="t",
                phase="end",
                preview="p",
                duration=1.5,
                ok=True,
                output="o",
            ),
            ToolProgress("t", "end", "p", 1.5, True, "o"),
        ),
        (
            callback(
                "",
                type="tool",
                tool="t",
                phase="end",
                id="c1",
                args={"n": 1},
                error="no",
                result="r",
            ),
            ToolProgress("t", "end", call_id="c1", args={"n": 1}, error="no", result="r"),
        ),
        (
            callback(type="subagent", id="s", goal="g", phase="end", duration=2, ok=False),
            SubagentProgress("s", "g", "end", 2.0, False),
        ),
        (callback("hm", type="reasoning"), Reasoning("hm")),
        (
            callback(type="usage", usage=USED, context={"used": 1, "window": 2}),
            Spent(Usage(1, 2, 3, "m"), Context(1, 2)),
        ),
        (callback("n", type="notice"), Notice("n")),
        (
            callback("n", type="notice", kind="retrying", attempt=1, of=2),
            Notice("n", kind="retrying", attempt=1, of=2),
        ),
        (
            Callback("c", "m", "n", wire.Notice(kind="fallback", from_model="a", to_model="b")),
            Notice("n", kind="fallback", from_model="a", to_model="b"),
        ),
        (callback("n", type="push"), Notice("")),
        (
            callback("cap", type="file", name="a.txt", media_type="text/plain", data="aGk="),
            FileProduced("a.txt", "text/plain", b"hi", "", "cap"),
        ),
        (
            callback("?", type="approval", question_id="q", choices=["once", "deny"]),
            Question("q", "approval", "?", ("once", "deny")),
        ),
        (
            callback("?", type="approval", question_id="q", command="rm x", description="deletes"),
            Question("q", "approval", "?", (), "rm x", "deletes"),
        ),
        (callback("?", type="clarify", question_id="q"), Question("q", "clarify", "?")),
        (final("", status="canceled"), Canceled()),
        (final("", status="canceled", usage=USED), Canceled(Usage(1, 2, 3, "m"))),
        (final("x", usage=USED), Completed("x", Usage(1, 2, 3, "m"))),
        (
            final("x", context={"used": 1, "window": 2}, incomplete=True),
            Completed("x", None, Context(1, 2), incomplete=True),
        ),
        (final("", silent=True), Completed("")),
    ],
)
async def test_each_type_of_callback_becomes_its_event(given_: Callback, event: TurnEvent) -> None:
    with Replies().register("m") as reply:
        reply.take(given_)
        assert await drained(reply) == [event]


@pytest.mark.parametrize(
    ("given_", "kind"),
    [
        (
            final("", status="failed", error={"kind": "quota", "message": "broke"}, usage=USED),
            "quota",
        ),
        (final("", status="failed", usage=USED), "internal"),
        (final("", usage=USED), "empty_reply"),
        (final(" \n", usage=USED), "empty_reply"),
    ],
)
async def test_a_final_without_an_answer_is_a_failure(given_: Callback, kind: str) -> None:
    with Replies().register("m") as reply:
        reply.take(given_)
        (event,) = await drained(reply)
        assert isinstance(event, Failed)
        assert event.usage == Usage(1, 2, 3, "m")
        assert event.failure.kind == kind


async def test_shutdown_ends_every_pending_reply_with_a_failure() -> None:
    replies = Replies()
    with replies.register("a") as one, replies.register("b") as two:
        replies.take(final("done", to="a"))
        replies.end_all()
        assert await drained(one) == [Completed("done")]
        (event,) = await drained(two)
        assert isinstance(event, Failed)
        assert isinstance(event.failure, Draining)
        replies.end_all(Interrupted())
        assert await drained(two) == []


async def test_a_message_id_is_registered_once() -> None:
    replies = Replies()
    with replies.register("m"), pytest.raises(InternalFailure):
        replies.register("m")


@given(st.integers(), st.integers(1, 8))
@settings(max_examples=5, deadline=None)
async def test_a_thousand_pending_replies_get_exactly_their_own_events(
    seed: int, pieces: int
) -> None:
    chance = random.Random(seed)
    replies = Replies()
    waiting = {f"m{i}": replies.register(f"m{i}") for i in range(1000)}
    sequences = {}
    for name in waiting:
        sequence = [delta(f"{name}/{n} ", n, name) for n in range(pieces)]
        sequence.append(final(f"the end of {name}", pieces, name))
        again = chance.randrange(len(sequence))
        sequences[name] = iter([*sequence[: again + 1], *sequence[again:]])
    order = [name for name in waiting for _ in range(pieces + 2)]
    chance.shuffle(order)
    outcomes = [replies.take(next(sequences[name])) for name in order]
    assert outcomes.count("taken") == 1000 * (pieces + 1)
    for name, reply in waiting.items():
        expected = [TextDelta(f"{name}/{n} ") for n in range(pieces)]
        assert await drained(reply) == [*expected, Completed(f"the end of {name}")]


def test_a_callback_of_another_agent_is_stale_and_one_of_an_older_plugin_is_not() -> None:
    replies = Replies()
    with replies.register("m", agent="research") as reply:
        assert replies.take(callback("theirs", 0, type="delta", agent="main")) == "stale"
        assert replies.take(callback("forged", 1, type="final", agent="ops")) == "stale"
        assert not reply.ended
        assert replies.take(callback("ours", 0, type="delta", agent="research")) == "taken"
        assert replies.take(callback("done", 1, type="final")) == "taken"
