"""The plugin in the real Hermes gateway, with the demo model."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import time
from pathlib import Path

import pytest

from molecule_hermes.wire import (
    CANCEL_PATH,
    INBOUND_PATH,
    MAX_BODY_BYTES,
    Approval,
    Attachment,
    Clarify,
    Delta,
    File,
    Final,
    Inbound,
    Notice,
    Tool,
)
from tests.protocol.test_media_types import BMP, PNG
from tests.support.gateway import SECRET, CallbackServer, Hermes, callback_server
from tests.support.serving import free_port

pytestmark = [pytest.mark.hermes, pytest.mark.asyncio(loop_scope="module")]


async def test_a_message_is_answered(hermes: Hermes, callbacks: CallbackServer) -> None:
    assert (await hermes.platform())["state"] == "connected"
    message = await hermes.say(callbacks, "hello there")
    callback, final = await callbacks.final(message)
    assert "You said: hello there" in callback.content
    assert final.status == "completed"
    assert final.usage is not None
    assert final.usage.model == "molecule-demo"
    assert final.usage.total_tokens > final.usage.input_tokens > 0
    assert set(callbacks.secrets) == {SECRET}
    health = await hermes.health()
    instance = health.pop("instance")
    assert health == {"ok": True, "ready": True, "active": 0, "warm": True}
    assert instance == (await hermes.health())["instance"]


async def test_text_arrives_while_it_is_written(hermes: Hermes, callbacks: CallbackServer) -> None:
    message = await hermes.say(callbacks, "demo:slow=0.05\ndemo:words=30")
    callback, _ = await callbacks.final(message)
    deltas = [c for c in callbacks.of(message) if isinstance(c.body, Delta)]
    assert len(deltas) > 5
    assert "".join(c.content for c in deltas) == callback.content
    assert [c.seq for c in callbacks.of(message)] == list(range(len(deltas) + 1))


async def test_a_long_answer_is_one_answer(hermes: Hermes, callbacks: CallbackServer) -> None:
    callback, _ = await callbacks.final(await hermes.say(callbacks, "demo:words=5000"))
    assert callback.content == " ".join(f"word{number}" for number in range(5000))


async def test_a_conversation_is_remembered(hermes: Hermes, callbacks: CallbackServer) -> None:
    await callbacks.final(await hermes.say(callbacks, "my colour is teal", chat="memory"))
    callback, _ = await callbacks.final(await hermes.say(callbacks, "which?", chat="memory"))
    assert "Earlier in this conversation you said: my colour is teal" in callback.content


async def test_five_messages_in_a_chat_are_answered_in_order_each_under_its_own_id(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    names = [f"five-{number}" for number in range(5)]
    for name in names:
        await hermes.say(callbacks, f"this is {name} demo:slow=0.01", chat="five", message_id=name)
    for name in names:
        callback, final = await callbacks.final(name)
        assert final.status == "completed"
        assert f"You said: this is {name} " in callback.content
    order = [c.reply_to for c in callbacks.taken if isinstance(c.body, Final)]
    assert order == names
    # Nothing of a message comes after its final or before its predecessor's.
    assert [c.reply_to for c in callbacks.taken] == sorted(c.reply_to for c in callbacks.taken)


async def test_twenty_chats_run_in_parallel(hermes: Hermes, callbacks: CallbackServer) -> None:
    names = [f"twenty-{number}" for number in range(20)]
    await asyncio.gather(
        *(hermes.say(callbacks, f"I am {name}.", chat=name, message_id=name) for name in names)
    )
    for name in names:
        callback, _ = await callbacks.final(name)
        assert f"You said: I am {name}." in callback.content
        assert callback.chat_id == name


@pytest.mark.parametrize(
    ("cause", "kind", "retryable"),
    [
        ("401", "auth", False),
        ("404", "model_not_found", False),
        ("429", "rate_limit", True),
        ("500", "internal", True),
        ("quota", "quota", False),
    ],
)
async def test_a_provider_that_fails_fails_the_turn_once(
    hermes: Hermes, callbacks: CallbackServer, cause: str, kind: str, retryable: bool
) -> None:
    message = await hermes.say(callbacks, f"demo:fail={cause}")
    callback, final = await callbacks.final(message)
    assert final.status == "failed"
    assert final.error is not None
    assert (final.error.kind, final.error.retryable) == (kind, retryable)
    assert final.error.message
    assert final.error.hint
    assert callback.content == ""
    assert not [c for c in callbacks.of(message) if isinstance(c.body, Delta)]


async def test_silence_completes_without_text(hermes: Hermes, callbacks: CallbackServer) -> None:
    message = await hermes.say(callbacks, "demo:silent")
    callback, final = await callbacks.final(message)
    assert (final.status, final.silent, callback.content) == ("completed", True, "")
    assert not [c for c in callbacks.of(message) if isinstance(c.body, Delta)]


async def test_an_empty_reply_is_a_failure(hermes: Hermes, callbacks: CallbackServer) -> None:
    _, final = await callbacks.final(await hermes.say(callbacks, "demo:empty"))
    assert final.error is not None
    assert (final.status, final.error.kind) == ("failed", "empty_reply")


async def test_interim_text_is_replaced_by_the_answer(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    message = await hermes.say(callbacks, "demo:run echo from-the-tool API_KEY=abcdefgh")
    callback, final = await callbacks.final(message)
    assert final.status == "completed"
    assert callback.content.startswith("The tool answered:")
    text = ""
    for delta in (c for c in callbacks.of(message) if isinstance(c.body, Delta)):
        assert isinstance(delta.body, Delta)
        text = delta.content if delta.body.replace else text + delta.content
    assert text == callback.content
    began, ended = (c.body for c in callbacks.of(message) if isinstance(c.body, Tool))
    assert isinstance(began, Tool)
    assert isinstance(ended, Tool)
    assert (began.tool, began.phase, began.ok) == ("terminal", "start", None)
    assert began.preview == "echo from-the-tool API_KEY=***"
    assert (ended.phase, ended.ok) == ("end", True)
    assert ended.duration is not None


async def test_a_running_turn_can_be_canceled_and_the_chat_goes_on(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    words = " ".join(f"w{number}" for number in range(20))
    message = await hermes.say(callbacks, f"demo:slow=0.1\n{words}", chat="cancel")
    await callbacks.until(lambda: callbacks.of(message))
    assert await hermes.cancel(message) == (200, {"ok": True})
    _, final = await callbacks.final(message, 10)
    assert (final.status, final.error) == ("canceled", None)
    next_one = await hermes.say(callbacks, "and now?", chat="cancel")
    callback, final = await callbacks.final(next_one)
    assert final.status == "completed"
    # Hermes puts an unanswered message in front of the next one.
    assert "and now?" in callback.content
    assert len(callbacks.finals(message)) == 1
    assert (await hermes.cancel(message))[0] == 404


async def test_canceling_stops_the_tool(hermes: Hermes, callbacks: CallbackServer) -> None:
    mark = hermes.home / "still-running"
    command = f"while true; do date > {mark}; sleep 0.1; done"
    message = await hermes.say(callbacks, f"demo:run {command}")

    async def marked() -> bool:
        return mark.exists()

    await hermes.until(marked)
    await hermes.cancel(message)
    _, final = await callbacks.final(message, 15)
    assert final.status == "canceled"

    async def gone() -> bool:
        mark.unlink(missing_ok=True)
        await asyncio.sleep(0.5)  # the tool would write the file every 0.1 s
        return not mark.exists()

    await hermes.until(gone, 10)


async def test_a_hanging_model_can_be_canceled(hermes: Hermes, callbacks: CallbackServer) -> None:
    message = await hermes.say(callbacks, "demo:hang")
    await hermes.cancel(message)
    _, final = await callbacks.final(message, 15)
    assert final.status == "canceled"


async def test_a_waiting_message_can_be_canceled(hermes: Hermes, callbacks: CallbackServer) -> None:
    first = await hermes.say(callbacks, "demo:slow=0.1\ndemo:words=15", chat="queue")
    second = await hermes.say(callbacks, "never seen", chat="queue")
    third = await hermes.say(callbacks, "third", chat="queue")
    assert await hermes.cancel(second) == (200, {"ok": True})
    _, final = await callbacks.final(second, 5)
    assert final.status == "canceled"
    assert not callbacks.finals(first)
    assert (await callbacks.final(first))[1].status == "completed"
    callback, _ = await callbacks.final(third)
    assert "never seen" not in callback.content


async def test_the_same_message_runs_once(hermes: Hermes, callbacks: CallbackServer) -> None:
    inbound = Inbound("twice", "peer", "twice-1", callbacks.url, "demo:slow=0.02 once")
    instance = (await hermes.health())["instance"]
    first = (202, {"ok": True, "instance": instance})
    again = (202, {"ok": True, "instance": instance, "duplicate": True})
    assert await hermes.post(INBOUND_PATH, inbound.to_json()) == first
    assert await hermes.post(INBOUND_PATH, inbound.to_json()) == again
    await callbacks.final("twice-1")
    assert await hermes.post(INBOUND_PATH, inbound.to_json()) == again
    callback, _ = await callbacks.final(await hermes.say(callbacks, "next", chat="twice"))
    assert callback.content.count("once") == 1
    assert len(callbacks.finals("twice-1")) == 1


async def test_a_wrong_secret_is_refused(hermes: Hermes) -> None:
    for secret in (None, "", "wrong", SECRET + "x", "pässwörd"):
        status, body = await hermes.post(CANCEL_PATH, {"message_id": "x"}, secret=secret)
        assert (status, body["kind"]) == (401, "auth")


async def test_bad_input_is_refused_with_a_reason(hermes: Hermes) -> None:
    for bad in (b"", b"{", b"[]", b"\xff", b"{}", b'{"chat_id": 1}', b"[" * 100_000):
        status, body = await hermes.post(INBOUND_PATH, bad)
        assert (status, body["ok"], body["kind"]) == (400, False, "bad_request")
        assert body["error"]
    status, body = await hermes.post(INBOUND_PATH, io.BytesIO(b"x" * (MAX_BODY_BYTES + 1)))
    assert (status, body["kind"]) == (413, "too_large")
    assert (await hermes.cancel("never-seen"))[0] == 404
    assert (await hermes.answer("never-seen", "q", "once"))[0] == 404
    assert (await hermes.post("/a2a/elsewhere", {}))[0] == 404


@pytest.mark.parametrize(
    "text",
    [
        "/stop",
        "/new",
        "/restart",
        "/status now",
        " /help",
        "\n/help",
        "\t/help",
        "\u200b/help",
        "／help",
        "!help",
        "restart gateway",
        "Please restart the Hermes gateway!",
        "restart hermes",
        "yes",
        "approve",
    ],
)
async def test_a_peers_text_is_only_text(
    hermes: Hermes, callbacks: CallbackServer, text: str
) -> None:
    message = await hermes.say(callbacks, text)
    callback, final = await callbacks.final(message)
    assert final.status == "completed"
    assert f"You said: {text.strip()}" in callback.content
    assert not [c for c in callbacks.of(message) if isinstance(c.body, Notice)]


async def test_a_peer_cannot_paste_local_files(hermes: Hermes, callbacks: CallbackServer) -> None:
    (hermes.work / "private.txt").write_text("the treasure is buried here")
    for text in ("read @file:private.txt", '@file:"private.txt"', "@folder:. please", "@diff"):
        callback, final = await callbacks.final(await hermes.say(callbacks, text))
        assert final.status == "completed"
        assert "treasure" not in callback.content
        assert "private.txt" not in callback.content.replace(text.replace("@", "@ "), "")


async def test_an_unreachable_callback_server_does_not_delay_others(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    dead = CallbackServer(f"http://127.0.0.1:{free_port()}/a2a/reply")
    async with callback_server() as hung:
        hung.hang = asyncio.Event()
        for number in range(3):
            await hermes.say(dead, f"into the void {number}", chat="void")
            await hermes.say(hung, f"into the fog {number}", chat=f"fog-{number}")
        began = time.monotonic()
        _, final = await callbacks.final(await hermes.say(callbacks, "me too"))
        assert final.status == "completed"
        # Hermes itself goes on as well: the messages of the dead server end.
        await hermes.until(lambda: _idle(hermes), 20)
        assert time.monotonic() - began < 20
        hung.hang.set()


async def _idle(hermes: Hermes) -> bool:
    return bool((await hermes.health())["active"] == 0)


async def test_a_callback_is_sent_again_after_a_503(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    callbacks.refuse.extend([503, 502, 500])
    message = await hermes.say(callbacks, "demo:words=3")
    callback, _ = await callbacks.final(message)
    assert callback.content == "word0 word1 word2"
    assert [c.seq for c in callbacks.of(message)] == list(range(len(callbacks.of(message))))


async def test_a_refused_callback_is_not_sent_again(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    callbacks.refuse.append(400)
    message = await hermes.say(callbacks, "demo:words=3", chat="refused")
    _, final = await callbacks.final(message)
    assert final.status == "completed"
    assert not [c for c in callbacks.of(message) if isinstance(c.body, Delta)]


async def test_a_dangerous_command_waits_for_the_peer(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    victim = hermes.home / "victim"
    victim.mkdir()
    message = await hermes.say(callbacks, f"demo:run rm -rf {victim}", chat="danger")
    question = await callbacks.until(lambda: _question(callbacks, message, Approval))
    assert str(victim) in question.content
    assert question.body.command == f"rm -rf {victim}"
    assert question.body.description
    assert question.content == f"{question.body.description}\n\n{question.body.command}"
    assert question.body.choices == ("once", "session", "deny")
    # A word of another message must not answer it.
    other = await hermes.say(callbacks, "yes", chat="danger")
    assert (await hermes.answer(message, question.body.question_id, "always"))[0] == 400
    assert (await hermes.answer(message, "another", "once"))[0] == 404
    assert (await hermes.answer("another", question.body.question_id, "once"))[0] == 404
    assert victim.exists()
    answered = await hermes.answer(message, question.body.question_id, "once")
    assert answered == (200, {"ok": True})
    _, final = await callbacks.final(message)
    assert final.status == "completed"
    assert not victim.exists()
    assert (await hermes.answer(message, question.body.question_id, "once"))[0] == 404
    callback, _ = await callbacks.final(other)
    assert "You said: yes" in callback.content


async def test_a_denied_command_does_not_run(hermes: Hermes, callbacks: CallbackServer) -> None:
    victim = hermes.home / "spared"
    victim.mkdir()
    message = await hermes.say(callbacks, f"demo:run rm -rf {victim}")
    question = await callbacks.until(lambda: _question(callbacks, message, Approval))
    await hermes.answer(message, question.body.question_id, "deny")
    _, final = await callbacks.final(message)
    assert final.status == "completed"
    assert victim.exists()


async def test_a_turn_that_waits_for_approval_can_be_canceled(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    message = await hermes.say(callbacks, f"demo:run rm -rf {hermes.home}/x", chat="undecided")
    question = await callbacks.until(lambda: _question(callbacks, message, Approval))
    await hermes.cancel(message)
    _, final = await callbacks.final(message, 15)
    assert final.status == "canceled"
    assert (await hermes.answer(message, question.body.question_id, "once"))[0] == 404
    callback, _ = await callbacks.final(await hermes.say(callbacks, "well", chat="undecided"))
    assert "You said: well" in callback.content


@pytest.mark.parametrize("choices", [("red", "blue"), ()])
async def test_a_question_of_the_agent_is_answered(
    hermes: Hermes, callbacks: CallbackServer, choices: tuple[str, ...]
) -> None:
    arguments = json.dumps({"question": "Which colour?", "choices": choices})
    message = await hermes.say(callbacks, f"demo:call=clarify {arguments}")
    question = await callbacks.until(lambda: _question(callbacks, message, Clarify))
    assert question.content == "Which colour?"
    assert question.body.choices == choices
    answered = await hermes.answer(message, question.body.question_id, "mauve")
    assert answered == (200, {"ok": True})
    callback, final = await callbacks.final(message)
    assert final.status == "completed"
    assert "mauve" in callback.content


async def test_a_turn_that_asks_can_be_canceled_and_the_next_message_is_no_answer(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    asks = 'demo:call=clarify {"question": "Which?"}'
    message = await hermes.say(callbacks, asks, chat="asking")
    await callbacks.until(lambda: _question(callbacks, message, Clarify))
    await hermes.cancel(message)
    _, final = await callbacks.final(message, 15)
    assert final.status == "canceled"
    callback, final = await callbacks.final(await hermes.say(callbacks, "blue", chat="asking"))
    assert final.status == "completed"
    assert "blue" in callback.content


def _question(callbacks: CallbackServer, message_id: str, kind: type) -> object:
    return next((c for c in callbacks.of(message_id) if isinstance(c.body, kind)), None)


async def test_the_text_of_a_subagent_is_not_the_answer(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    goals = json.dumps({"tasks": [{"goal": "demo:words=3"}, {"goal": "demo:fail=401"}]})
    message = await hermes.say(callbacks, f"demo:call=delegate_task {goals}")
    callback, final = await callbacks.final(message)
    assert final.status == "completed"
    assert callback.content.startswith("The tool answered:")
    assert "word0 word1 word2" in callback.content


async def test_a_dangerous_command_of_a_subagent_is_blocked_and_not_asked_about(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    folders = [hermes.work / name for name in ("kept-1", "kept-2")]
    for folder in folders:
        folder.mkdir()
    tasks = [{"goal": f"demo:run rm -rf {folder}"} for folder in folders]
    message = await hermes.say(callbacks, f"demo:call=delegate_task {json.dumps({'tasks': tasks})}")
    callback, _ = await callbacks.final(message, 60)
    assert "pending_approval" in callback.content
    assert not [c for c in callbacks.of(message) if isinstance(c.body, Approval)]
    assert all(folder.exists() for folder in folders)


async def test_background_work_promises_no_second_answer(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    done = hermes.work / "done"
    work = {"command": f"sleep 0.3; touch {done}", "background": True, "notify_on_complete": True}
    message = await hermes.say(callbacks, f"demo:call=terminal {json.dumps(work)}", chat="back")
    callback, _ = await callbacks.final(message)
    assert "notify_unsupported" in callback.content

    async def finished() -> bool:
        return done.exists()

    await hermes.until(finished, 10)
    await callbacks.final(await hermes.say(callbacks, "and?", chat="back"))
    assert len(callbacks.finals(message)) == 1


async def test_an_image_is_seen_by_the_model(hermes: Hermes, callbacks: CallbackServer) -> None:
    bitmap = Attachment("b.bmp", "image/bmp", BMP)
    message = await hermes.say(
        callbacks, "look", attachments=(Attachment("a.png", "image/png", PNG), bitmap)
    )
    callback, final = await callbacks.final(message)
    assert final.status == "completed"
    assert f"I see 2 images: image/png, {len(PNG)} bytes; image/png, " in callback.content
    assert not [c for c in callbacks.of(message) if isinstance(c.body, File)]


async def test_an_image_without_words_is_a_message(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    image = Attachment("a.png", "image/png", PNG)
    callback, _ = await callbacks.final(await hermes.say(callbacks, "", attachments=(image,)))
    assert f"I see 1 image: image/png, {len(PNG)} bytes" in callback.content


@pytest.mark.parametrize(
    ("name", "media_type"),
    [
        ("my data.bin", "application/octet-stream"),
        ("report.pdf", "application/pdf"),
        ("long.txt", "text/plain"),
        ("song.mp3", "audio/mpeg"),
        ("film.mp4", "video/mp4"),
        ("broken.bmp", "image/bmp"),
    ],
)
async def test_a_tool_can_open_an_attached_file(
    hermes: Hermes, callbacks: CallbackServer, name: str, media_type: str
) -> None:
    file = Attachment(f"../../{name}", media_type, b"the answer is 42")
    message = await hermes.say(callbacks, "demo:read", attachments=(file,))
    callback, final = await callbacks.final(message)
    assert final.status == "completed"
    assert "the answer is 42" in callback.content


async def test_the_agent_learns_the_paths_of_attached_files(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    file = Attachment("long.txt", "text/plain", b"much")
    message = await hermes.say(callbacks, "see file", attachments=(file,))
    callback, _ = await callbacks.final(message)
    assert "[file: long.txt]" in callback.content
    assert "see file" in callback.content
    assert not [c for c in callbacks.of(message) if isinstance(c.body, File)]


@pytest.mark.parametrize("ending", ["demo:fail=401", "demo:run sleep 30"])
async def test_attached_files_stay_however_the_turn_ends(
    hermes: Hermes, callbacks: CallbackServer, ending: str
) -> None:
    file = Attachment("a.bin", "application/octet-stream", ending.encode())
    message = await hermes.say(callbacks, ending, chat=f"stays {ending}", attachments=(file,))
    if "sleep" in ending:
        await callbacks.until(
            lambda: [c for c in callbacks.of(message) if isinstance(c.body, Tool)]
        )
        await hermes.cancel(message)
    _, final = await callbacks.final(message)
    assert final.status in ("failed", "canceled")
    kept = (hermes.home / "cache" / "documents" / "a2a").glob("*/a.bin")
    assert [path.read_bytes() for path in kept].count(ending.encode()) == 1


@pytest.mark.parametrize(
    ("name", "media_type", "text", "data"),
    [
        ("notes.txt", "text/plain", "it's 42", b"it's 42"),
        ("report.pdf", "application/pdf", "%PDF-1.4", b"%PDF-1.4"),
        ("dot.png", "image/png", f"base64:{base64.b64encode(PNG).decode()}", PNG),
        ("note.ogg", "audio/ogg", "OggS", b"OggS"),
        ("clip.mp4", "video/mp4", "ftyp", b"ftyp"),
        ("Makefile", "application/octet-stream", "all:", b"all:"),
    ],
)
async def test_a_file_that_the_agent_creates_is_delivered(
    hermes: Hermes, callbacks: CallbackServer, name: str, media_type: str, text: str, data: bytes
) -> None:
    message = await hermes.say(callbacks, f"demo:file={name} {text}")
    callback, final = await callbacks.final(message)
    assert (final.status, callback.content) == ("completed", "Here is the file.")
    (file,) = [c.body for c in callbacks.of(message) if isinstance(c.body, File)]
    assert file == File(name, media_type, data)
    assert isinstance(callbacks.of(message)[-1].body, Final)
    shown = "".join(c.content for c in callbacks.of(message) if isinstance(c.body, Delta))
    assert "MEDIA" not in shown


async def test_an_answer_may_be_files_and_no_text(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    made = hermes.work / "alone.pdf"
    made.write_bytes(b"%PDF")
    message = await hermes.say(callbacks, f"demo:say MEDIA:{made}")
    callback, final = await callbacks.final(message)
    assert (final.status, final.silent, callback.content) == ("completed", True, "")
    assert [c.body.name for c in callbacks.of(message) if isinstance(c.body, File)] == ["alone.pdf"]


async def test_a_file_that_is_too_large_is_reported_to_the_peer_and_the_agent(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    large = hermes.work / "large.pdf"
    with large.open("wb") as file:
        file.truncate(10 * 2**20 + 1)
    message = await hermes.say(callbacks, f"say this:\nMEDIA:{large}", chat="large")
    _, final = await callbacks.final(message)
    assert final.status == "completed"
    refused = (
        "the file large.pdf was not delivered: it has 10,485,761 bytes, and 10,485,760 are allowed"
    )
    assert _notices(callbacks, message) == [refused]
    callback, _ = await callbacks.final(await hermes.say(callbacks, "and?", chat="large"))
    assert f"You said: [Your last answer: {refused}]\n\nand?" in callback.content


async def test_files_of_others_are_not_delivered_and_the_peer_is_notified(
    hermes: Hermes, callbacks: CallbackServer, tmp_path: Path
) -> None:
    outside, hidden = tmp_path / "outside.txt", hermes.work / ".hidden" / "key.txt"
    for path in (outside, hidden, hermes.home / "memories" / "MEMORY.md"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("private")
    inside = [hermes.home / n for n in ("config.yaml", "state.db", "memories/MEMORY.md")]
    for path in (outside, hidden, *inside, hermes.work / "not-there.pdf"):
        message = await hermes.say(callbacks, f"say this:\nMEDIA:{path}")
        callback, final = await callbacks.final(message)
        assert final.status == "completed"
        assert str(path) not in callback.content
        assert _notices(callbacks, message) == [f"the file {path.name} is not available"]
        assert not [c for c in callbacks.of(message) if isinstance(c.body, File)]
    # Of these Hermes makes nothing but text.
    for path in (hermes.home / ".env", Path("/etc/hostname")):
        message = await hermes.say(callbacks, f"say this:\nMEDIA:{path}")
        callback, _ = await callbacks.final(message)
        assert str(path) in callback.content
        assert not [c for c in callbacks.of(message) if isinstance(c.body, File)]


def _notices(callbacks: CallbackServer, message: str) -> list[str]:
    return [c.content for c in callbacks.of(message) if isinstance(c.body, Notice)]


# Last: it leaves its own session unusable, and only that.
async def test_a_full_context_fails_the_turn_once(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    _, final = await callbacks.final(await hermes.say(callbacks, "demo:fail=context"))
    assert final.error is not None
    assert (final.status, final.error.kind) == ("failed", "context_overflow")
    _, final = await callbacks.final(await hermes.say(callbacks, "another conversation"))
    assert final.status == "completed"


async def test_a_cancel_before_the_agent_is_made_stops_it_too(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    """Else Hermes lets go of the chat, and the agent comes, works, and meets the next turn."""
    marks = []
    for pause in (0, 0.01, 0.02, 0.03, 0.05):
        marks.append(hermes.work / f"early-{pause}")
        chat = f"early-{pause}"
        await callbacks.final(await hermes.say(callbacks, "hello", chat=chat))
        message = await hermes.say(callbacks, f"demo:run sleep 1; touch {marks[-1]}", chat=chat)
        await asyncio.sleep(pause)
        assert (await hermes.cancel(message))[0] == 200
        assert (await callbacks.final(message))[1].status == "canceled"
    await asyncio.sleep(2.5)  # longer than the commands take: none of them ran to its end
    assert [mark.name for mark in marks if mark.exists()] == []
