"""A message that is sent again is not run again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from a2a.client import Client
from a2a.types import GetTaskRequest, SendMessageRequest
from a2a.utils.errors import InvalidParamsError
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.client.connection import message
from molecule_hermes.config import Settings
from molecule_hermes.server.bridge import Bridge
from molecule_hermes.turns.idempotency import IdempotencyIndex
from molecule_hermes.turns.model import Completed, Question, TextDelta
from tests.conftest import StartBridge
from tests.support.fakes import Answered, ScriptedTransport
from tests.support.peers import Turn, ask, peer, reply_text, send, state
from tests.support.waiting import until

APPROVAL = Question("q1", "approval", "may I?", ("once", "deny"))


def test_a_message_belongs_to_the_task_that_claimed_it() -> None:
    index = IdempotencyIndex(60.0)
    index.claim("alice", "ctx", "m", "one")
    for other in (("bob", "ctx", "m"), ("alice", "other", "m"), ("alice", "ctx", "n")):
        index.claim(*other, "two")
    assert index.find("alice", "ctx", "m") == "one"
    assert index.find("bob", "ctx", "m") == "two"
    assert index.find("bob", "other", "m") is None


def test_after_the_window_it_may_come_again() -> None:
    now = [0.0]
    index = IdempotencyIndex(10.0, lambda: now[0])
    index.claim("alice", "ctx", "m", "one")
    now[0] = 10.0
    assert index.find("alice", "ctx", "m") == "one"
    now[0] = 10.1
    assert index.find("alice", "ctx", "m") is None
    index.claim("alice", "ctx", "m", "two")
    assert index.find("alice", "ctx", "m") == "two"
    assert len(index) == 1


@pytest.mark.parametrize(("window", "message_id"), [(0.0, "m"), (60.0, "")])
def test_without_a_window_or_a_name_every_message_is_new(window: float, message_id: str) -> None:
    index = IdempotencyIndex(window)
    for task in ("one", "two"):
        assert index.find("alice", "ctx", message_id) is None
        index.claim("alice", "ctx", message_id, task)
    assert len(index) == 0


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("mn"), st.integers(0, 20))))
def test_within_a_window_each_message_has_one_task(steps: list[tuple[str, str, int]]) -> None:
    now = 0.0
    index = IdempotencyIndex(30.0, lambda: now)
    claimed: dict[tuple[str, str], tuple[float, str]] = {}
    for number, (peer_name, message_id, later) in enumerate(steps):
        now += later
        at, task = claimed.get((peer_name, message_id), (-1e9, ""))
        if before := index.find(peer_name, "", message_id):
            assert now - at <= 30.0
            assert before == task
        else:
            assert now - at > 30.0
            index.claim(peer_name, "", message_id, str(number))
            claimed[peer_name, message_id] = now, str(number)


def same(request: SendMessageRequest) -> SendMessageRequest:
    copy = SendMessageRequest()
    copy.CopyFrom(request)
    return copy


@pytest.mark.parametrize("context", ["", "ctx"])
@pytest.mark.parametrize("streaming", [True, False])
async def test_a_retry_after_the_end_gets_the_task_and_runs_nothing(
    bridge: StartBridge, streaming: bool, context: str
) -> None:
    transport = ScriptedTransport(TextDelta("done"), Completed("done"))
    request = message("go", context)
    async with bridge(transport) as b, peer(b.url, streaming=streaming) as client:
        first = await send(client, same(request))
        again = await send(client, same(request))
    assert len(transport.turns) == 1
    assert again.task_id == first.task_id
    assert again.states == ["COMPLETED"]
    assert again.text == first.text == "done"


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_retry_while_it_runs_joins_it(bridge: StartBridge, streaming: bool) -> None:
    go = asyncio.Event()
    transport = ScriptedTransport(
        TextDelta("half, "), go, TextDelta("whole"), Completed("half, whole")
    )
    request = message("go", "ctx")
    async with bridge(transport) as b, peer(b.url, streaming=streaming) as client:
        first = asyncio.create_task(send(client, same(request)))
        await until(lambda: transport.turns)
        second = asyncio.create_task(send(client, same(request)))
        await asyncio.sleep(0.2)  # neither a second turn nor an early end comes of it
        assert not second.done()
        go.set()
        one, two = await first, await second
    assert len(transport.turns) == 1
    assert one.task_id == two.task_id
    assert one.states[-1] == two.states[-1] == "COMPLETED"
    assert one.text == two.text == "half, whole"


async def test_many_at_once_run_once(bridge: StartBridge) -> None:
    transport = ScriptedTransport(0.1, Completed("done"))
    request = message("go", "ctx")
    async with bridge(transport) as b, peer(b.url) as client:
        turns = await asyncio.gather(*(send(client, same(request)) for _ in range(10)))
    assert len(transport.turns) == 1
    assert {turn.task_id for turn in turns} == {turns[0].task_id}
    assert {turn.states[-1] for turn in turns} == {"COMPLETED"}


def other(request: SendMessageRequest, text: str) -> SendMessageRequest:
    """The same messageId with other content."""
    copy = same(request)
    copy.message.parts[0].text = text
    return copy


async def test_the_same_id_with_other_content_is_a_new_message(bridge: StartBridge) -> None:
    transport = ScriptedTransport(Completed("done"))
    request = message("one", "ctx")
    async with bridge(transport) as b, peer(b.url) as client:
        first = await send(client, same(request))
        second = await send(client, other(request, "two"))
        again = await send(client, other(request, "two"))
    assert [turn.text for turn in transport.turns] == ["one", "two"]
    assert first.task_id != second.task_id == again.task_id


async def test_the_same_message_with_other_metadata_is_a_resend(bridge: StartBridge) -> None:
    transport = ScriptedTransport(Completed("done"))
    request = message("one", "ctx")
    async with bridge(transport) as b, peer(b.url) as client:
        first = await send(client, same(request))
        request.message.metadata["attempt"] = 2
        again = await send(client, same(request))
    assert len(transport.turns) == 1
    assert again.task_id == first.task_id


async def test_a_file_of_the_same_size_with_other_content_is_a_new_message(
    settings: Callable[..., Settings],
) -> None:
    request = message("look", "ctx")
    request.message.parts.add(raw=b"a" * 40_000, media_type="application/x-mine", filename="f")
    changed = same(request)
    changed.message.parts[1].raw = b"b" * 40_000
    ran = []
    for _ in range(2):  # the second bridge knows what is stored: not the bytes
        transport = ScriptedTransport(Completed("done"))
        async with Bridge(settings(STORE="sqlite"), transport) as b, peer(b.url) as client:
            for sent in (request, changed, changed):
                await send(client, same(sent))
        ran.append(len(transport.turns))
        request = changed
    assert ran == [2, 0]


async def test_a_retry_that_does_not_wait_gets_the_task_as_it_is(bridge: StartBridge) -> None:
    go = asyncio.Event()
    transport = ScriptedTransport(go, Completed("done"))
    request = message("go", "ctx")
    request.configuration.return_immediately = True
    async with bridge(transport) as b, peer(b.url, streaming=False) as client:
        first = await send(client, same(request))
        again = await send(client, same(request))
        go.set()
        assert again.task_id == first.task_id
        assert again.states[-1] in ("SUBMITTED", "WORKING")
    assert len(transport.turns) == 1


async def test_a_peers_message_ids_are_its_own(bridge: StartBridge) -> None:
    transport = ScriptedTransport(Completed("done"))
    tokens = "alice:alice-token-012345,bob:bob-token-01234567"
    request = message("go", "ctx")
    async with (
        bridge(transport, PEER_TOKENS=tokens) as b,
        peer(b.url, token="alice-token-012345") as alice,
        peer(b.url, token="bob-token-01234567") as bob,
    ):
        first, second = await send(alice, same(request)), await send(bob, same(request))
    assert first.task_id != second.task_id
    assert len(transport.turns) == 2


async def test_a_message_that_was_refused_may_be_sent_again(bridge: StartBridge) -> None:
    transport = ScriptedTransport(APPROVAL, Answered(), Completed("done"))
    async with bridge(transport) as b, peer(b.url) as client:
        asked = await _refused_first(client, message("go"))
        done = await _refused_first(client, message("yes", task_id=asked.task_id))
    assert done.states[-1] == "COMPLETED"
    assert len(transport.turns) == len(transport.answers) == 1


async def _refused_first(client: Client, request: SendMessageRequest) -> Turn:
    """First with a webhook that may not be called, then the same message without it."""
    request.configuration.task_push_notification_config.url = "http://127.0.0.1:1/hook"
    with pytest.raises(InvalidParamsError):
        await send(client, request)
    request.configuration.ClearField("task_push_notification_config")
    return await send(client, request)


async def test_a_message_that_found_no_room_is_run_when_it_is_sent_again(
    bridge: StartBridge,
) -> None:
    go = asyncio.Event()
    transport = ScriptedTransport(go, Completed("done"))
    request = message("two", "ctx")
    async with bridge(transport, MAX_RUNNING=1, MAX_WAITING=0) as b, peer(b.url) as client:
        first = asyncio.create_task(ask(client, "one"))
        await until(lambda: transport.turns)
        refused = await send(client, same(request))
        assert (refused.states[-1], refused.failure["kind"]) == ("REJECTED", "busy")
        go.set()
        await first
        done = await send(client, same(request))
        again = await send(client, same(request))
    assert done.states[-1] == "COMPLETED"
    assert again.task_id == done.task_id != refused.task_id
    assert [turn.text for turn in transport.turns] == ["one", "two"]


async def test_a_message_that_came_to_a_draining_bridge_is_run_by_the_next(
    bridge: StartBridge,
) -> None:
    transport = ScriptedTransport(asyncio.Event())
    request = message("two")
    async with bridge(transport, MAX_RUNNING=1, DRAIN_TIMEOUT=0) as b, peer(b.url) as client:
        turns = [asyncio.create_task(ask(client, "one"))]
        await until(lambda: transport.turns)
        turns.append(asyncio.create_task(send(client, same(request))))
        await until(lambda: b.turns >= 2)
        await b.__aexit__(None, None, None)
        _, refused = await asyncio.gather(*turns)
        assert (refused.states[-1], refused.failure["kind"]) == ("REJECTED", "draining")
    async with bridge(ScriptedTransport(Completed("done"))) as b, peer(b.url) as client:
        assert (await send(client, same(request))).text == "done"


async def test_an_answer_that_is_sent_again_is_given_once(bridge: StartBridge) -> None:
    transport = ScriptedTransport(APPROVAL, Answered(), 0.1, Completed("done"))
    async with bridge(transport) as b, peer(b.url) as client:
        asked = await ask(client, "go")
        answer = message("yes", task_id=asked.task_id)
        turns = await asyncio.gather(*(send(client, same(answer)) for _ in range(3)))
        late = await send(client, same(answer))
        task = await client.get_task(GetTaskRequest(id=asked.task_id))
    assert transport.answers == [("q1", "once")]
    for turn in (*turns, late):
        assert isinstance(turn, Turn)
        assert turn.states[-1] == "COMPLETED"
    assert state(task) == "COMPLETED"
    assert reply_text(task) == "done"


@pytest.mark.parametrize("context", ["", "ctx"])
async def test_a_retry_after_a_restart_of_the_bridge_gets_the_task(
    settings: Callable[..., Settings], context: str
) -> None:
    request = message("go", context)
    turns = []
    for answer in ("first life", "second life"):
        transport = ScriptedTransport(Completed(answer))
        async with Bridge(settings(STORE="sqlite"), transport) as b, peer(b.url) as client:
            turns.append(await send(client, same(request)))
            fresh = await ask(client, "another")
            assert fresh.text == answer
    assert turns[0].task_id == turns[1].task_id
    assert turns[1].text == "first life"
    assert len(transport.turns) == 1


@pytest.mark.parametrize("context", ["", "ctx"])
async def test_after_a_restart_the_same_id_with_other_content_is_a_new_message(
    settings: Callable[..., Settings], context: str
) -> None:
    request = message("one", context)
    async with (
        Bridge(settings(STORE="sqlite"), ScriptedTransport(Completed("1"))) as b,
        peer(b.url) as client,
    ):
        first = await send(client, same(request))
    transport = ScriptedTransport(0.05, Completed("2"))
    async with Bridge(settings(STORE="sqlite"), transport) as b, peer(b.url) as client:
        twice = [send(client, other(request, "two")) for _ in range(3)]
        second, *rest = await asyncio.gather(*twice)
    assert [turn.text for turn in transport.turns] == ["two"]
    assert {second.task_id} == {turn.task_id for turn in rest} != {first.task_id}


async def test_a_retry_after_a_restart_counts_from_when_it_was_sent(
    settings: Callable[..., Settings],
) -> None:
    request = message("go", "ctx")
    for _ in range(2):
        transport = ScriptedTransport(Completed("done"))
        environ = settings(STORE="sqlite", RETRY_WINDOW=0.3)
        async with Bridge(environ, transport) as b, peer(b.url) as client:
            await send(client, same(request))
        await asyncio.sleep(0.4)  # longer than RETRY_WINDOW
        assert len(transport.turns) == 1
