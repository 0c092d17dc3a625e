"""Steering a turn of the real Hermes gateway through the plugin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from molecule_hermes.wire import STEER_PATH, Callback, Delta, File, Notice, Tool
from tests.support.gateway import CallbackServer, Hermes, running_hermes

pytestmark = [pytest.mark.hermes, pytest.mark.asyncio(loop_scope="module")]

ACCEPTED = (200, {"ok": True, "accepted": True})


async def until_a_tool_runs(callbacks: CallbackServer, message: str) -> None:
    await callbacks.until(lambda: [c for c in callbacks.of(message) if isinstance(c.body, Tool)])


async def until_text(callbacks: CallbackServer, message: str) -> None:
    await callbacks.until(lambda: [c for c in callbacks.of(message) if isinstance(c.body, Delta)])


def notices(callbacks: CallbackServer, message: str) -> list[Callback]:
    return [c for c in callbacks.of(message) if isinstance(c.body, Notice)]


def streamed(callbacks: CallbackServer, message: str) -> str:
    """The text that the deltas add up to."""
    text = ""
    for callback in callbacks.of(message):
        if isinstance(callback.body, Delta):
            text = callback.content if callback.body.replace else text + callback.content
    return text


async def test_the_agent_reads_a_text_after_the_tool_that_runs(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    message = await hermes.say(callbacks, "demo:run sleep 1; echo done")
    await until_a_tool_runs(callbacks, message)
    assert await hermes.steer(message, "use the blue one") == ACCEPTED
    assert await hermes.steer(message, "/stop and the red one") == ACCEPTED
    callback, final = await callbacks.final(message)
    assert final.status == "completed"
    said = "use the blue one\nMessage: /stop and the red one"
    assert f"Meanwhile you said: {said}" in callback.content
    assert not notices(callbacks, message)


async def test_a_text_without_a_later_tool_runs_as_a_second_part_of_the_same_message(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    message = await hermes.say(callbacks, "demo:slow=0.1 one two three four five six seven")
    await until_text(callbacks, message)
    assert await hermes.steer(message, "demo:slow=0.05 and now something else") == ACCEPTED
    callback, final = await callbacks.final(message)
    assert final.status == "completed"
    assert "You said: demo:slow=0.05 and now something else" in callback.content
    (interim,) = notices(callbacks, message)
    assert interim.body == Notice(interim=True)
    assert "seven" in interim.content
    assert "something else" not in interim.content
    assert streamed(callbacks, message) == callback.content
    assert final.usage is not None
    assert final.usage.input_tokens == 20


async def test_a_file_of_the_first_answer_is_delivered(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    message = await hermes.say(callbacks, "demo:slow=0.3\ndemo:file=kept.txt Hello")
    await callbacks.until(lambda: streamed(callbacks, message).startswith("Here"))
    assert await hermes.steer(message, "thanks, and more") == ACCEPTED
    callback, _ = await callbacks.final(message)
    assert "thanks, and more" in callback.content
    (file,) = [c.body for c in callbacks.of(message) if isinstance(c.body, File)]
    assert (file.name, file.data) == ("kept.txt", b"Hello")
    (interim,) = notices(callbacks, message)
    assert interim.content.strip() == "Here is the file."


async def test_a_command_as_the_only_text_is_read_as_text(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    message = await hermes.say(callbacks, "demo:slow=0.1 one two three four five six seven")
    await until_text(callbacks, message)
    assert await hermes.steer(message, " /new") == ACCEPTED
    callback, _ = await callbacks.final(message)
    assert "You said: Message: /new" in callback.content


async def test_a_text_for_a_message_that_does_not_run_is_not_found(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    message = await hermes.say(callbacks, "hello")
    await callbacks.final(message)
    for name in (message, "unknown"):
        status, body = await hermes.steer(name, "more")
        assert (status, body["kind"]) == (404, "not_found")
    status, _ = await hermes.post(STEER_PATH, {"message_id": message, "text": "x"}, secret="wrong")
    assert status == 401


async def test_a_canceled_message_takes_no_text(hermes: Hermes, callbacks: CallbackServer) -> None:
    message = await hermes.say(callbacks, "demo:run sleep 30", chat="canceled")
    await until_a_tool_runs(callbacks, message)
    assert await hermes.steer(message, "left behind") == ACCEPTED
    await hermes.cancel(message)
    status, body = await hermes.steer(message, "too late")
    assert status == 404 or body == _refused("the turn is being canceled")
    _, final = await callbacks.final(message)
    assert final.status == "canceled"
    # What was left must not reach the next turn of the chat.
    callback, _ = await callbacks.final(
        await hermes.say(callbacks, "demo:run echo next", chat="canceled")
    )
    assert "left behind" not in callback.content


async def test_a_hermes_that_does_not_stream_keeps_the_first_answer_once(
    tmp_path: Path, callbacks: CallbackServer
) -> None:
    over = {"streaming": {"enabled": False}}
    async with running_hermes(tmp_path, over=over) as hermes:
        message = await hermes.say(callbacks, "demo:slow=0.3 one two three four five")
        await until_the_model_runs(hermes, message)
        callback, final = await callbacks.final(message)
    assert final.status == "completed"
    assert "and more" in callback.content
    (interim,) = notices(callbacks, message)
    assert interim.body == Notice(interim=True)
    assert "five" in interim.content


async def until_the_model_runs(hermes: Hermes, message: str) -> None:
    """Steers until the agent takes it."""

    async def taken() -> bool:
        return (await hermes.steer(message, "and more"))[1].get("accepted", False)

    await hermes.until(taken)


def _refused(reason: str) -> dict[str, Any]:
    return {"ok": True, "accepted": False, "reason": reason}
