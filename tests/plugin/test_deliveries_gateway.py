"""Late results in the real gateway: each is a delivery of its own."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from molecule_hermes.wire import CHECK_PATH, JOBS_PATH, Delta, Final, Origin, Push
from tests.support.gateway import SECRET, CallbackServer, Hermes
from tests.support.waiting import until

pytestmark = [pytest.mark.hermes, pytest.mark.asyncio(loop_scope="module")]

BRIDGE = "bridge-1"


async def take(hermes: Hermes, callbacks: CallbackServer, bridge: str = BRIDGE) -> None:
    body = {"callback_url": callbacks.url, "bridge": bridge, "deliveries": True}
    status, answer = await hermes.post(CHECK_PATH, body)
    assert (status, answer["deliveries"]) == (200, True)


async def decline(hermes: Hermes, callbacks: CallbackServer, bridge: str = BRIDGE) -> None:
    status, answer = await hermes.post(
        CHECK_PATH, {"callback_url": callbacks.url, "bridge": bridge}
    )
    assert (status, "deliveries" in answer) == (200, False)


def call(tool: str, **arguments: Any) -> str:
    return f"demo:call={tool} {json.dumps(arguments)}"


def background(command: str, **more: Any) -> str:
    return call(
        "terminal", command=command, background=True, **{"notify_on_complete": True, **more}
    )


def pushes(callbacks: CallbackServer, chat: str) -> list[str]:
    return [c.reply_to for c in callbacks.taken if isinstance(c.body, Push) and c.chat_id == chat]


async def delivery(callbacks: CallbackServer, chat: str, number: int = 1) -> str:
    """The id of the chat's delivery with this number, once it has its final."""
    await callbacks.until(lambda: len(pushes(callbacks, chat)) >= number, 40)
    push_id = pushes(callbacks, chat)[number - 1]
    await callbacks.until(lambda: callbacks.finals(push_id), 40)
    return push_id


def one_final_each(callbacks: CallbackServer) -> None:
    by_id: dict[str, list[int]] = {}
    for callback in callbacks.taken:
        by_id.setdefault(callback.reply_to, []).append(callback.seq or 0)
    for reply_to, seqs in by_id.items():
        assert seqs == sorted(set(seqs)), reply_to
        assert len(callbacks.finals(reply_to)) == 1, reply_to


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
    assert "(a job ended: the build is green)" in last.content
    assert any(isinstance(callback.body, Delta) for callback in middle)
    assert any(callback.body.type == "usage" for callback in middle), "the origin wanted it"
    assert not any("IMPORTANT" in callback.content for callback in callbacks.of(push_id))
    assert pushes(callbacks, chat) == [push_id]
    one_final_each(callbacks)
