"""A conversation of Hermes's own CLI goes on in a peer's chat, in the real gateway."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from molecule_hermes.server.handoff_requests import requested_in
from molecule_hermes.wire import INBOUND_PATH, Transcript
from tests.support.gateway import CallbackServer, Hermes, callback_server, running_hermes
from tests.support.operator_hermes import chat, messages, request_handoff, rows, session_in
from tests.support.waiting import until

pytestmark = [pytest.mark.hermes, pytest.mark.asyncio(loop_scope="module")]

NOTICE = "Go on here."
SAID = "the colour of the house is teal"


async def source(request: Mapping[str, Any]) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "molecule_hermes.plugin.session_source"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await asyncio.wait_for(process.communicate(json.dumps(request).encode()), 60)
    return dict(json.loads(out))


async def claimed(home: Path, session: str) -> Transcript:
    request = {"home": str(home), "do": "claim", "session": session, "target": "molecule_a2a:bob"}
    return Transcript.parse(await source(request))


async def begun(home: Path, said: str = SAID) -> str:
    return session_in(await chat(home, said))


async def test_the_chat_goes_on_with_the_whole_conversation(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    session = await begun(hermes.home)
    before = messages(hermes.home, session)
    handed = await claimed(hermes.home, session)
    first = await hermes.say(callbacks, NOTICE, chat="taken", handoff=handed)
    answer, final = await callbacks.final(first)
    assert final.status == "completed"
    assert f"Earlier in this conversation you said: {SAID}" in answer.content
    second = await hermes.say(callbacks, "And now?", chat="taken")
    answer, _ = await callbacks.final(second)
    assert SAID in answer.content
    assert NOTICE in answer.content
    assert messages(hermes.home, session) == before


async def test_a_chat_gets_its_own_conversation_back_if_the_turn_fails(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    own = await hermes.say(callbacks, "I like plums", chat="kept")
    await callbacks.final(own)
    session = await begun(hermes.home)
    before = messages(hermes.home, session)
    handed = await claimed(hermes.home, session)
    failing = await hermes.say(callbacks, "demo:fail=401", chat="kept", handoff=handed)
    _, final = await callbacks.final(failing)
    assert final.status == "failed"
    after = await hermes.say(callbacks, "What do I like?", chat="kept")
    answer, _ = await callbacks.final(after)
    assert "I like plums" in answer.content
    assert SAID not in answer.content
    assert messages(hermes.home, session) == before
    assert rows(hermes.home, "SELECT id FROM sessions WHERE parent_session_id = ?", session) == []


async def test_a_chat_gets_its_own_conversation_back_if_the_turn_is_canceled(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    own = await hermes.say(callbacks, "I like plums", chat="stopped")
    await callbacks.final(own)
    handed = await claimed(hermes.home, await begun(hermes.home))
    hanging = await hermes.say(callbacks, "demo:slow=1 a b c d e f", chat="stopped", handoff=handed)
    await callbacks.until(lambda: callbacks.of(hanging))
    assert (await hermes.cancel(hanging))[0] == 200
    await callbacks.final(hanging)
    after = await hermes.say(callbacks, "What do I like?", chat="stopped")
    answer, _ = await callbacks.final(after)
    assert "I like plums" in answer.content
    assert SAID not in answer.content


async def test_a_session_is_claimed_once(hermes: Hermes) -> None:
    session = await begun(hermes.home)
    request = {"home": str(hermes.home), "do": "claim", "session": session, "target": "x"}
    answers = await asyncio.gather(*(source(request) for _ in range(3)))
    assert sorted("error" in answer for answer in answers) == [False, True, True]
    assert "already" in next(a["error"] for a in answers if "error" in a)
    settle = {**request, "session": "", "do": "settle", "error": "no such peer"}
    await source(settle)
    state = "SELECT handoff_state, handoff_error FROM sessions WHERE id = ?"
    assert rows(hermes.home, state, session) == [("failed", "no such peer")]
    assert "error" not in await source(request)
    await source({**settle, "error": ""})
    assert rows(hermes.home, state, session) == [("completed", None)]


async def test_a_session_whose_agent_is_at_work_is_refused(hermes: Hermes) -> None:
    session = await begun(hermes.home)
    going_on = asyncio.create_task(
        chat(hermes.home, "demo:slow=0.5 a b c d e f g h", "--resume", session)
    )
    await until(lambda: messages(hermes.home, session)[-1][0] == "user", 30)
    request = {"home": str(hermes.home), "do": "claim", "session": session, "target": "x"}
    assert "mid-turn" in (await source(request))["error"]
    await going_on
    assert "error" not in await source(request)


async def test_what_hermess_own_command_asks_for_waits_for_the_bridge(hermes: Hermes) -> None:
    session = await begun(hermes.home)
    before = messages(hermes.home, session)
    request_handoff(hermes.home, session)
    state = "SELECT handoff_state, handoff_error FROM sessions WHERE id = ?"
    await until(lambda: requested_in(hermes.home) == session, 60)
    await claimed(hermes.home, session)
    assert requested_in(hermes.home) is None
    assert rows(hermes.home, state, session) == [("running", None)]
    request = {"home": str(hermes.home), "target": "molecule_a2a:bob", "session": session}
    await source({**request, "do": "settle", "error": ""})
    assert rows(hermes.home, state, session) == [("completed", None)]
    assert messages(hermes.home, session) == before


async def test_a_hermes_that_died_in_the_turn_gives_the_chat_back(tmp_path: Path) -> None:
    async with callback_server() as callbacks:
        async with running_hermes(tmp_path) as hermes:
            await callbacks.final(await hermes.say(callbacks, "I like plums", chat="kept"))
            handed = await claimed(tmp_path, await begun(tmp_path))
            slow = await hermes.say(callbacks, "demo:slow=1 a b c d", chat="kept", handoff=handed)
            await callbacks.until(lambda: callbacks.of(slow))
            assert hermes.process is not None
            os.killpg(hermes.process.pid, signal.SIGKILL)
            await hermes.process.wait()
        async with running_hermes(tmp_path) as hermes:
            after = await hermes.say(callbacks, "What do I like?", chat="kept")
            answer, _ = await callbacks.final(after)
            assert "I like plums" in answer.content
            assert SAID not in answer.content


async def test_a_conversation_that_is_too_long_is_refused(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    long = {"role": "user", "content": "x" * (5 * 2**20)}
    body = {
        "chat_id": "c",
        "peer_id": "p",
        "message_id": "too-long",
        "callback_url": callbacks.url,
        "handoff": {"session_id": "s", "messages": [long]},
    }
    status, answer = await hermes.post(INBOUND_PATH, io.BytesIO(json.dumps(body).encode()))
    assert (status, answer["kind"]) == (400, "bad_request")
