"""The executor on a scripted transport, seen by the SDK's own client over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from a2a.types import CancelTaskRequest, GetTaskRequest, Part, Task, TaskState
from a2a.utils.errors import ContentTypeNotSupportedError, TaskNotCancelableError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from molecule_hermes.client.connection import message
from molecule_hermes.errors import FAILURES, Interrupted, Unreachable
from molecule_hermes.protocol import status
from molecule_hermes.protocol.request_handler import BridgeRequestHandler
from molecule_hermes.server.assembly import executor_options
from molecule_hermes.storage.memory import MemoryTaskStore
from molecule_hermes.turns.model import (
    Canceled,
    Completed,
    Context,
    Failed,
    FileProduced,
    Notice,
    Question,
    Spent,
    SubagentProgress,
    TextDelta,
    ToolProgress,
    TurnEvent,
    Usage,
)
from molecule_hermes.turns.scheduler import Scheduler
from tests.conftest import StartBridge
from tests.support.fakes import Answered, ScriptedTransport
from tests.support.peers import Turn, ask, peer, reply_text, send, state
from tests.support.sdk_handler import run_executor
from tests.support.waiting import until


async def first_task_id(stream: AsyncIterator[object]) -> str:
    event = await anext(stream)
    return str(event.task.id)  # type: ignore[attr-defined]


async def test_a_turn_goes_from_submitted_to_completed_with_its_answer(bridge: StartBridge) -> None:
    transport = ScriptedTransport(
        TextDelta("Hello "), TextDelta("you"), Completed("Hello you", Usage(1, 2, 3))
    )
    async with bridge(transport) as b, peer(b.url) as client:
        request = message("hi", "ctx")
        turn = await send(client, request)
        task = await client.get_task(GetTaskRequest(id=turn.task_id))
    assert turn.states == ["SUBMITTED", "WORKING", "COMPLETED"]
    assert turn.text == reply_text(task) == "Hello you"
    assert task.metadata["usage"]["totalTokens"] == 3
    assert task.metadata["durationSeconds"] >= task.metadata["firstTextSeconds"] >= 0
    assert task.history[0].parts[0].text == "hi"
    assert transport.turns[0].text == "hi"
    assert transport.turns[0].context_id == turn.context_id == "ctx"
    assert transport.turns[0].a2a_message_id == request.message.message_id


async def test_an_answer_that_differs_from_what_was_streamed_replaces_it(
    bridge: StartBridge,
) -> None:
    transport = ScriptedTransport(TextDelta("draft"), Completed("the real answer"))
    async with bridge(transport) as b, peer(b.url) as client:
        turn = await ask(client, "hi")
    assert turn.text == "the real answer"


async def test_interim_text_is_replaced_by_the_text_after_a_tool(bridge: StartBridge) -> None:
    transport = ScriptedTransport(
        TextDelta("I will look."),
        ToolProgress("terminal", "start", "ls"),
        ToolProgress("terminal", "end", duration=1.25, ok=True),
        Notice("retrying"),
        TextDelta("Found.", replace=True),
        Completed("Found."),
    )
    async with bridge(transport) as b, peer(b.url) as client:
        turn = await ask(client, "hi")
    assert turn.text == "Found."
    assert turn.progress == ["terminal: ls", "terminal done in 1.2 s", "retrying"]


async def test_status_messages_hold_text_for_people_and_metadata_for_programs(
    bridge: StartBridge,
) -> None:
    tool = ToolProgress("terminal", "end", "ls", duration=1.5, ok=True)
    remark = Notice("trying again in 2 s", kind="retrying")
    asks = Question("q", "clarify", "which colour?")
    failure = Unreachable("Hermes is away")
    transport = ScriptedTransport(
        ToolProgress("terminal", "start", "ls"), tool, remark, asks, Answered(), Failed(failure)
    )
    async with bridge(transport) as b, peer(b.url) as client:
        asked = await ask(client, "hi")
        done = await ask(client, "red", task_id=asked.task_id)
        task = await client.get_task(GetTaskRequest(id=asked.task_id))
    (started, ended, noticed, question), (answered, failed) = asked.data, done.data
    assert started == {"tool": {"tool": "terminal", "phase": "start", "preview": "ls"}}
    about = {"tool": "terminal", "phase": "end", "preview": "ls", "duration": 1.5, "ok": True}
    assert ended == {"tool": about}
    assert noticed == {"notice": "trying again in 2 s", "kind": "retrying"}
    assert list(question) == ["question"]
    assert answered == {"answered": {"questionId": "q", "answer": "red"}}
    assert failed == {"failure": failure.as_dict()}
    messages = [*task.history, task.status.message]
    assert len(messages) == 8
    assert all(part.HasField("text") for message in messages for part in message.parts)


async def test_a_file_becomes_a_separate_artifact(bridge: StartBridge) -> None:
    transport = ScriptedTransport(
        FileProduced("cat.png", "image/png", b"meow", caption="a cat"),
        FileProduced("dog.png", "image/png", url="https://example.com/dog.png"),
        TextDelta("Here."),
        Completed("Here."),
    )
    async with bridge(transport) as b, peer(b.url) as client:
        turn = await ask(client, "hi")
        task = await client.get_task(GetTaskRequest(id=turn.task_id))
    cat, dog, reply = task.artifacts
    assert (cat.name, cat.parts[0].raw, cat.parts[0].media_type) == (
        "cat.png",
        b"meow",
        "image/png",
    )
    assert cat.parts[1].text == "a cat"
    assert (dog.name, dog.parts[0].url) == ("dog.png", "https://example.com/dog.png")
    assert reply.parts[0].text == "Here."


@pytest.mark.parametrize("modes", [["text/plain"], ["text"], ["text/plain", "image/*"], []])
async def test_a_file_of_a_type_that_the_client_does_not_accept_becomes_a_note(
    bridge: StartBridge, modes: list[str]
) -> None:
    transport = ScriptedTransport(
        FileProduced("cat.png", "image/png", b"meow", caption="a cat"), Completed("Here.")
    )
    request = message("hi")
    request.configuration.accepted_output_modes.extend(modes)
    async with bridge(transport) as b, peer(b.url) as client:
        turn = await send(client, request)
        task = await client.get_task(GetTaskRequest(id=turn.task_id))
    file, reply = task.artifacts
    assert (file.name, reply.parts[0].text) == ("cat.png", "Here.")
    if modes and "image/*" not in modes:
        assert [part.WhichOneof("content") for part in file.parts] == ["text"]
        assert "cat.png (image/png) was not sent" in file.parts[0].text
        assert file.parts[0].text.startswith("a cat")
    else:
        assert file.parts[0].raw == b"meow"


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_client_that_accepts_no_text_is_refused(
    bridge: StartBridge, streaming: bool
) -> None:
    transport = ScriptedTransport(Completed("never"))
    request = message("hi")
    request.configuration.accepted_output_modes.append("image/png")
    async with bridge(transport) as b, peer(b.url, streaming=streaming) as client:
        with pytest.raises(ContentTypeNotSupportedError):
            await send(client, request)
    assert not transport.turns


async def test_an_agent_that_chooses_to_say_nothing_completes_without_an_artifact(
    bridge: StartBridge,
) -> None:
    async with bridge(ScriptedTransport(Completed(""))) as b, peer(b.url) as client:
        turn = await ask(client, "hi")
    assert turn.states[-1] == "COMPLETED"
    assert turn.updates == 0


@pytest.mark.parametrize("kind", sorted(FAILURES))
async def test_every_failure_reaches_the_peer_with_kind_and_hint(
    bridge: StartBridge, kind: str
) -> None:
    transport = ScriptedTransport(TextDelta("so far"), Failed(FAILURES[kind]()))
    async with bridge(transport) as b, peer(b.url) as client:
        turn = await ask(client, "hi")
    assert turn.states[-1] == "FAILED"
    assert turn.failure == FAILURES[kind]().as_dict()
    assert turn.text == "so far"


async def test_an_exception_in_a_transport_does_not_reach_the_peer(
    bridge: StartBridge, caplog: pytest.LogCaptureFixture
) -> None:
    transport = ScriptedTransport(RuntimeError("secret detail"))
    async with bridge(transport) as b, peer(b.url) as client:
        turn = await ask(client, "hi")
    assert turn.failure["kind"] == "internal"
    assert all("secret detail" not in str(e) for e in turn.events)
    assert "secret detail" in caplog.text


async def test_a_transport_that_just_stops_is_interrupted(bridge: StartBridge) -> None:
    async with bridge(ScriptedTransport()) as b, peer(b.url) as client:
        assert (await ask(client, "hi")).failure["kind"] == "interrupted"


async def test_a_turn_that_takes_too_long_fails_as_timeout(bridge: StartBridge) -> None:
    transport = ScriptedTransport(TextDelta("so far"), 30.0, Completed("never"))
    async with bridge(transport, TURN_TIMEOUT=0.3) as b, peer(b.url) as client:
        turn = await ask(client, "hi")
    assert turn.states[-1] == "FAILED"
    assert turn.failure["kind"] == "timeout"
    assert turn.text == "so far"


@pytest.mark.parametrize("text", ["", "  \n "])
async def test_an_empty_message_is_rejected(bridge: StartBridge, text: str) -> None:
    transport = ScriptedTransport(Completed("never"))
    async with bridge(transport) as b, peer(b.url) as client:
        turn = await ask(client, text)
    assert turn.states[-1] == "REJECTED"
    assert turn.failure["message"] == "empty prompt — nothing to do"
    assert transport.turns == []


async def test_a_part_that_hermes_cannot_get_is_rejected_by_name(bridge: StartBridge) -> None:
    request = message("look at this")
    request.message.parts.append(Part(raw=b"x", filename="cat.png", media_type="image/png"))
    async with bridge(ScriptedTransport(Completed("never"))) as b, peer(b.url) as client:
        turn = Turn()
        async for event in client.send_message(request):
            turn.add(event)
    assert turn.states[-1] == "REJECTED"
    assert "cat.png" in turn.failure["message"]


async def test_a_peer_without_streaming_gets_the_whole_task(bridge: StartBridge) -> None:
    transport = ScriptedTransport(TextDelta("a"), 0.1, TextDelta("b"), Completed("ab"))
    async with bridge(transport) as b, peer(b.url, streaming=False) as client:
        turn = await ask(client, "hi")
    assert len(turn.events) == 1
    assert turn.states == ["COMPLETED"]
    assert turn.text == "ab"


async def test_cancel_ends_the_task_for_its_subscribers_and_keeps_the_text(
    bridge: StartBridge,
) -> None:
    transport = ScriptedTransport(TextDelta("so far"), 30.0, Completed("never"))
    async with bridge(transport) as b, peer(b.url) as client:
        turn = Turn()
        async for event in client.send_message(message("hi")):
            turn.add(event)
            if event.HasField("artifact_update") and not event.artifact_update.last_chunk:
                task = await client.cancel_task(CancelTaskRequest(id=turn.task_id))
        stored = await client.get_task(GetTaskRequest(id=turn.task_id))
    assert state(task) == state(stored) == turn.states[-1] == "CANCELED"
    assert turn.text == reply_text(stored) == "so far"


async def test_repeated_cancels_leave_no_subscriber_waiting(bridge: StartBridge) -> None:
    transport = ScriptedTransport(TextDelta("so far"), 30.0, Completed("never"))
    async with bridge(transport) as b, peer(b.url) as client:
        for _ in range(5):
            stream = client.send_message(message("go"))
            seen = Turn()
            seen.add(await anext(stream))
            request = CancelTaskRequest(id=seen.task_id)
            both = [client.cancel_task(request) for _ in range(3)]
            ended = await asyncio.gather(*both, return_exceptions=True)
            async with asyncio.timeout(10):
                async for event in stream:
                    seen.add(event)
            assert seen.states[-1] == "CANCELED"
            assert sum(isinstance(task, Task) for task in ended) == 1
            assert sum(isinstance(e, TaskNotCancelableError) for e in ended) == 2


async def test_cancel_ends_the_task_even_when_hermes_does_not_stop(
    bridge: StartBridge, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def impatient(*given: Any) -> dict[str, Any]:
        return executor_options(*given) | {"cancel_timeout": 0.2}

    monkeypatch.setattr("molecule_hermes.server.agent_factory.executor_options", impatient)
    transport = ScriptedTransport(TextDelta("so far"), 30.0, Completed("never"))
    transport.deaf = True
    async with bridge(transport) as b, peer(b.url) as client:
        turn = Turn()
        async for event in client.send_message(message("hi")):
            turn.add(event)
            if event.HasField("artifact_update") and not event.artifact_update.last_chunk:
                await client.cancel_task(CancelTaskRequest(id=turn.task_id))
        assert turn.states[-1] == "CANCELED"
    assert "did not stop" in caplog.text
    assert "Traceback" not in caplog.text


async def test_a_cancel_that_comes_too_late_leaves_the_task_completed(
    bridge: StartBridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cancel waits for the end that is being stored, and is told of it."""
    saving, asked = asyncio.Event(), asyncio.Event()
    save, on_cancel = MemoryTaskStore.save, BridgeRequestHandler.on_cancel_task

    async def slow_save(store: MemoryTaskStore, task: Task, *others: Any) -> None:
        if task.status.state == TaskState.TASK_STATE_COMPLETED:
            saving.set()
            await asked.wait()
        await save(store, task, *others)

    async def cancel_and_signal(handler: BridgeRequestHandler, *args: Any) -> Task:
        asked.set()
        return await on_cancel(handler, *args)

    monkeypatch.setattr(MemoryTaskStore, "save", slow_save)
    monkeypatch.setattr(BridgeRequestHandler, "on_cancel_task", cancel_and_signal)
    transport = ScriptedTransport(Completed("done"))
    async with bridge(transport, STORE="memory") as b, peer(b.url) as client:
        task_id = await first_task_id(client.send_message(message("hi")))
        await saving.wait()
        with pytest.raises(TaskNotCancelableError, match="COMPLETED"):
            await client.cancel_task(CancelTaskRequest(id=task_id))
        stored = await client.get_task(GetTaskRequest(id=task_id))
    assert state(stored) == "COMPLETED"


