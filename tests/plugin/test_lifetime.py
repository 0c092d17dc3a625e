"""How the plugin comes up in the real gateway, and how it goes down."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from molecule_hermes.plugin import PLATFORM
from molecule_hermes.wire import INBOUND_PATH, Attachment, Inbound
from tests.support.gateway import CallbackServer, callback_server, running_hermes
from tests.support.serving import free_port
from tests.support.waiting import until

pytestmark = pytest.mark.hermes


async def test_sigterm_lets_the_turn_end_and_gives_every_message_its_final(tmp_path: Path) -> None:
    async with callback_server() as callbacks, running_hermes(tmp_path) as hermes:
        running = await hermes.say(callbacks, "demo:slow=0.1\ndemo:words=15", chat="a")
        waiting = [await hermes.say(callbacks, "later", chat="a") for _ in range(2)]
        await callbacks.until(lambda: callbacks.of(running))
        ended = asyncio.create_task(hermes.terminate())

        async def draining() -> bool:
            return not (await hermes.health())["ready"]

        await hermes.until(draining, 10)
        late = Inbound("b", "peer", "late", callbacks.url, "too late").to_json()
        status, body = await hermes.post(INBOUND_PATH, late)
        assert (status, body["kind"]) == (503, "draining")
        # Asking again for a message that is known is no new work.
        again = Inbound("a", "peer", running, callbacks.url, "again").to_json()
        assert (await hermes.post(INBOUND_PATH, again))[1].get("duplicate") is True
        await ended

        callback, final = await callbacks.final(running, 1)
        assert final.status == "completed"
        assert callback.content.endswith("word14")
        for message in waiting:
            _, final = await callbacks.final(message, 1)
            assert final.error is not None
            assert (final.status, final.error.kind) == ("failed", "draining")


async def test_messages_are_refused_while_hermes_restores_its_sessions(tmp_path: Path) -> None:
    async with (
        callback_server() as callbacks,
        running_hermes(tmp_path, until="connected") as hermes,
    ):
        inbound = Inbound("c", "peer", "early", callbacks.url, "I am early").to_json()
        refusals = []

        async def accepted() -> bool:
            status, body = await hermes.post(INBOUND_PATH, inbound)
            refusals.append((status, body.get("error")))
            return status == 202

        await hermes.until(accepted)
        assert set(refusals[:-1]) == {(503, "Hermes is starting")}
        _, final = await callbacks.final("early")
        assert final.status == "completed"


async def test_a_conversation_continues_after_a_crash_and_nothing_runs_by_itself(
    tmp_path: Path,
) -> None:
    async with callback_server() as callbacks:
        async with running_hermes(tmp_path) as hermes:
            await callbacks.final(await hermes.say(callbacks, "my colour is teal", chat="c"))
            file = Attachment("a.bin", "application/octet-stream", b"the bytes")
            slowly = "demo:slow=0.1 one two three"
            cut = await hermes.say(callbacks, slowly, chat="c", attachments=(file,))
            await callbacks.until(lambda: callbacks.of(cut))
            # Leaving the block kills it.
        (kept,) = (tmp_path / "cache" / "documents" / "a2a").glob("*/a.bin")
        callbacks.taken.clear()
        async with running_hermes(tmp_path) as hermes:
            message = await hermes.say(callbacks, "which colour?", chat="c")
            callback, _ = await callbacks.final(message)
            assert "teal" in callback.content
            assert {c.reply_to for c in callbacks.taken} == {message}
            message = await hermes.say(callbacks, "demo:read", chat="c")
            callback, _ = await callbacks.final(message)
            assert "the bytes" in callback.content
        # A run that keeps nothing removes what the earlier one has left.
        over = {"platforms": {PLATFORM: {"extra": {"keep_files_days": 0}}}}
        async with running_hermes(tmp_path, over=over):
            await until(lambda: not kept.exists())


async def test_a_turn_that_outlasts_the_drain_is_interrupted(tmp_path: Path) -> None:
    over = {"agent": {"restart_drain_timeout": 1}}
    async with callback_server() as callbacks, running_hermes(tmp_path, over=over) as hermes:
        message = await hermes.say(callbacks, "demo:hang")
        dead = CallbackServer(f"http://127.0.0.1:{free_port()}/")
        await hermes.say(dead, "nobody hears the end of this")
        await hermes.until(lambda: _active(hermes, 1))
        await hermes.terminate()
        _, final = await callbacks.final(message, 1)
        assert final.error is not None
        assert (final.status, final.error.kind) == ("failed", "interrupted")
        assert not final.error.retryable
        assert "may have run" in final.error.hint


async def _active(hermes: object, count: int) -> bool:
    return bool((await hermes.health())["active"] == count)  # type: ignore[attr-defined]


async def test_a_taken_port_is_named_and_the_environment_alone_enables_the_platform(
    tmp_path: Path,
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        over = {"platforms": {PLATFORM: None}}
        env = {"MOLECULE_A2A_PLATFORM_PORT": str(port)}
        async with running_hermes(tmp_path, over=over, env=env, until="fatal") as hermes:
            problem = (await hermes.platform())["error_message"]
            assert f"127.0.0.1:{port}" in problem
            assert "MOLECULE_A2A_PLATFORM_PORT" in problem
