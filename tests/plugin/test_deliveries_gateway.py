"""Late results in the real gateway: each is a delivery of its own."""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from molecule_hermes.wire import (
    ANSWER_PATH,
    ATTACH_PATH,
    CANCEL_PATH,
    Clarify,
    Delta,
    Final,
    Origin,
    Push,
)
from tests.support.deliveries import (
    BRIDGE,
    active,
    assert_each_is_whole,
    background,
    call,
    decline,
    delivery,
    ended_turns,
    pushes,
    take,
    until_there_is,
)
from tests.support.gateway import CallbackServer, Hermes, callback_server, running_hermes
from tests.support.waiting import until

pytestmark = [pytest.mark.hermes, pytest.mark.asyncio(loop_scope="module")]

SLOW = r"printf 'demo:words=500\ndemo:%s=1' slow"
"""Prints what makes the demo model answer for minutes."""


@pytest.fixture(scope="module")
def said() -> list[str]:
    """The last user message of each call of the model."""
    return []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hermes(
    tmp_path_factory: pytest.TempPathFactory, said: list[str]
) -> AsyncIterator[Hermes]:
    home = tmp_path_factory.mktemp("hermes")
    async with running_hermes(home, on_message=said.append) as running:
        yield running


def _reports(output: str, answer: str) -> bool:
    """Whether the demo model repeats a job's output. A shell may have complained before it."""
    return re.search(rf"\(a job ended: (?:[^)]*\n)?{re.escape(output)}\)", answer) is not None