async def test_a_turn_that_is_canceled_before_it_was_sent_never_reaches_hermes(
    bridge: StartBridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = ScriptedTransport(Completed("never"))
    working = status.working

    async def canceled_meanwhile(*args: Any) -> None:
        await working(*args)
        (active,) = b.roster["main"].executor._runs.values()
        active.run.request_stop(Canceled())

    monkeypatch.setattr(status, "working", canceled_meanwhile)
    async with bridge(transport) as b, peer(b.url) as client:
        turn = await ask(client, "hi")
    assert turn.states == ["SUBMITTED", "WORKING", "CANCELED"]
    assert transport.turns == []


async def test_a_queued_turn_says_so_and_can_be_canceled(bridge: StartBridge) -> None:
    go = asyncio.Event()
    transport = ScriptedTransport(go, Completed("done"))
    async with bridge(transport) as b, peer(b.url) as client:
        first = asyncio.create_task(ask(client, "one", "same"))
        await until(lambda: transport.turns)
        second = Turn()
        async for event in client.send_message(message("two", "same")):
            second.add(event)
            if second.progress and second.states[-1] == "WORKING":
                await client.cancel_task(CancelTaskRequest(id=second.task_id))
        go.set()
        assert (await first).states[-1] == "COMPLETED"
    assert second.progress == ["waiting for its turn"]
    assert second.states[-1] == "CANCELED"
    assert len(transport.turns) == 1


async def test_one_conversation_runs_in_order_of_arrival(bridge: StartBridge) -> None:
    transport = ScriptedTransport(0.05, Completed("done"))
    async with bridge(transport) as b, peer(b.url) as client:
        turns = []
        for i in range(5):
            turns.append(asyncio.create_task(ask(client, f"m{i}", "same")))
            await until(lambda n=i: b.turns > n or turns[n].done())
        ended = await asyncio.gather(*turns)
    assert [t.states[-1] for t in ended] == ["COMPLETED"] * 5
    assert [t.text for t in transport.turns] == [f"m{i}" for i in range(5)]


async def test_a_turn_beyond_the_queue_is_rejected_as_busy(bridge: StartBridge) -> None:
    go = asyncio.Event()
    transport = ScriptedTransport(go, Completed("done"))
    async with bridge(transport, MAX_RUNNING=1, MAX_WAITING=1) as b, peer(b.url) as client:
        running = [asyncio.create_task(ask(client, "x")) for _ in range(2)]
        await until(lambda: b.turns >= 2)
        refused = await ask(client, "too many")
        go.set()
        assert [(await t).states[-1] for t in running] == ["COMPLETED"] * 2
    assert refused.states[-1] == "REJECTED"
    assert refused.failure["kind"] == "busy"
    assert refused.failure["retryable"] is True


async def test_shutdown_lets_a_running_turn_end_and_rejects_queued_ones(
    bridge: StartBridge,
) -> None:
    transport = ScriptedTransport(TextDelta("so far"), 0.5, Completed("so far, done"))
    async with bridge(transport, MAX_RUNNING=1) as b, peer(b.url) as client:
        first = asyncio.create_task(ask(client, "one"))
        await until(lambda: transport.turns)
        second = asyncio.create_task(ask(client, "two"))
        await until(lambda: b.turns >= 2)
        await b.__aexit__(None, None, None)
        assert (await first).text == "so far, done"
        waited = await second
    assert waited.states[-1] == "REJECTED"
    assert waited.failure["kind"] == "draining"


async def test_shutdown_interrupts_a_turn_that_does_not_end(bridge: StartBridge) -> None:
    transport = ScriptedTransport(TextDelta("so far"), 30.0, Completed("never"))
    async with bridge(transport, DRAIN_TIMEOUT=0.1) as b, peer(b.url) as client:
        running = asyncio.create_task(ask(client, "one"))
        await until(lambda: transport.turns)
        await b.__aexit__(None, None, None)
        turn = await running
    assert turn.states[-1] == "FAILED"
    assert turn.failure == Interrupted("the agent was shut down during the turn").as_dict()
    assert turn.text == "so far"


async def test_shutdown_rejects_a_turn_whose_task_is_just_being_stored(
    bridge: StartBridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving, go = asyncio.Event(), asyncio.Event()
    save = MemoryTaskStore.save

    async def slow_save(store: MemoryTaskStore, task: Task, *others: Any) -> None:
        saving.set()
        await go.wait()
        await save(store, task, *others)

    monkeypatch.setattr(MemoryTaskStore, "save", slow_save)
    transport = ScriptedTransport(Completed("never"))
    async with bridge(transport, STORE="memory", DRAIN_TIMEOUT=0) as b, peer(b.url) as client:
        asking = asyncio.create_task(ask(client, "hi"))
        await saving.wait()
        (active,) = b.roster["main"].executor._runs.values()
        stopping = asyncio.create_task(b.__aexit__(None, None, None))
        await until(lambda: active.run.stop)
        go.set()
        turn = await asking
        await stopping
    assert (turn.states[-1], turn.failure["kind"]) == ("REJECTED", "draining")
    assert transport.turns == []


async def test_a_disconnected_peer_does_not_stop_its_turn(bridge: StartBridge) -> None:
    go = asyncio.Event()
    transport = ScriptedTransport(go, Completed("done"))
    async with bridge(transport) as b:
        async with peer(b.url) as client:
            stream = client.send_message(message("hi"))
            task_id = await first_task_id(stream)
        go.set()
        async with peer(b.url) as client:

            async def ended() -> str:
                now = state(await client.get_task(GetTaskRequest(id=task_id)))
                return "" if now == "WORKING" else now

            assert await until(ended) == "COMPLETED"


_words = st.text(min_size=1, max_size=30)
_questions = st.builds(
    Question,
    st.uuids().map(str),
    st.sampled_from(["approval", "clarify"]),
    _words,
    st.just(("once", "deny")),
)
_events = st.one_of(
    st.builds(TextDelta, _words, st.booleans()),
    st.builds(ToolProgress, st.just("tool"), st.sampled_from(["start", "end"]), _words),
    st.builds(Notice, _words),
    st.builds(FileProduced, st.just("a.bin"), st.just("application/x-a"), st.binary(max_size=9)),
    _questions,
)
_ends = st.one_of(
    st.builds(Completed, _words),
    st.sampled_from([Failed(f()) for f in FAILURES.values()]),
    st.just(Canceled()),
)


@given(
    events=st.lists(_events, max_size=12),
    end=_ends,
    answered=st.sampled_from(["at once", "late", "never"]),
)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
async def test_any_turn_has_a_legal_history_with_one_end(
    events: list[TurnEvent], end: TurnEvent, answered: str
) -> None:
    """For any events, the peer sees a Task, one terminal state, every file and the right text."""
    script: list[Any] = []
    for event in events:
        waits = isinstance(event, Question) and answered == "at once"
        script += [event, Answered()] if waits else [event]
    questions = [event for event in events if isinstance(event, Question)]
    if answered == "late":
        script += [Answered() for _ in questions]
    transport = ScriptedTransport(*script, end)
    seen = await run_executor(transport, Scheduler())
    assert seen.states[0] == "SUBMITTED"
    ends = [s for s in seen.states if s in ("COMPLETED", "FAILED", "CANCELED", "REJECTED")]
    assert ends == [seen.states[-1]]
    if answered != "never":
        assert transport.answers == [(question.question_id, "deny") for question in questions]
        asked = [d.get("questions", [d["question"]]) for d in seen.data if "question" in d]
        assert {one["questionId"] for shown in asked for one in shown} == {
            question.question_id for question in questions
        }
        # Each question is shown when it comes and, with others open, until it is settled.
        assert len(questions) <= seen.states.count("INPUT_REQUIRED") <= 2 * len(questions)
        assert seen.files == sum(isinstance(event, FileProduced) for event in events)
    streamed = ""
    for event in events:
        if isinstance(event, TextDelta):
            streamed = event.text if event.replace else streamed + event.text
    assert seen.text == (end.text if isinstance(end, Completed) else streamed)


SPENT = Usage(10, 5, 15, "m", 4, 2, "p", 0.25)
SHOWN = {
    "inputTokens": 10,
    "outputTokens": 5,
    "cachedTokens": 4,
    "reasoningTokens": 2,
    "totalTokens": 15,
    "model": "m",
    "provider": "p",
    "costUsd": 0.25,
}


@pytest.mark.parametrize(
    ("script", "state"),
    [
        ([Completed("x", SPENT, Context(7, 100))], "COMPLETED"),
        ([Failed(Unreachable(), SPENT, Context(7, 100))], "FAILED"),
        ([Canceled(SPENT, Context(7, 100))], "CANCELED"),
        # Ends of the bridge's own, after what Hermes has reported.
        ([Spent(Usage(1, 1, 2, "m")), Spent(SPENT, Context(7, 100)), Unreachable()], "FAILED"),
        ([Spent(SPENT, Context(7, 100)), RuntimeError("a bug")], "FAILED"),
        ([Spent(SPENT, Context(7, 100)), 60.0], "FAILED"),
    ],
)
async def test_every_end_says_what_the_turn_used(
    bridge: StartBridge, script: list[Any], state: str
) -> None:
    transport = ScriptedTransport(*script)
    async with bridge(transport, TURN_TIMEOUT=1) as b, peer(b.url) as client:
        turn = await ask(client, "hi")
        task = await client.get_task(GetTaskRequest(id=turn.task_id))
    assert turn.states[-1] == state
    assert turn.figures["usage"] == SHOWN
    assert turn.figures["context"] == {"used": 7, "window": 100}
    assert task.metadata["usage"]["totalTokens"] == 15
    assert "incomplete" not in turn.figures


async def test_an_end_without_figures_has_none(bridge: StartBridge) -> None:
    async with bridge(ScriptedTransport(Failed(Unreachable()))) as b, peer(b.url) as client:
        turn = await ask(client, "hi")
    assert "usage" not in turn.figures
    assert "context" not in turn.figures


async def test_several_models_are_told_apart(bridge: StartBridge) -> None:
    small = Usage(1, 1, 2, "small", provider="p")
    both = replace(SPENT + small, model="m", models=(SPENT, small))
    transport = ScriptedTransport(Completed("x", both, incomplete=True))
    async with bridge(transport) as b, peer(b.url) as client:
        turn = await ask(client, "hi")
    usage = turn.figures["usage"]
    assert (usage["model"], usage["totalTokens"]) == ("m", 17)
    assert "costUsd" not in usage
    assert [(m["model"], m["totalTokens"]) for m in usage["models"]] == [("m", 15), ("small", 2)]
    assert turn.figures["incomplete"] is True


async def test_progress_has_its_details_in_the_metadata(bridge: StartBridge) -> None:
    transport = ScriptedTransport(
        ToolProgress(
            "read_file",
            "end",
            "x",
            1.5,
            False,
            "no",
            call_id="c1",
            args={"path": "x", "limit": 3},
            error="not found",
            result="nothing",
        ),
        SubagentProgress("s1", "look it up", "start"),
        SubagentProgress("s1", "look it up", "end", 2.0, True),
        Notice("retry 1 of 2", kind="retrying", attempt=1, of=2),
        Notice("b takes over", kind="fallback", from_model="a", to_model="b"),
        Notice("compressed", kind="compressed"),
        Completed("done"),
    )
    async with bridge(transport) as b, peer(b.url) as client:
        turn = await ask(client, "hi")
    tool, began, ended, *notices = turn.data
    assert tool["tool"] == {
        "tool": "read_file",
        "phase": "end",
        "preview": "x",
        "id": "c1",
        "args": {"path": "x", "limit": 3},
        "duration": 1.5,
        "ok": False,
        "output": "no",
        "error": "not found",
        "result": "nothing",
    }
    about = {"id": "s1", "goal": "look it up"}
    assert began == {"subagent": {**about, "phase": "start"}}
    assert ended == {"subagent": {**about, "phase": "end", "duration": 2.0, "ok": True}}
    assert notices == [
        {"notice": "retry 1 of 2", "kind": "retrying", "attempt": 1, "of": 2},
        {"notice": "b takes over", "kind": "fallback", "from": "a", "to": "b"},
        {"notice": "compressed", "kind": "compressed"},
    ]
    assert turn.progress[1:3] == ["subagent: look it up", "subagent done in 2.0 s: look it up"]
