"""The plugin's dispatcher with a fake gateway and a fake outbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Literal

import pytest

from molecule_hermes.errors import Busy
from molecule_hermes.plugin.callbacks import OtherBridgeError
from molecule_hermes.plugin.dispatcher import Dispatcher
from molecule_hermes.plugin.journal import Journal
from molecule_hermes.plugin.ledger import Ledger
from molecule_hermes.plugin.outbox import Outbox
from molecule_hermes.plugin.questions import NotAChoiceError, NotFoundError
from molecule_hermes.plugin.turn import Question, Turn
from molecule_hermes.wire import (
    Answer,
    Approval,
    Callback,
    Context,
    Final,
    HandOn,
    Inbound,
    Lend,
    Notice,
    Steer,
    Steered,
)
from tests.support.waiting import until


class FakeOutbox(Outbox):
    def __init__(self) -> None:
        super().__init__()
        self.callbacks: list[Callback] = []

    def put(self, journal: Journal, callback: Callback) -> None:
        self.callbacks.append(callback)


class FakeGateway:
    """Hermes as the dispatcher sees it. A turn runs until the test ends it."""

    def __init__(self) -> None:
        self.phase: Literal["ready", "starting", "draining"] = "ready"
        self.working: set[str] = set()
        self.started: asyncio.Queue[Turn] = asyncio.Queue()
        self.stopped: list[str] = []
        self.released: list[str] = []
        self.approved: list[tuple[str, str]] = []
        self.waiting: list[tuple[str, str]] = []
        self.too_late = False
        self.crash = False
        self.preparing = False
        self.steers: list[str] = []

    def require_profile(self, profile: str) -> None: ...

    def warm(self) -> bool:
        return True

    def state(self) -> Literal["ready", "starting", "draining"]:
        return self.phase

    def busy(self, turn: Turn) -> bool:
        return turn.chat_id in self.working

    def stoppable(self, turn: Turn) -> bool:
        return self.busy(turn) and not self.preparing

    async def start(self, turn: Turn) -> None:
        if self.crash:
            raise RuntimeError("no")
        self.working.add(turn.chat_id)
        self.started.put_nowait(turn)

    async def stop(self, turn: Turn) -> None:
        self.stopped.append(turn.message_id)
        self.working.discard(turn.chat_id)

    async def conclude(self, turn: Turn) -> None:
        pass

    async def open_session(self, lend: Lend) -> str:
        return f"session of {lend.chat_id}"

    async def close_session(self, chat_id: str) -> None:
        pass

    async def hand_on(self, request: HandOn) -> None:
        pass

    def release(self, turn: Turn) -> None:
        self.released.append(turn.message_id)

    def approvals(self, session_key: str) -> list[tuple[str, str]]:
        return list(self.waiting)

    def context(self, turn: Turn) -> Context | None:
        return None

    def approve(self, session_key: str, choice: str) -> bool:
        self.approved.append((self.waiting.pop(0)[0], choice))
        return not self.too_late

    def clarify(self, question_id: str, answer: str) -> bool:
        return question_id != "gone"

    def steer(self, turn: Turn, text: str) -> bool:
        self.steers.append(text)
        return True

    def take_unheard(self, turn: Turn) -> str:
        left, self.steers = self.steers, []
        return "\n".join(left)

    def shown(self, answer: str) -> str:
        return answer.replace("MEDIA:x", "").strip()


class Harness:
    def __init__(self) -> None:
        self.gateway = FakeGateway()
        self.outbox = FakeOutbox()
        self.dispatcher = Dispatcher(self.gateway, Ledger(), self.outbox)

    def say(self, message_id: str, chat: str = "c") -> bool:
        return self.dispatcher.accept(Inbound(chat, "p", message_id, "http://127.0.0.1:1/", "hi"))

    async def started(self) -> Turn:
        return await asyncio.wait_for(self.gateway.started.get(), 20)

    def end(self, turn: Turn, answer: str = "done") -> None:
        turn.answered(answer)
        self.dispatcher.finish(turn)
        self.gateway.working.discard(turn.chat_id)

    def finals(self) -> list[tuple[str, str]]:
        return [
            (c.reply_to, c.body.error.kind if c.body.error else c.body.status)
            for c in self.outbox.callbacks
            if isinstance(c.body, Final)
        ]


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    made = Harness()
    yield made
    await made.dispatcher.close()


async def ended(turn: Turn) -> None:
    await asyncio.wait_for(turn.ended.wait(), 15)


async def test_the_next_message_waits_until_hermes_has_left_the_chat(harness: Harness) -> None:
    harness.say("1")
    harness.say("2")
    harness.say("x", "other")
    first = await harness.started()
    assert (await harness.started()).message_id == "x"
    first.answered("done")
    harness.dispatcher.finish(first)
    # Ended, but Hermes still holds the session.
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(harness.gateway.started.get(), 0.1)
    harness.gateway.working.discard("c")
    assert (await harness.started()).message_id == "2"


async def test_a_turn_that_hermes_lost_is_ended(harness: Harness) -> None:
    harness.say("1")
    turn = await harness.started()
    harness.gateway.working.clear()
    await ended(turn)
    assert harness.finals() == [("1", "interrupted")]


async def test_a_turn_that_cannot_start_fails_and_the_next_one_runs(harness: Harness) -> None:
    harness.gateway.crash = True
    harness.say("1")
    turn = harness.dispatcher.find("1")
    assert turn is not None
    await ended(turn)
    harness.gateway.crash = False
    harness.say("2")
    harness.end(await harness.started())
    assert harness.finals() == [("1", "internal"), ("2", "completed")]


async def test_while_draining_nothing_new_is_started(harness: Harness) -> None:
    harness.say("1")
    harness.say("2")
    first = await harness.started()
    second = harness.dispatcher.find("2")
    assert second is not None
    harness.gateway.phase = "draining"
    harness.end(first)
    await ended(second)
    assert harness.finals() == [("1", "completed"), ("2", "draining")]


async def test_closing_ends_every_message(harness: Harness) -> None:
    harness.say("1")
    harness.say("2")
    await harness.started()
    await harness.dispatcher.close()
    assert harness.finals() == [("1", "interrupted"), ("2", "draining")]
    assert harness.dispatcher.active == 0


async def test_cancel_before_hermes_has_begun_does_not_reach_hermes(harness: Harness) -> None:
    harness.gateway.working.add("c")  # a turn of Hermes's own
    harness.say("1")
    turn = harness.dispatcher.find("1")
    assert turn is not None
    await asyncio.sleep(0)
    harness.dispatcher.cancel("1")
    await ended(turn)
    assert harness.finals() == [("1", "canceled")]
    assert harness.gateway.stopped == []
    with pytest.raises(NotFoundError):
        harness.dispatcher.cancel("1")


async def test_cancel_waits_for_the_agent_that_it_stops(harness: Harness) -> None:
    harness.gateway.preparing = True
    harness.say("1")
    await harness.started()
    harness.dispatcher.cancel("1")
    await asyncio.sleep(0.1)  # longer than it waits between two looks at the agent
    assert harness.gateway.stopped == []
    harness.gateway.preparing = False
    await until(lambda: harness.gateway.stopped)
    assert harness.gateway.stopped == ["1"]


async def test_cancel_stops_hermes_and_later_output_is_dropped(harness: Harness) -> None:
    harness.say("1")
    turn = await harness.started()
    harness.dispatcher.cancel("1")
    harness.dispatcher.cancel("1")
    harness.dispatcher.notice(turn, "⚡ Stopped")
    turn.answered("too late")
    harness.dispatcher.finish(turn)
    await asyncio.wait_for(harness.dispatcher.close(), 20)
    assert [c.body for c in harness.outbox.callbacks] == [Final("canceled")]


async def test_a_messages_files_are_released_once_at_its_end(harness: Harness) -> None:
    harness.say("1")
    harness.say("2")
    turn = await harness.started()
    # One that never began has no files, and those of the chat are in use.
    harness.dispatcher.cancel("2")
    assert harness.gateway.released == []
    harness.end(turn)
    harness.dispatcher.finish(turn)
    assert harness.gateway.released == ["1"]


async def test_a_refused_file_is_reported_at_once_and_remembered_for_one_turn(
    harness: Harness,
) -> None:
    for message in ("1", "2", "3"):
        harness.say(message)
    harness.say("4", "other")
    refusals = {}
    for _ in range(4):
        turn = await harness.started()
        refusals[turn.message_id] = harness.dispatcher.notes_before(turn)
        if turn.message_id == "1":
            harness.dispatcher.refuse(turn, "the file a is not available")
        harness.end(turn)
    note = "[Your last answer: the file a is not available]"
    assert refusals == {"1": [], "2": [note], "3": [], "4": []}
    (notice,) = [c for c in harness.outbox.callbacks if isinstance(c.body, Notice)]
    assert (notice.reply_to, notice.content) == ("1", "the file a is not available")


async def test_an_answer_that_consists_of_files_is_not_an_empty_reply(harness: Harness) -> None:
    harness.say("1")
    turn = await harness.started()
    turn.has_files = True
    harness.end(turn, "")
    assert [c.body for c in harness.outbox.callbacks] == [Final(silent=True)]


async def test_output_belongs_to_the_message_whose_id_it_carries(harness: Harness) -> None:
    harness.say("1")
    first = await harness.started()
    harness.say("2")
    harness.say("9", "other")
    await harness.started()
    owner = harness.dispatcher.owner
    assert owner("c") is first
    assert owner("c", "1") is first
    assert owner("c", "", "1") is first
    assert owner("nowhere") is None
    # Sent to another chat from within a turn: not that chat's turn.
    assert owner("other", "1") is None
    harness.end(first)
    second = await harness.started()
    # A stopped turn that still speaks.
    assert owner("c", "1") is None
    assert owner("c", "2") is second
    assert owner("c", None, None) is second


async def test_late_output_of_a_turn_does_not_appear_in_the_next_one(harness: Harness) -> None:
    harness.say("1")
    harness.end(await harness.started())
    harness.say("2")
    await harness.started()
    assert harness.dispatcher.owner("c", "1") is None
    assert harness.dispatcher.is_late("1", None)
    assert not harness.dispatcher.is_late("2", "1")
    assert not harness.dispatcher.is_late("another", None)


async def test_notices_contain_no_secrets(harness: Harness) -> None:
    harness.say("1")
    harness.dispatcher.notice(await harness.started(), "retrying with api_key=abcdefgh")
    (callback,) = harness.outbox.callbacks
    assert (callback.body, callback.content) == (Notice(), "retrying with api_key=***")


def approval(name: str, command: str = "") -> Question:
    shown = (command or name, "dangerous command")
    return Question(name, "session", ("once", "deny"), approval=True, shown=shown)


async def test_answers_reach_the_approvals_in_hermess_order(harness: Harness) -> None:
    harness.say("1")
    turn = await harness.started()
    questions = [approval(name) for name in ("q1", "q2", "q3")]
    harness.gateway.waiting = [question.shown for question in questions]
    for question in questions:
        harness.dispatcher.questions.ask(turn, question, "may I?")
    assert [type(c.body) for c in harness.outbox.callbacks] == [Approval] * 3
    harness.dispatcher.answer(Answer("1", "q2", "deny"))
    assert harness.gateway.approved == []
    with pytest.raises(NotFoundError):
        harness.dispatcher.answer(Answer("1", "q2", "once"))
    with pytest.raises(NotAChoiceError):
        harness.dispatcher.answer(Answer("1", "q1", "always"))
    harness.dispatcher.answer(Answer("1", "q1", "once"))
    assert harness.gateway.approved == [("q1", "once"), ("q2", "deny")]
    harness.gateway.waiting.clear()
    harness.dispatcher.questions.expired(turn)
    with pytest.raises(NotFoundError):
        harness.dispatcher.answer(Answer("1", "q3", "once"))


async def test_an_answer_is_for_its_command_although_hermes_asked_in_another_order(
    harness: Harness,
) -> None:
    harness.say("1")
    turn = await harness.started()
    keep, drop = approval("q1", "rm keep"), approval("q2", "rm drop")
    harness.gateway.waiting = [drop.shown, keep.shown]
    for question in (keep, drop):
        harness.dispatcher.questions.ask(turn, question, "may I?")
    harness.dispatcher.answer(Answer("1", "q1", "deny"))
    assert harness.gateway.approved == []
    harness.dispatcher.answer(Answer("1", "q2", "once"))
    assert harness.gateway.approved == [("rm drop", "once"), ("rm keep", "deny")]


async def test_no_answer_passes_an_approval_that_the_peer_was_not_asked_yet(
    harness: Harness,
) -> None:
    harness.say("1")
    turn = await harness.started()
    asked, unknown = approval("q1"), approval("q2")
    harness.gateway.waiting = [unknown.shown, asked.shown]
    harness.dispatcher.questions.ask(turn, asked, "may I?")
    harness.dispatcher.answer(Answer("1", "q1", "once"))
    assert harness.gateway.approved == []
    harness.gateway.waiting.pop(0)
    harness.dispatcher.questions.expired(turn)
    assert harness.gateway.approved == [("q1", "once")]


async def test_only_the_approval_that_hermes_gave_up_is_withdrawn(harness: Harness) -> None:
    harness.say("1")
    turn = await harness.started()
    questions = [approval("q1", "same"), approval("q2", "other"), approval("q3", "same")]
    for question in questions:
        harness.dispatcher.questions.ask(turn, question, "may I?")
    harness.gateway.waiting = [("other", "dangerous command"), ("same", "dangerous command")]
    harness.dispatcher.questions.expired(turn)
    withdrawn = [c.body for c in harness.outbox.callbacks if isinstance(c.body, Notice)]
    assert withdrawn == [Notice(withdraws="q1")]
    assert list(turn.questions) == ["q2", "q3"]


async def test_an_answer_that_hermes_does_not_take_any_more_is_refused(harness: Harness) -> None:
    harness.say("1")
    turn = await harness.started()
    question = approval("q1")
    harness.gateway.waiting, harness.gateway.too_late = [question.shown], True
    harness.dispatcher.questions.ask(turn, question, "may I?")
    with pytest.raises(NotFoundError):
        harness.dispatcher.answer(Answer("1", "q1", "once"))


async def test_an_approval_that_hermes_gave_up_cannot_be_answered(harness: Harness) -> None:
    harness.say("1")
    turn = await harness.started()
    harness.dispatcher.questions.ask(turn, approval("q1"), "may I?")
    with pytest.raises(NotFoundError):
        harness.dispatcher.answer(Answer("1", "q1", "once"))
    assert harness.gateway.approved == []


async def test_a_question_takes_any_text_once(harness: Harness) -> None:
    harness.say("1")
    turn = await harness.started()
    for name in ("q1", "gone"):
        harness.dispatcher.questions.ask(
            turn, Question(name, "session", ("a", "b"), approval=False), "which?"
        )
    harness.dispatcher.answer(Answer("1", "q1", "neither"))
    for name in ("q1", "gone", "never"):
        with pytest.raises(NotFoundError):
            harness.dispatcher.answer(Answer("1", name, "a"))


async def steered(harness: Harness, text: str = "faster", bridge: str = "") -> Steered:
    return await harness.dispatcher.steer(Steer("1", text, bridge))


async def test_a_text_reaches_the_agent_of_the_running_turn(harness: Harness) -> None:
    harness.say("1")
    await harness.started()
    assert await steered(harness, " /stop at @file:x ") == Steered(True)
    assert harness.gateway.steers == ["Message: /stop at @ file:x"]


async def test_a_text_for_no_turn_of_this_bridge_is_refused(harness: Harness) -> None:
    with pytest.raises(NotFoundError):
        await steered(harness)
    harness.dispatcher.accept(Inbound("c", "p", "1", "http://127.0.0.1:1/", "hi", bridge="mine"))
    await harness.started()
    with pytest.raises(OtherBridgeError):
        await steered(harness, bridge="another")
    assert await steered(harness, bridge="mine") == Steered(True)


async def test_a_turn_takes_no_empty_text_and_not_too_many(harness: Harness) -> None:
    harness.say("1")
    await harness.started()
    assert not (await steered(harness, " \n")).accepted
    outcomes = [await steered(harness, f"text {n}") for n in range(70)]
    assert [outcome.accepted for outcome in outcomes] == [True] * 64 + [False] * 6
    assert "64" in outcomes[-1].reason


async def test_a_text_waits_for_the_agent_that_is_being_made(harness: Harness) -> None:
    harness.gateway.preparing = True
    harness.say("1")
    await harness.started()
    waiting = asyncio.create_task(steered(harness))
    await asyncio.sleep(0)
    assert not harness.gateway.steers
    harness.gateway.preparing = False
    assert await waiting == Steered(True)


async def test_a_text_for_a_turn_that_waits_for_another_steers_neither(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("molecule_hermes.plugin.dispatcher._STEER_TIMEOUT", 0.05)
    harness.say("first")
    harness.say("1")
    await harness.started()
    outcome = await steered(harness)
    assert not outcome.accepted
    assert "has not begun" in outcome.reason
    assert not harness.gateway.steers


async def test_a_text_after_the_answer_or_a_cancel_is_refused(harness: Harness) -> None:
    harness.say("1")
    turn = await harness.started()
    turn.answered("done")
    assert "ended its answer" in (await steered(harness)).reason
    turn.answer = None
    harness.dispatcher.cancel("1")
    assert "canceled" in (await steered(harness)).reason
    assert not harness.gateway.steers


async def test_an_agent_that_runs_again_makes_its_first_answer_an_interim_one(
    harness: Harness,
) -> None:
    harness.say("1")
    turn = await harness.started()
    await steered(harness, "and more")
    turn.answered("first\nMEDIA:x")
    harness.dispatcher.remark(turn, "first\nMEDIA:x")  # Hermes sends it if it did not stream it
    harness.dispatcher.agent_runs(turn, "a review of the conversation")
    assert turn.answer is not None
    harness.dispatcher.agent_runs(turn, "and more")
    harness.end(turn, "second")
    interim, final = harness.outbox.callbacks
    assert (interim.body, interim.content) == (Notice(interim=True), "first")
    assert (final.body, final.content) == (Final(), "second")


async def test_a_text_that_the_agent_did_not_read_is_reported_and_not_left_behind(
    harness: Harness,
) -> None:
    harness.say("1")
    turn = await harness.started()
    await steered(harness, "too late")
    harness.end(turn)
    notice, final = harness.outbox.callbacks
    assert notice.body == Notice(unheard=True)
    assert "new message" in notice.content
    assert final.content == "done"
    assert not harness.gateway.steers


# Lending.


def lend(seconds: int, lease: str = "l", chat_id: str = "c") -> Lend:
    return Lend(chat_id, "peer", lease, seconds)


async def test_a_message_waits_until_its_chat_is_given_back(harness: Harness) -> None:
    assert await harness.dispatcher.lend(lend(20)) == "session of c"
    assert await harness.dispatcher.lend(lend(20)) == "", "it is renewed"
    harness.say("1")
    harness.say("x", "other")
    assert (await harness.started()).message_id == "x"
    assert await harness.dispatcher.lend(lend(0)) == ""
    assert (await harness.started()).message_id == "1"


async def test_a_chat_with_a_turn_is_not_lent(harness: Harness) -> None:
    harness.say("1")
    await harness.started()
    with pytest.raises(Busy):
        await harness.dispatcher.lend(lend(20))


async def test_a_chat_is_not_lent_twice(harness: Harness) -> None:
    await harness.dispatcher.lend(lend(20))
    with pytest.raises(Busy):
        await harness.dispatcher.lend(lend(20, "other"))