async def test_a_background_process_ends_in_a_delivery(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    await take(hermes, callbacks)
    chat = f"c-{uuid.uuid4().hex}"
    origin = Origin("a2a-m", "a2a-t", "a2a-c")
    message = await hermes.say(
        callbacks,
        background("echo the build is green"),
        chat=chat,
        metadata=origin,
        wants=("usage",),
    )
    final, _ = await callbacks.final(message)
    assert "notify_unsupported" not in final.content
    push_id = await delivery(callbacks, chat)
    (push, *middle, last) = callbacks.of(push_id)
    assert isinstance(push.body, Push)
    assert (push.seq, push.content, push.agent) == (0, "", "main")
    assert push.body == Push(push_id, "background", origin, "echo the build is green")
    assert isinstance(last.body, Final)
    assert (last.body.status, last.chat_id) == ("completed", chat)
    assert _reports("the build is green", last.content)
    assert any(isinstance(callback.body, Delta) for callback in middle)
    assert any(callback.body.type == "usage" for callback in middle), "the origin wanted it"
    assert not any("IMPORTANT" in callback.content for callback in callbacks.of(push_id))
    assert pushes(callbacks, chat) == [push_id]
    assert_each_is_whole(callbacks)


async def test_a_late_result_waits_until_its_busy_chat_is_free(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    await take(hermes, callbacks)
    chat = f"c-{uuid.uuid4().hex}"
    first = await hermes.say(callbacks, background("echo late"), chat=chat)
    await callbacks.final(first)
    sign = hermes.work / chat
    busy = await hermes.say(callbacks, until_there_is(sign), chat=chat)
    # Hermes announces the end of the job while the chat is busy, and its turn waits.
    await callbacks.until(lambda: pushes(callbacks, chat), 60)
    assert callbacks.finals(busy) == []
    sign.touch()
    push_id = await delivery(callbacks, chat)
    assert "late" not in "".join(callback.content for callback in callbacks.of(busy))
    after = callbacks.taken.index(callbacks.finals(busy)[0])
    assert all(callbacks.taken.index(c) > after for c in callbacks.of(push_id)[1:])
    assert _reports("late", callbacks.finals(push_id)[0].content)
    assert_each_is_whole(callbacks)


async def test_a_pattern_in_a_processs_output_is_a_delivery(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    await take(hermes, callbacks)
    chat = f"c-{uuid.uuid4().hex}"
    command = "echo it is READY; sleep 60"
    asked = background(command, notify_on_complete=False, watch_patterns=["READY"])
    await callbacks.final(await hermes.say(callbacks, asked, chat=chat))

    async def pushed() -> bool:  # Hermes looks for matches when some turn ends
        await callbacks.final(await hermes.say(callbacks, "hello"))
        return bool(pushes(callbacks, chat))

    await until(pushed, 40)
    push_id = await delivery(callbacks, chat)
    push = callbacks.of(push_id)[0].body
    assert isinstance(push, Push)
    assert (push.cause, push.job) == ("background", command)
    assert _reports("it is READY", callbacks.finals(push_id)[0].content)
    assert_each_is_whole(callbacks)


async def test_a_background_subagent_ends_in_a_delivery(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    await take(hermes, callbacks)
    chat = f"c-{uuid.uuid4().hex}"
    origin = Origin("a2a-m", "a2a-t", "a2a-c")
    asked = call("delegate_task", goal="demo:say The sum is 4", background=True)
    final, _ = await callbacks.final(await hermes.say(callbacks, asked, chat=chat, metadata=origin))
    assert "dispatched" in final.content
    push_id = await delivery(callbacks, chat)
    assert callbacks.of(push_id)[0].body == Push(
        push_id, "background", origin, "demo:say The sum is 4"
    )
    (last,) = callbacks.finals(push_id)
    assert "The sum is 4" in last.content
    assert "ASYNC DELEGATION" not in last.content
    assert_each_is_whole(callbacks)


async def test_tools_are_told_no_while_no_bridge_takes_deliveries(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    await take(hermes, callbacks)
    await decline(hermes, callbacks, bridge="bridge-after-a-restart")
    final, _ = await callbacks.final(await hermes.say(callbacks, background("echo x")))
    assert "notify_unsupported" in final.content


async def test_the_toolsets_of_the_message_hold_for_what_it_began(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    await take(hermes, callbacks)
    chat = f"c-{uuid.uuid4().hex}"
    command = """printf 'demo:call=todo {"todos": []}\\n'"""
    asked = await hermes.say(callbacks, background(command), chat=chat, toolsets=("terminal",))
    await callbacks.final(asked)
    push_id = await delivery(callbacks, chat)
    refused = "its toolset 'todo' is not allowed for this peer (allowed: terminal)"
    assert refused in callbacks.finals(push_id)[0].content
    assert_each_is_whole(callbacks)


async def test_a_delivery_can_be_canceled(hermes: Hermes, callbacks: CallbackServer) -> None:
    await take(hermes, callbacks)
    chat = f"c-{uuid.uuid4().hex}"
    await callbacks.final(await hermes.say(callbacks, background("echo demo:hang"), chat=chat))
    await callbacks.until(lambda: pushes(callbacks, chat), 40)
    (push_id,) = pushes(callbacks, chat)
    body = {"message_id": push_id, "bridge": "another"}
    assert (await hermes.post(CANCEL_PATH, body))[0] == 403
    assert (await hermes.post(CANCEL_PATH, {**body, "bridge": BRIDGE}))[0] == 200
    _, final = await callbacks.final(push_id)
    assert final.status == "canceled"
    assert_each_is_whole(callbacks)


async def test_a_refused_delivery_is_stopped_and_the_agent_is_told_once(
    hermes: Hermes, callbacks: CallbackServer, said: list[str]
) -> None:
    await take(hermes, callbacks)
    chat = f"c-{uuid.uuid4().hex}"
    await callbacks.final(await hermes.say(callbacks, background(SLOW), chat=chat))
    problem = {"kind": "forbidden", "message": "the conversation is over"}
    callbacks.refuse_pushes = problem
    await callbacks.until(lambda: pushes(callbacks, chat), 40)
    (push_id,) = pushes(callbacks, chat)
    callbacks.refuse_pushes = None
    # Its turn takes minutes, so the chat is free only because it was stopped.
    said.clear()
    again = "demo:slow=0\ndemo:say again"
    final, _ = await callbacks.final(await hermes.say(callbacks, again, chat=chat))
    assert final.content == "again"
    note = f"[Not delivered: the result of '{SLOW}': the conversation is over]"
    assert [text.count(note) for text in said if again in text] == [1]
    assert [callback.body.type for callback in callbacks.of(push_id)] == ["push"]
    final, _ = await callbacks.final(await hermes.say(callbacks, again, chat=chat))
    assert [text.count(note) for text in said if again in text] == [1, 0]
    assert (await hermes.post(CANCEL_PATH, {"message_id": push_id, "bridge": BRIDGE}))[0] == 404


async def test_a_delivery_waits_for_the_next_bridge(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    chat = f"c-{uuid.uuid4().hex}"
    async with callback_server() as gone:
        await take(hermes, gone)
        sign = hermes.work / chat
        command = f"until [ -e {sign} ]; do sleep 0.1; done; echo done"
        await gone.final(await hermes.say(gone, background(command), chat=chat))
    sign.touch()

    async def waits() -> bool:
        return await ended_turns(hermes, chat) == 2

    await until(waits, 40)
    # Its turn is over, and it keeps the worker alive.
    assert await active(hermes) == 1
    await take(hermes, callbacks, "bridge-2")
    push_id = await delivery(callbacks, chat)
    assert _reports("done", callbacks.finals(push_id)[0].content)
    assert_each_is_whole(callbacks)

    async def idle() -> bool:
        return await active(hermes) == 0

    await until(idle)
    # The bridge before may have stored the push without an answer, and knows it by its own name.
    for bridge, status in (("bridge-2", 200), (BRIDGE, 200), ("another", 403)):
        attach = {"message_id": push_id, "callback_url": callbacks.url, "bridge": bridge}
        assert (await hermes.post(ATTACH_PATH, {**attach, "after": 10**6}))[0] == status


async def test_the_agent_can_ask_in_a_delivery(hermes: Hermes, callbacks: CallbackServer) -> None:
    await take(hermes, callbacks)
    chat = f"c-{uuid.uuid4().hex}"
    asks = r"printf 'demo:%s=red|blue Which one?\n' ask"
    await callbacks.final(await hermes.say(callbacks, background(asks), chat=chat))

    def questions() -> list[Clarify]:
        return [c.body for c in callbacks.taken if isinstance(c.body, Clarify)]

    await callbacks.until(questions, 40)
    (push_id,), (question,) = pushes(callbacks, chat), questions()
    answer = {"message_id": push_id, "question_id": question.question_id, "answer": "blue"}
    assert (await hermes.post(ANSWER_PATH, {**answer, "bridge": "another"}))[0] == 403
    assert (await hermes.post(ANSWER_PATH, {**answer, "bridge": BRIDGE}))[0] == 200
    final, _ = await callbacks.final(push_id)
    assert "blue" in final.content
    assert_each_is_whole(callbacks)


async def test_an_agent_cannot_write_into_another_conversation(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    await take(hermes, callbacks)
    other = f"c-{uuid.uuid4().hex}"
    await callbacks.final(await hermes.say(callbacks, "hello", chat=other))
    asked = call("send_message", target=f"molecule_a2a:{other}", message="Pay me")
    before = len(callbacks.taken)
    await callbacks.final(await hermes.say(callbacks, asked))
    assert not [c for c in callbacks.taken[before:] if c.chat_id == other]
