"""A peer's conversation goes on at another platform of Hermes, in the real gateway."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from molecule_hermes.wire import HAND_ON_PATH, LEND_PATH, HandOn, Lend, Notice
from tests.support.gateway import CallbackServer, Hermes, callback_server, running_hermes
from tests.support.operator_hermes import messages, rows
from tests.support.second_platform import PAGER, plant, said
from tests.support.waiting import until

pytestmark = [pytest.mark.hermes, pytest.mark.asyncio(loop_scope="module")]

PEER = "peer-1"
SESSION = (
    "SELECT id FROM sessions WHERE source = 'molecule_a2a' AND chat_id = ? AND ended_at IS NULL"
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hermes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Hermes]:
    home = tmp_path_factory.mktemp("hermes")
    async with running_hermes(home, over=plant(home)) as running:
        yield running


async def spoken(hermes: Hermes, callbacks: CallbackServer, chat: str, text: str) -> str:
    answer, final = await callbacks.final(await hermes.say(callbacks, text, chat=chat))
    assert final.status == "completed"
    return answer.content


async def lend(hermes: Hermes, chat: str, seconds: int = 60) -> int:
    asked = Lend(chat, PEER, "lease", seconds, "A peer").to_json()
    return (await hermes.post(LEND_PATH, asked))[0]


async def hand_on(
    hermes: Hermes, chat: str, platform: str = PAGER, seconds: int = 30
) -> tuple[int, str]:
    """The status, and why it was refused."""
    assert await lend(hermes, chat) == 200
    try:
        asked = HandOn(chat, PEER, "lease", platform, seconds, "A peer").to_json()
        status, body = await hermes.post(HAND_ON_PATH, asked)
    finally:
        await lend(hermes, chat, 0)
    return status, str(body.get("error", ""))


def copies(hermes: Hermes) -> list[tuple[str]]:
    query = "SELECT id FROM sessions WHERE source = ? AND parent_session_id IS NOT NULL"
    return rows(hermes.home, query, PAGER)


async def test_the_platform_knows_the_conversation_and_the_chat_begins_anew(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    await spoken(hermes, callbacks, "given", "I like plums")
    assert await hand_on(hermes, "given") == (200, "")
    assert "room-1: " in said(hermes.home)
    assert "Earlier in this conversation you said: I like plums" in said(hermes.home)
    after = await hermes.say(callbacks, "What do I like?", chat="given")
    answer, _ = await callbacks.final(after)
    assert "plums" not in answer.content
    notices = [c.content for c in callbacks.of(after) if isinstance(c.body, Notice)]
    assert [PAGER in notice for notice in notices] == [True]
    again = await hermes.say(callbacks, "And now?", chat="given")
    answer, _ = await callbacks.final(again)
    assert "What do I like?" in answer.content, "the new conversation goes on"
    assert not [c for c in callbacks.of(again) if isinstance(c.body, Notice)]


@pytest.mark.parametrize(
    ("platform", "reason"),
    [
        ("fax", "no platform 'fax' connected; connected with a home channel: pager"),
        ("homeless", "'homeless' has no home channel"),
        ("molecule_a2a", "no platform 'molecule_a2a'"),
    ],
)
async def test_a_platform_that_cannot_take_it_is_refused_with_the_reason(
    hermes: Hermes, callbacks: CallbackServer, platform: str, reason: str
) -> None:
    chat = f"to-{platform}"
    await spoken(hermes, callbacks, chat, "I like plums")
    status, error = await hand_on(hermes, chat, platform)
    assert (status, reason in error) == (409, True), error
    assert "I like plums" in await spoken(hermes, callbacks, chat, "What do I like?")


async def test_everything_is_as_before_if_the_platform_does_not_take_the_answer(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    await spoken(hermes, callbacks, "refused", "I like pears")
    ((session,),) = rows(hermes.home, SESSION, "refused")
    before, had = messages(hermes.home, session), copies(hermes)
    (hermes.home / "pager-fails").touch()
    try:
        status, error = await hand_on(hermes, "refused")
    finally:
        (hermes.home / "pager-fails").unlink()
    assert (status, "out of paper" in error) == (409, True)
    assert messages(hermes.home, session) == before
    assert copies(hermes) == had
    assert "I like pears" in await spoken(hermes, callbacks, "refused", "What do I like?")


async def test_a_platform_that_takes_too_long_gets_nothing_later(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    await spoken(hermes, callbacks, "slow", "I like quinces")
    had = copies(hermes)
    (hermes.home / "pager-hangs").touch()
    try:
        status, error = await hand_on(hermes, "slow", seconds=5)
    finally:
        (hermes.home / "pager-hangs").unlink()
    assert (status, "within 5 s" in error) == (409, True)
    assert copies(hermes) == had
    pending = "SELECT id FROM sessions WHERE handoff_state IN ('pending', 'running')"
    assert rows(hermes.home, pending) == []
    assert "I like quinces" in await spoken(hermes, callbacks, "slow", "What do I like?")


async def test_the_home_channel_gets_its_own_conversation_back(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    bound = "SELECT id FROM sessions WHERE source = 'pager' AND ended_at IS NULL"
    await spoken(hermes, callbacks, "first", "I like figs")
    assert (await hand_on(hermes, "first"))[0] == 200
    before = rows(hermes.home, bound)
    await spoken(hermes, callbacks, "second", "I like dates")
    (hermes.home / "pager-fails").touch()
    try:
        assert (await hand_on(hermes, "second"))[0] == 409
    finally:
        (hermes.home / "pager-fails").unlink()
    assert rows(hermes.home, bound) == before


async def test_of_two_at_once_one_is_refused_and_the_peers_message_waits(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    for chat in ("one", "two"):
        await spoken(hermes, callbacks, chat, "I like plums")
    (hermes.home / "pager-hangs").touch()
    try:
        first = asyncio.create_task(hand_on(hermes, "one"))
        await until(lambda: list((hermes.home / "molecule-a2a-handed-on").glob("*.json")), 20)
        status, error = await hand_on(hermes, "two")
        assert (status, "already" in error) == (429, True)
        waiting = await hermes.say(callbacks, "What do I like?", chat="one")
        await lend(hermes, "one", 0)  # as if the bridge were killed
        await spoken(hermes, callbacks, "two", "Others go on")
        assert callbacks.finals(waiting) == []
    finally:
        (hermes.home / "pager-hangs").unlink()
    assert await first == (200, "")
    answer, _ = await callbacks.final(waiting)
    assert "plums" not in answer.content


async def test_a_conversation_that_is_not_held_or_at_work_is_refused(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    asked = HandOn("free", PEER, "lease", PAGER, 5).to_json()
    status, body = await hermes.post(HAND_ON_PATH, asked)
    assert (status, body["kind"]) == (429, "busy")
    slow = await hermes.say(callbacks, "demo:slow=0.5\ndemo:words=10", chat="at-work")
    await callbacks.until(lambda: callbacks.of(slow))
    assert await lend(hermes, "at-work") == 429
    await callbacks.final(slow)


async def test_a_hermes_that_dies_meanwhile_leaves_the_conversation_with_the_peer(
    tmp_path: Path,
) -> None:
    over = plant(tmp_path)
    async with callback_server() as callbacks:
        async with running_hermes(tmp_path, over=over) as hermes:
            await spoken(hermes, callbacks, "kept", "I like plums")
            (tmp_path / "pager-hangs").touch()
            handing = asyncio.create_task(hand_on(hermes, "kept"))
            await until(lambda: "plums" in said(tmp_path), 30)
            assert hermes.process is not None
            os.killpg(hermes.process.pid, signal.SIGKILL)
            await hermes.process.wait()
            await asyncio.gather(handing, return_exceptions=True)
            (tmp_path / "pager-hangs").unlink()
        async with running_hermes(tmp_path, over=over) as hermes:
            assert copies(hermes) == []
            assert "I like plums" in await spoken(hermes, callbacks, "kept", "What do I like?")
    assert said(tmp_path).count("room-1") == 1
