"""Questions: what counts as an answer, and the flow that a peer sees."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from a2a.helpers import new_data_part
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    Message,
    Part,
    Role,
    SubscribeToTaskRequest,
    Task,
)
from a2a.utils.errors import TaskNotFoundError, UnsupportedOperationError
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.client.connection import message
from molecule_hermes.errors import Interrupted, Unreachable
from molecule_hermes.protocol.questions import NOBODY_TO_ASK, NotAnAnswerError, read_answer
from molecule_hermes.transports.base import QuestionGoneError
from molecule_hermes.turns.model import (
    Completed,
    Failed,
    FileProduced,
    Notice,
    Question,
    TextDelta,
    ToolProgress,
)
from molecule_hermes.turns.model import Turn as HermesTurn
from tests.conftest import StartBridge
from tests.support.fakes import Answered, ScriptedTransport
from tests.support.peers import Turn, ask, peer, reply_text, send, state
from tests.support.waiting import until

APPROVAL = Question(
    "q1",
    "approval",
    "may I run rm -rf x?",
    ("once", "session", "deny"),
    command="rm -rf x",
    description="recursive delete",
)
CLARIFY = Question("q2", "clarify", "which colour?", ("Red", "Blue"))


def said(*parts: Part) -> Message:
    return Message(message_id="m", role=Role.ROLE_USER, parts=parts)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("once", "once"),
        (" Session\n", "session"),
        ("yes", "once"),
        ("OK", "once"),
        ("no", "deny"),
        ("deny", "deny"),
    ],
)
def test_an_approval_takes_a_choice_or_yes_or_no(text: str, answer: str) -> None:
    assert read_answer(APPROVAL, said(Part(text=text))) == answer


@pytest.mark.parametrize("text", ["", "maybe", "always", "yes please", "onces"])
def test_an_approval_takes_nothing_else(text: str) -> None:
    with pytest.raises(NotAnAnswerError, match="once, session, deny, yes or no"):
        read_answer(APPROVAL, said(Part(text=text)))


def test_a_clarification_takes_a_choice_or_any_words() -> None:
    assert read_answer(CLARIFY, said(Part(text="blue"))) == "Blue"
    assert read_answer(CLARIFY, said(Part(text="rather green"))) == "rather green"
    with pytest.raises(NotAnAnswerError):
        read_answer(CLARIFY, said(Part(text="  ")))


@pytest.mark.parametrize("answer", ["once", "yes", True])
def test_a_data_part_names_the_question(answer: object) -> None:
    data = new_data_part({"questionId": "q1", "answer": answer})
    assert read_answer(APPROVAL, said(data), asked="another") == "once"
    with pytest.raises(NotAnAnswerError, match="no longer open"):
        read_answer(CLARIFY, said(data))


def test_metadata_names_the_question_of_a_text() -> None:
    answer = said(Part(text="yes"))
    answer.metadata["questionId"] = "q1"
    assert read_answer(APPROVAL, answer, asked="another") == "once"
    with pytest.raises(NotAnAnswerError, match="no longer open"):
        read_answer(CLARIFY, answer)


@pytest.mark.parametrize("answer", ["deny", "no", False])
def test_an_answer_in_the_metadata_counts_before_the_text(answer: object) -> None:
    message = said(Part(text="once, if you must"))
    message.metadata.update({"questionId": "q1", "answer": answer})
    assert read_answer(APPROVAL, message) == "deny"
    with pytest.raises(NotAnAnswerError, match="no longer open"):
        read_answer(CLARIFY, message)


def test_an_answer_counts_only_for_the_question_that_its_peer_had_seen() -> None:
    with pytest.raises(NotAnAnswerError, match="no longer open"):
        read_answer(APPROVAL, said(Part(text="yes")), asked="the one before")


_json = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda x: st.lists(x) | st.dictionaries(st.text(), x),
)
_parts = st.lists(
    st.builds(lambda text: Part(text=text), st.text())
    | st.builds(new_data_part, _json)
    | st.builds(lambda answer: new_data_part({"questionId": "q1", "answer": answer}), _json)
    | st.builds(lambda raw: Part(raw=raw), st.binary())
)


_metadata = st.dictionaries(st.sampled_from(["questionId", "answer", "other"]), _json)


@given(_parts, _metadata, st.sampled_from([APPROVAL, CLARIFY]))
def test_any_message_is_an_answer_or_gets_the_reason_why_not(
    parts: list[Part], metadata: dict[str, object], question: Question
) -> None:
    message = said(*parts)
    message.metadata.update(metadata)
    try:
        answer = read_answer(question, message)
    except NotAnAnswerError:
        return
    assert answer in question.choices or question.kind == "clarify"


@pytest.mark.parametrize("order", ["asked before", "asked later"])
async def test_a_message_that_waits_for_an_answer_names_the_task_and_its_question(
    bridge: StartBridge, order: str
) -> None:
    goes_on = asyncio.Event()
    transport = ScriptedTransport(goes_on, APPROVAL, Answered(), Completed("done"))
    if order == "asked before":
        goes_on.set()
    async with bridge(transport) as b, peer(b.url) as client, asyncio.timeout(30):
        first, waiting = Turn(), Turn()
        stream = client.send_message(message("clean up", "ctx"))
        first.add(await anext(stream))
        if order == "asked before":
            async for event in stream:
                first.add(event)
        async for event in client.send_message(message("yes", "ctx")):
            waiting.add(event)
            if waiting.data and waiting.data[-1].get("waiting") is True:
                goes_on.set()
            elif waiting.data and "waiting" in waiting.data[-1]:
                break
        answered = await ask(client, "yes", task_id=first.task_id)
    about = waiting.data[-1]["waiting"]
    assert (about["taskId"], about["questionId"]) == (first.task_id, "q1")
    assert about["choices"] == ["once", "session", "deny"]
    told = waiting.progress[-1]
    assert "may I run rm -rf x?" in told
    assert f"send a message with taskId {first.task_id}" in told
    assert answered.states[-1] == "COMPLETED"


class LosesAnswers(ScriptedTransport):
    given: asyncio.Event
    lost: asyncio.Event

    async def answer(self, turn: HermesTurn, question_id: str, answer: str) -> None:
        self.given.set()
        async with asyncio.timeout(10):
            await self.lost.wait()
        raise Unreachable


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_question_stops_the_task_and_its_answer_goes_on_with_the_same_turn(
    bridge: StartBridge, streaming: bool
) -> None:
    transport = ScriptedTransport(
        TextDelta("So far. "), APPROVAL, Answered(), TextDelta("Done."), Completed("So far. Done.")
    )
    async with bridge(transport) as b, peer(b.url, streaming=streaming) as client:
        asked = await ask(client, "clean up", "ctx")
        waiting = await client.get_task(GetTaskRequest(id=asked.task_id))
        done = await ask(client, "yes", task_id=asked.task_id)
        task = await client.get_task(GetTaskRequest(id=asked.task_id))
    assert asked.question == {
        "questionId": "q1",
        "kind": "approval",
        "choices": ["once", "session", "deny"],
        "command": "rm -rf x",
        "description": "recursive delete",
        "expiresAt": asked.question["expiresAt"],
    }
    left = datetime.fromisoformat(asked.question["expiresAt"]) - datetime.now(UTC)
    assert timedelta(seconds=200) < left < timedelta(seconds=300)
    assert "may I run rm -rf x?" in asked.progress[-1] if streaming else True
    assert reply_text(waiting) == "So far. "
    assert state(waiting) == "INPUT_REQUIRED"
    assert transport.answers == [("q1", "once")]
    assert len(transport.turns) == 1
    assert done.task_id == asked.task_id
    assert done.states[-1] == "COMPLETED"
    assert reply_text(task) == "So far. Done."
    assert [m.parts[0].text for m in task.history if m.role == Role.ROLE_USER] == [
        "clean up",
        "yes",
    ]


async def test_a_message_that_is_no_answer_gets_a_remark_and_the_question_stays_open(
    bridge: StartBridge,
) -> None:
    transport = ScriptedTransport(APPROVAL, Answered(), Completed("done"))
    async with bridge(transport) as b, peer(b.url) as client:
        asked = await ask(client, "clean up")
        again = await ask(client, "perhaps", task_id=asked.task_id)
        assert again.question["questionId"] == "q1"
        assert "'perhaps' is not one of the choices" in again.question["remark"]
        request = message("", task_id=asked.task_id)
        del request.message.parts[:]
        request.message.parts.append(new_data_part({"questionId": "old", "answer": "yes"}))
        gone = await send(client, request)
        assert "no longer open" in gone.question["remark"]
        assert transport.answers == []
        done = await ask(client, "deny", task_id=asked.task_id)
    assert done.states[-1] == "COMPLETED"
    assert transport.answers == [("q1", "deny")]


async def test_a_file_in_an_answer_is_refused_by_name_and_not_kept(bridge: StartBridge) -> None:
    transport = ScriptedTransport(CLARIFY, Answered(), Completed("done"))
    async with bridge(transport) as b, peer(b.url) as client:
        asked = await ask(client, "paint it")
        file = Part(raw=bytes(100_000), filename="sample.bin")
        again = await send(client, message("Red", task_id=asked.task_id, files=[file]))
        task = await client.get_task(GetTaskRequest(id=asked.task_id))
        assert "sample.bin" in again.question["remark"]
        assert transport.answers == []
        assert (await ask(client, "Red", task_id=asked.task_id)).states[-1] == "COMPLETED"
    assert task.ByteSize() < 10_000


async def test_an_answer_that_does_not_reach_hermes_can_be_given_again(bridge: StartBridge) -> None:
    transport = ScriptedTransport(APPROVAL, Answered(), Completed("done"))
    transport.refuses_answers = Unreachable()
    async with bridge(transport) as b, peer(b.url) as client:
        asked = await ask(client, "clean up")
        again = await ask(client, "yes", task_id=asked.task_id)
        assert "did not reach Hermes" in again.question["remark"]
        transport.refuses_answers = None
        assert (await ask(client, "yes", task_id=asked.task_id)).states[-1] == "COMPLETED"


async def test_an_answer_to_a_question_that_hermes_gave_up_lets_the_turn_go_on(
    bridge: StartBridge,
) -> None:
    go = asyncio.Event()
    transport = ScriptedTransport(APPROVAL, go, Completed("done"))
    transport.refuses_answers = QuestionGoneError("q1")
    async with bridge(transport) as b, peer(b.url) as client:
        asked = await ask(client, "clean up")
        stream = client.send_message(message("yes", task_id=asked.task_id))
        done = Turn()
        async for event in stream:
            done.add(event)
            go.set()
    assert "no longer waited" in done.progress[0]
    assert done.states[-1] == "COMPLETED"


async def test_a_withdrawn_question_lets_the_turn_go_on_by_itself(bridge: StartBridge) -> None:
    go = asyncio.Event()
    transport = ScriptedTransport(APPROVAL, go, Notice("too late", withdraws="q1"), Completed("on"))
    async with bridge(transport) as b, peer(b.url) as client:
        asked = await ask(client, "clean up")
        assert asked.question
        watch = client.subscribe(SubscribeToTaskRequest(id=asked.task_id))
        seen = Turn()
        seen.add(await anext(watch))
        go.set()
        async for event in watch:
            seen.add(event)
    assert seen.states == ["INPUT_REQUIRED", "WORKING", "COMPLETED"]
    assert seen.progress == ["too late"]


async def test_what_hermes_does_while_a_question_waits_is_shown_after_it(
    bridge: StartBridge,
) -> None:
    """Two tools that run side by side: one asks, the other goes on."""
    transport = ScriptedTransport(
        APPROVAL,
        ToolProgress("web", "end", ok=True),
        CLARIFY,
        FileProduced("a.txt", "text/plain", b"x"),
        Answered(),
        Answered(),
        Completed("done"),
    )
    async with bridge(transport) as b, peer(b.url) as client:
        first = await ask(client, "go")
        assert first.states == ["SUBMITTED", "WORKING", "INPUT_REQUIRED"]
        second = await ask(client, "yes", task_id=first.task_id)
        assert second.question["questionId"] == "q2"
        assert second.states == ["INPUT_REQUIRED"]
        third = await ask(client, "Red", task_id=first.task_id)
        assert third.progress[:2] == ["answered: Red", "web done"]
        task = await client.get_task(GetTaskRequest(id=first.task_id))
    assert third.states[-1] == "COMPLETED"
    assert [a.name for a in task.artifacts] == ["a.txt", "reply"]
    assert transport.answers == [("q1", "once"), ("q2", "Red")]


async def test_a_yes_that_was_sent_twice_does_not_approve_the_next_command(
    bridge: StartBridge,
) -> None:
    second = Question("q3", "approval", "may I format the disk?", ("once", "deny"))
    transport = ScriptedTransport(APPROVAL, Answered(), 0.2, second, Answered(), Completed("done"))
    async with bridge(transport) as b, peer(b.url) as client:
        asked = await ask(client, "go")
        one, two = await asyncio.gather(
            *(ask(client, "yes", task_id=asked.task_id) for _ in range(2)), return_exceptions=True
        )
        for answered in (one, two):
            # Both were sent for the first question; the slower one finds the task working, or
            # the second question open, and is told so.
            if isinstance(answered, Turn):
                assert answered.question["questionId"] == "q3"
            else:
                assert isinstance(answered, UnsupportedOperationError)
        assert transport.answers == [("q1", "once")]
        done = await ask(client, "no", task_id=asked.task_id)
    assert transport.answers[1:] == [("q3", "deny")]
    assert done.states[-1] == "COMPLETED"


@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_a_subscription_ends_with_the_question_and_one_after_it_with_the_rest(
    bridge: StartBridge, binding: str, version: str
) -> None:
    go = asyncio.Event()
    transport = ScriptedTransport(go, APPROVAL, Answered(), Completed("done"))
    async with (
        asyncio.timeout(30),
        bridge(transport) as b,
        peer(b.url, binding=binding, version=version) as client,
    ):
        task_id = (await anext(client.send_message(message("go")))).task.id
        following = SubscribeToTaskRequest(id=task_id)
        before, after = Turn(), Turn()
        async for event in client.subscribe(following):
            before.add(event)
            go.set()
        assert before.states[-1] == "INPUT_REQUIRED"
        stream = client.subscribe(following)
        after.add(await anext(stream))
        assert after.states == ["INPUT_REQUIRED"]
        await ask(client, "yes", task_id=task_id)
        async for event in stream:
            after.add(event)
        assert after.states[-1] == "COMPLETED"


@pytest.mark.parametrize(("question", "answer"), [(APPROVAL, "deny"), (CLARIFY, NOBODY_TO_ASK)])
async def test_without_an_answer_in_time_the_turn_goes_on(
    bridge: StartBridge, question: Question, answer: str
) -> None:
    transport = ScriptedTransport(question, Answered(), TextDelta("went on"), Completed("went on"))
    async with bridge(transport, QUESTION_TIMEOUT=0.3) as b, peer(b.url) as client:
        asked = await ask(client, "go", "ctx")
        assert asked.question
        after = await ask(client, "next", "ctx")
        task = await client.get_task(GetTaskRequest(id=asked.task_id))
    assert state(task) == "COMPLETED"
    assert reply_text(task) == "went on"
    assert transport.answers[0] == (question.question_id, answer)
    assert after.question, "the conversation is free for its next turn"


async def test_a_refusal_that_does_not_reach_hermes_is_logged_in_one_line(
    bridge: StartBridge, caplog: pytest.LogCaptureFixture
) -> None:
    transport = ScriptedTransport(APPROVAL, asyncio.Event())
    transport.refuses_answers = Unreachable("nobody there")
    async with bridge(transport, QUESTION_TIMEOUT=0.1, DRAIN_TIMEOUT=0) as b, peer(b.url) as client:
        await ask(client, "go")
        await until(lambda: "could not be refused (nobody there)" in caplog.text)
    assert "Traceback" not in caplog.text


async def test_with_the_policy_deny_no_peer_is_asked_for_an_approval(bridge: StartBridge) -> None:
    transport = ScriptedTransport(APPROVAL, Answered(), CLARIFY, Answered(), Completed("done"))
    async with bridge(transport, APPROVALS="deny") as b, peer(b.url) as client:
        asked = await ask(client, "go")
        assert "INPUT_REQUIRED" not in asked.states[:-1]
        assert asked.question["kind"] == "clarify"
        done = await ask(client, "Red", task_id=asked.task_id)
    assert any(line.startswith("denied") for line in asked.progress)
    assert transport.answers == [("q1", "deny"), ("q2", "Red")]
    assert done.states[-1] == "COMPLETED"


async def test_the_time_a_peer_thinks_is_not_the_turns_time(bridge: StartBridge) -> None:
    transport = ScriptedTransport(APPROVAL, Answered(), Completed("done"))
    async with bridge(transport, TURN_TIMEOUT=0.6) as b, peer(b.url) as client:
        asked = await ask(client, "go")
        await asyncio.sleep(0.8)  # longer than TURN_TIMEOUT
        done = await ask(client, "yes", task_id=asked.task_id)
    assert done.states[-1] == "COMPLETED"


async def test_after_an_answer_the_turns_time_goes_on(bridge: StartBridge) -> None:
    transport = ScriptedTransport(APPROVAL, Answered(), 30.0, Completed("never"))
    async with bridge(transport, TURN_TIMEOUT=0.6) as b, peer(b.url) as client:
        asked = await ask(client, "go")
        done = await ask(client, "yes", task_id=asked.task_id)
    assert done.states[-1] == "FAILED"
    assert done.failure["kind"] == "timeout"


async def test_a_task_that_asks_can_be_canceled(bridge: StartBridge) -> None:
    transport = ScriptedTransport(TextDelta("so far"), APPROVAL, Answered(), Completed("never"))
    async with bridge(transport, DRAIN_TIMEOUT=0) as b, peer(b.url) as client:
        asked = await ask(client, "go", "ctx")
        watch = client.subscribe(SubscribeToTaskRequest(id=asked.task_id))
        seen = Turn()
        seen.add(await anext(watch))
        task = await client.cancel_task(CancelTaskRequest(id=asked.task_id))
        async for event in watch:
            seen.add(event)
        with pytest.raises(UnsupportedOperationError):
            await ask(client, "yes", task_id=asked.task_id)
        after = await ask(client, "next", "ctx")
    assert state(task) == seen.states[-1] == "CANCELED"
    assert reply_text(task) == "so far"
    assert after.question
    assert transport.answers == []


async def test_hermes_may_die_while_a_question_waits(bridge: StartBridge) -> None:
    go = asyncio.Event()
    transport = ScriptedTransport(TextDelta("so far"), APPROVAL, go, Failed(Unreachable("gone")))
    async with bridge(transport) as b, peer(b.url) as client:
        asked = await ask(client, "go")
        go.set()

        async def failed() -> Task | None:
            task = await client.get_task(GetTaskRequest(id=asked.task_id))
            return task if state(task) == "FAILED" else None

        task = await until(failed)
    assert reply_text(task) == "so far"


async def test_hermes_may_die_while_an_answer_is_on_its_way(bridge: StartBridge) -> None:
    died, ended = asyncio.Event(), asyncio.Event()
    transport = LosesAnswers(APPROVAL, died, Interrupted("Hermes died"))
    transport.given, transport.lost = died, ended
    async with bridge(transport) as b, peer(b.url) as client:
        asked = await ask(client, "go")
        seen = Turn()
        async for event in client.send_message(message("yes", task_id=asked.task_id)):
            seen.add(event)
            if seen.states[-1] == "FAILED":
                ended.set()
        task = await client.get_task(GetTaskRequest(id=asked.task_id))
    assert seen.states == ["FAILED"]
    assert seen.failure["kind"] == "interrupted"
    assert state(task) == "FAILED"


async def test_shutdown_ends_a_task_that_asks_as_interrupted(bridge: StartBridge) -> None:
    transport = ScriptedTransport(APPROVAL, Answered(), Completed("never"))
    async with bridge(transport, DRAIN_TIMEOUT=0.1) as b, peer(b.url) as client:
        asked = await ask(client, "go")
        watch = client.subscribe(SubscribeToTaskRequest(id=asked.task_id))
        seen = Turn()
        seen.add(await anext(watch))
        await b.__aexit__(None, None, None)
        async for event in watch:
            seen.add(event)
    assert seen.states[-1] == "FAILED"
    assert seen.failure["kind"] == "interrupted"


async def test_a_peer_can_answer_only_its_own(bridge: StartBridge) -> None:
    transport = ScriptedTransport(APPROVAL, Answered(), Completed("done"))
    tokens = "alice:alice-token-012345,bob:bob-token-01234567"
    async with (
        bridge(transport, PEER_TOKENS=tokens) as b,
        peer(b.url, token="alice-token-012345") as alice,
        peer(b.url, token="bob-token-01234567") as bob,
    ):
        asked = await ask(alice, "go", "ctx")
        with pytest.raises(TaskNotFoundError):
            await ask(bob, "yes", task_id=asked.task_id)
        assert transport.answers == []
        assert (await ask(alice, "yes", task_id=asked.task_id)).states[-1] == "COMPLETED"
