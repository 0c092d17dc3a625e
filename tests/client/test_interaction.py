"""`molecule-hermes send`: the reply, progress, questions, Ctrl-C, files, a line that breaks."""

from __future__ import annotations

import asyncio
import io
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from a2a.types import (
    Artifact,
    GetTaskRequest,
    ListTasksRequest,
    Part,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
)
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.cli.main import main
from molecule_hermes.client.connection import MAX_FILE, file_part, message
from molecule_hermes.client.interaction import send
from molecule_hermes.client.save_folder import SaveFolder
from molecule_hermes.client.terminal import Printer, RawPrinter
from molecule_hermes.errors import StartError
from molecule_hermes.text import safe_name
from molecule_hermes.turns.model import Completed, FileProduced, TextDelta, ToolProgress, Usage
from tests.cli.test_main import run
from tests.conftest import StartBridge
from tests.protocol.test_questions import APPROVAL, CLARIFY
from tests.protocol.test_several_questions import open_questions
from tests.support.fakes import Answered, ScriptedTransport
from tests.support.peers import peer, reply_text, state
from tests.support.proxy import proxy_to
from tests.support.serving import free_port, serve
from tests.support.terminal import AtTerminal
from tests.support.waiting import until


class Sent:
    """What `send` printed, and its exit code."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err


class Session:
    """Runs `send` with streams that can be read while it writes."""

    def __init__(self, save: Path | None = None, raw: bool = False) -> None:
        self.out, self.err = io.StringIO(), io.StringIO()
        folder = SaveFolder(save) if save else None
        self.printer = (RawPrinter if raw else Printer)(self.out, self.err, folder)

    async def send(self, url: str, text: str = "hi", *ids: str, **options: Any) -> Sent:
        code = await send(url, message(text, *ids), self.printer, **options)
        return Sent(code, self.out.getvalue(), self.err.getvalue())


class FakeAgent:
    """An agent of another kind: it may not stream, and answers with a message."""

    def __init__(self) -> None:
        self.url = ""
        self.parts: list[Any] = []
        self.methods: list[str] = []
        self.asked_for_card = False
        self.card_waits = self.answer_waits = self.streams = False
        parts = [{"text": "seen"}]
        message = {"messageId": "m", "role": "ROLE_AGENT", "parts": parts}
        self.answers: list[list[Any]] = [[{"message": message}]]
        """The events for each message; the last ones again and again."""

    async def card(self, request: web.Request) -> web.Response:
        self.asked_for_card = True
        if self.card_waits:
            await asyncio.Event().wait()
        interface = {"url": self.url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        can = {"streaming": self.streams}
        card = {"name": "n", "capabilities": can, "supportedInterfaces": [interface]}
        return web.json_response(card)

    async def rpc(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.methods.append(body["method"])
        envelope = {"jsonrpc": "2.0", "id": body["id"]}
        if not body["method"].startswith("Send"):
            error = {"code": -32601, "message": "no such method"}
            return web.json_response(envelope | {"error": error})
        self.parts.append(body["params"]["message"]["parts"])
        if self.answer_waits:
            await asyncio.Event().wait()
        events = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if not self.streams:
            return web.json_response(envelope | {"result": events[0]})
        lines = (f"data: {json.dumps(envelope | {'result': event})}\n\n" for event in events)
        return web.Response(text="".join(lines), content_type="text/event-stream")


@pytest.fixture
async def agent() -> AsyncIterator[FakeAgent]:
    agent = FakeAgent()
    app = web.Application(client_max_size=2**26)
    app.router.add_get("/.well-known/agent-card.json", agent.card)
    app.router.add_post("/", agent.rpc)
    async with serve(app) as url:
        agent.url = url
        yield agent


async def the_task(url: str) -> Task:
    async with peer(url) as client:
        tasks = (await client.list_tasks(ListTasksRequest())).tasks
        assert len(tasks) == 1
        return await client.get_task(GetTaskRequest(id=tasks[0].id))


# What it prints.


async def test_the_reply_goes_to_standard_output_and_progress_to_standard_error(
    bridge: StartBridge,
) -> None:
    transport = ScriptedTransport(
        TextDelta("Looking."),
        ToolProgress("terminal", "start", "ls"),
        TextDelta("Found ", replace=True),
        TextDelta("it."),
        Completed("Found it."),
    )
    async with bridge(transport) as b:
        sent = await Session().send(b.url, "hi", "ctx")
    assert sent.code == 0
    assert sent.out == "Looking.\nFound it.\n"
    assert "· terminal: ls\n" in sent.err
    assert sent.err.endswith("(continue with --context ctx)\n")


async def test_a_reply_that_only_grows_is_not_repeated(bridge: StartBridge) -> None:
    transport = ScriptedTransport(TextDelta("So far"), Completed("So far, so good."))
    async with bridge(transport) as b:
        assert (await Session().send(b.url)).out == "So far, so good.\n"


async def test_durations_and_tokens_are_shown_at_the_end(bridge: StartBridge) -> None:
    transport = ScriptedTransport(
        TextDelta("a"), Completed("a", Usage(3, 31, 34, "a-model")), Completed("never")
    )
    async with bridge(transport) as b:
        sent = await Session().send(b.url)
    figures = next(line for line in sent.err.splitlines() if "tokens" in line)
    assert figures.startswith("(0.")
    assert "first text after 0." in figures
    assert figures.endswith(" s, 34 tokens, model a-model)")


async def test_a_failed_turn_says_why_and_exits_1(bridge: StartBridge) -> None:
    async with bridge(ScriptedTransport(RuntimeError("x"))) as b:
        sent = await Session().send(b.url)
    assert sent.code == 1
    assert "failed: something went wrong" in sent.err


async def test_with_json_each_event_is_a_line_and_nothing_else_is_printed(
    bridge: StartBridge,
) -> None:
    transport = ScriptedTransport(ToolProgress("terminal", "start", "ls"), Completed("x"))
    async with bridge(transport) as b:
        sent = await Session(raw=True).send(b.url)
    assert sent.code == 0
    events = [json.loads(line) for line in sent.out.splitlines()]
    assert events[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert sent.err == ""


@pytest.mark.parametrize(
    ("terminal", "shown"),
    [(True, "a\\x1b]52;c;eA==\\x07\n\tü"), (False, "a\x1b]52;c;eA==\x07\n\tü")],
)
def test_control_characters_of_a_reply_are_escaped_at_a_terminal_and_kept_in_a_pipe(
    terminal: bool, shown: str
) -> None:
    class Out(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    out = Out()
    part = Part(text="a\x1b]52;c;eA==\x07\n\tü")
    update = TaskArtifactUpdateEvent(artifact=Artifact(artifact_id="reply", parts=[part]))
    Printer(out, io.StringIO()).show(StreamResponse(artifact_update=update))
    assert out.getvalue() == shown


async def test_control_characters_in_progress_are_escaped(bridge: StartBridge) -> None:
    transport = ScriptedTransport(
        ToolProgress("terminal", "start", "rm -rf /\x1b[2K\recho \u202e"), Completed("x")
    )
    async with bridge(transport) as b:
        sent = await Session().send(b.url)
    assert "· terminal: rm -rf /\\x1b[2K\\recho \\u202e\n" in sent.err


async def test_a_refused_token_says_how_to_pass_one(bridge: StartBridge) -> None:
    async with bridge(ScriptedTransport(), PEER_TOKENS="a:0123456789abcdef") as b:
        with pytest.raises(StartError, match=r"401.*--token"):
            await Session().send(b.url)


async def test_a_message_that_is_too_large_is_explained(bridge: StartBridge) -> None:
    async with bridge(ScriptedTransport(), MAX_BODY=1024) as b:
        with pytest.raises(StartError, match=r"413 .*send a shorter message"):
            await Session().send(b.url, "x" * 2000)


# Files.


async def test_files_are_saved_under_safe_names(bridge: StartBridge, tmp_path: Path) -> None:
    names = ["a.txt", "a.txt", "../../x", "/etc/passwd", "", "..\\b.txt", ".bashrc", "a\x1b\n.txt"]
    files = [FileProduced(name, "text/plain", b"from " + name.encode()) for name in names]
    folder = tmp_path / "deep" / "below"
    async with bridge(ScriptedTransport(*files, TextDelta("here"), Completed("here"))) as b:
        sent = await Session(save=folder).send(b.url)
    assert sent.code == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        "a.txt": b"from a.txt",
        "a-1.txt": b"from a.txt",
        "x": b"from ../../x",
        "passwd": b"from /etc/passwd",
        "file": b"from ",
        "b.txt": b"from ..\\b.txt",
        "bashrc": b"from .bashrc",
        "a_.txt": b"from a\x1b\n.txt",
    }
    assert list(tmp_path.rglob("x")) == [folder / "x"]
    assert f"· file: a.txt (text/plain, 10 bytes) saved to {folder}/a-1.txt\n" in sent.err
    assert sent.out == "here\n"


async def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("mine")
    (tmp_path / "b.txt").symlink_to(tmp_path / "elsewhere")
    folder = SaveFolder(tmp_path)
    assert folder.keep("a.txt", b"yours") == tmp_path / "a-1.txt"
    assert folder.keep("b.txt", b"yours") == tmp_path / "b-1.txt"
    assert (tmp_path / "a.txt").read_text() == "mine"
    assert not (tmp_path / "elsewhere").exists()


@given(st.text())
def test_any_name_becomes_a_plain_file_name(name: str) -> None:
    safe = safe_name(name)
    assert safe.isprintable()
    assert 0 < len(safe.encode()) <= 220
    assert safe[0] not in ".- "
    assert not set(safe) & set("/\\")


async def test_without_a_folder_a_file_is_only_announced(bridge: StartBridge) -> None:
    transport = ScriptedTransport(
        FileProduced("a.bin", "application/x", b"x" * 2048, caption="the result"),
        FileProduced("b.png", "image/png", url="http://127.0.0.1:9/b.png"),
        Completed("done"),
    )
    async with bridge(transport) as b:
        sent = await Session().send(b.url)
    assert (
        "· file: a.bin (application/x, 2.0 KiB); use --save DIR to keep it — the result\n"
        "· file: b.png (image/png) at http://127.0.0.1:9/b.png\n"
    ) in sent.err


async def test_with_json_files_are_saved_too(bridge: StartBridge, tmp_path: Path) -> None:
    transport = ScriptedTransport(FileProduced("a", "x/y", b"1"), Completed("done"))
    async with bridge(transport) as b:
        sent = await Session(save=tmp_path / "d", raw=True).send(b.url)
    assert (tmp_path / "d" / "a").read_bytes() == b"1"
    assert sent.err == f"· file: a (x/y, 1 byte) saved to {tmp_path}/d/a\n"
    assert all(json.loads(line) for line in sent.out.splitlines())


async def test_a_file_that_cannot_be_saved_is_reported_and_exits_1(
    bridge: StartBridge, tmp_path: Path
) -> None:
    transport = ScriptedTransport(FileProduced("a", "x/y", b"1"), Completed("done"))
    session = Session(save=tmp_path / "d")
    (tmp_path / "d").rmdir()
    async with bridge(transport) as b:
        sent = await session.send(b.url)
    assert sent.code == 1
    assert "could not be saved completely: No such file or directory" in sent.err
    assert "done" in sent.out


def test_a_folder_that_is_a_file_is_one_line_and_exits_2(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    for folder in (tmp_path / "f", tmp_path / "f" / "below"):
        ended = run("send", "hi", "--save", str(folder))
        assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
        assert "is not a folder" in ended.stderr


async def test_files_are_sent_with_their_name_and_media_type(
    agent: FakeAgent, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_bytes(b"hello")
    (tmp_path / "b.unknown-kind").write_bytes(b"\0\1")
    files = ["--file", str(tmp_path / "a.txt"), "--file", str(tmp_path / "b.unknown-kind")]
    for text in (["look"], []):
        ended = await asyncio.to_thread(run, "send", *text, *files, "--url", agent.url)
        assert (ended.returncode, ended.stdout) == (0, "seen\n")
    raw = [
        {"raw": "aGVsbG8=", "filename": "a.txt", "mediaType": "text/plain"},
        {"raw": "AAE=", "filename": "b.unknown-kind", "mediaType": "application/octet-stream"},
    ]
    assert agent.parts == [[{"text": "look"}, *raw], raw]


def test_a_file_that_cannot_be_sent_is_one_line_and_exits_2_before_anything_is_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (tmp_path / "large").open("wb") as large:
        large.truncate(MAX_FILE + 1)
    for path, why in (
        (tmp_path / "missing", "No such file"),
        (tmp_path, "Is a directory"),
        (tmp_path / "large", "larger than 10 MiB"),
    ):
        nobody = f"http://127.0.0.1:{free_port()}"
        assert main(["send", "hi", "--file", str(path), "--url", nobody]) == 2
        output = capsys.readouterr().err
        assert output.count("\n") == 1
        assert f"{path}: {why}" in output


def test_a_file_of_exactly_the_maximum_size_can_be_sent(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as large:
        large.truncate(MAX_FILE)
    assert len(file_part(tmp_path / "large").raw) == MAX_FILE


def test_a_file_name_that_is_not_utf8_is_sent_with_replacement_characters(tmp_path: Path) -> None:
    path = tmp_path / "caf\udce9.txt"
    path.write_text("x")
    assert file_part(path).filename == "caf\N{REPLACEMENT CHARACTER}.txt"


@pytest.mark.parametrize(
    "arguments", [[], ["--save", "x"], ["yes", "--task", "t", "--file", __file__]]
)
def test_contradictory_arguments_are_one_line_and_exit_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["send", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# Questions.


async def test_without_a_terminal_a_question_ends_the_command_and_can_be_answered_later(
    bridge: StartBridge,
) -> None:
    transport = ScriptedTransport(
        TextDelta("So far. "), APPROVAL, Answered(), TextDelta("Done."), Completed("So far. Done.")
    )
    async with bridge(transport, DRAIN_TIMEOUT=0) as b:
        asked = await asyncio.to_thread(run, "send", "clean up", "--url", b.url)
        task = await the_task(b.url)
        command = f"molecule-hermes send --url {b.url} --task {task.id} yes"
        answered = await asyncio.to_thread(run, *command.split()[1:])
    assert asked.returncode == 1
    assert asked.stdout == "So far. \n"
    assert "? may I run rm -rf x?\n\n  (once / session / deny)\n" in asked.stderr
    assert asked.stderr.endswith(f"task {task.id} waits for an answer: {command}\n")
    assert state(task) == "INPUT_REQUIRED"
    assert transport.answers == [("q1", "once")]
    assert answered.returncode == 0
    assert answered.stdout == "Done.\n"
    assert "· answered: once\n" in answered.stderr


async def test_a_later_answer_that_is_refused_shows_why_and_the_question(
    bridge: StartBridge,
) -> None:
    transport = ScriptedTransport(CLARIFY, Answered(), Completed("done"))
    async with bridge(transport) as b:
        sent = await Session().send(b.url)
        task = await the_task(b.url)
        assert f"send --task {task.id} ANSWER\n" in sent.err
        again = await Session().send(b.url, " ", "", task.id)
        assert again.code == 1
        assert "? the message holds no answer; answer with text\n" in again.err
        assert "which colour?" in again.err
        assert (await Session().send(b.url, "red", "", task.id)).code == 0
    assert transport.answers == [("q2", "Red")]


async def test_with_json_a_question_ends_the_command(bridge: StartBridge) -> None:
    transport = ScriptedTransport(APPROVAL, Answered(), Completed("done"))
    async with bridge(transport, DRAIN_TIMEOUT=0) as b:
        sent = await Session(raw=True).send(b.url)
    assert sent.code == 1
    last = json.loads(sent.out.splitlines()[-1])
    assert last["statusUpdate"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    assert sent.err.count("\n") == 1
    assert sent.err.endswith(" yes\n")


@pytest.mark.parametrize("task", ["unknown", "caf\udce9"])
async def test_an_answer_to_an_unknown_task_is_one_line_and_exits_1(
    bridge: StartBridge, task: str
) -> None:
    async with bridge(ScriptedTransport()) as b:
        ended = await asyncio.to_thread(run, "send", "yes", "--task", task, "--url", b.url)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert "Traceback" not in ended.stderr


async def test_a_question_is_asked_at_the_prompt_until_an_answer_is_accepted(
    bridge: StartBridge,
) -> None:
    transport = ScriptedTransport(
        TextDelta("Well. "), APPROVAL, Answered(), CLARIFY, Answered(), Completed("Well. Done.")
    )
    async with bridge(transport) as b, AtTerminal("send", "go", "--url", b.url) as terminal:
        await terminal.shows("answer> ")
        terminal.type("\n")
        await terminal.shows("answer> ", 2)
        terminal.type("perhaps\n")
        await terminal.shows("answer> ", 3)
        terminal.type("yes\n")
        await terminal.shows("answer> ", 4)
        terminal.type("rather grün\n")
        assert await terminal.ends() == 0
        task = await the_task(b.url)
    assert transport.answers == [("q1", "once"), ("q2", "rather grün")]
    assert terminal.seen.count("may I run rm -rf x?") == 1
    assert "? 'perhaps' is not one of the choices; answer once, session, deny, yes or no\n" in (
        terminal.seen
    )
    assert "? which colour?\n\n  (Red / Blue)\nanswer> " in terminal.seen
    answer = next(m for m in task.history if m.parts[0].HasField("data"))
    assert dict(answer.parts[0].data.struct_value)["questionId"] == "q1"


async def test_a_further_question_does_not_disturb_the_prompt_and_is_asked_after_it(
    bridge: StartBridge,
) -> None:
    go, shown = asyncio.Event(), asyncio.Event()
    script = (APPROVAL, go, CLARIFY, shown, Answered(), Answered(), Completed("Done."))
    transport = ScriptedTransport(*script)
    async with bridge(transport) as b, AtTerminal("send", "go", "--url", b.url) as terminal:
        await terminal.shows("answer> ")
        terminal.type("n")
        go.set()
        async with peer(b.url) as client:
            await open_questions(client, (await the_task(b.url)).id, "q1", "q2")
        shown.set()
        terminal.type("o\n")
        await terminal.shows("answer> ", 2)
        terminal.type("Red\n")
        assert await terminal.ends() == 0
    assert transport.answers == [("q1", "deny"), ("q2", "Red")]
    assert terminal.seen.count("may I run rm -rf x?") == 1
    assert terminal.seen.count("which colour?") == 1


async def test_the_end_of_input_leaves_the_question_open(bridge: StartBridge) -> None:
    transport = ScriptedTransport(APPROVAL, Answered(), Completed("done"))
    async with bridge(transport) as b:
        async with AtTerminal("send", "go", "--url", b.url) as terminal:
            await terminal.shows("answer> ")
            terminal.type("\x04")
            assert await terminal.ends() == 1
        task = await the_task(b.url)
        assert f"\ntask {task.id} waits for an answer: molecule-hermes send" in terminal.seen
        assert state(task) == "INPUT_REQUIRED"
        assert (await Session().send(b.url, "no", "", task.id)).code == 0


async def test_keys_pressed_before_the_question_do_not_answer_it(bridge: StartBridge) -> None:
    go = asyncio.Event()
    transport = ScriptedTransport(TextDelta("Wait."), go, APPROVAL, Answered(), Completed("Wait."))
    async with bridge(transport) as b, AtTerminal("send", "go", "--url", b.url) as terminal:
        await terminal.shows("Wait.")
        terminal.type("yes\n")
        await terminal.shows("yes")
        go.set()
        await terminal.shows("answer> ")
        terminal.type("no\n")
        assert await terminal.ends() == 0
    assert transport.answers == [("q1", "deny")]


async def test_the_prompt_ends_when_the_question_expires(bridge: StartBridge) -> None:
    transport = ScriptedTransport(
        APPROVAL, Answered(), TextDelta("Went on."), Completed("Went on.")
    )
    async with (
        bridge(transport, QUESTION_TIMEOUT=0.5) as b,
        AtTerminal("send", "go", "--url", b.url) as terminal,
    ):
        await terminal.shows("answer> ")
        assert await terminal.ends() == 0
    assert "Went on.\n" in terminal.seen
    assert transport.answers == [("q1", "deny")]


async def test_the_prompt_ends_when_the_bridge_goes_away(bridge: StartBridge) -> None:
    async with (
        bridge(ScriptedTransport(APPROVAL, Answered()), DRAIN_TIMEOUT=0) as b,
        proxy_to(b.url) as proxy,
        AtTerminal("send", "go", "--url", proxy.url) as terminal,
    ):
        await terminal.shows("answer> ")
        proxy.go()
        assert await terminal.ends() == 1
    assert "molecule-hermes: the connection to the agent was lost" in terminal.seen


async def test_after_two_seconds_without_output_a_terminal_shows_that_it_waits(
    bridge: StartBridge,
) -> None:
    go = asyncio.Event()
    async with (
        bridge(ScriptedTransport(go, Completed("There."))) as b,
        AtTerminal("send", "go", "--url", b.url) as terminal,
    ):
        await terminal.shows("· waiting for the agent …\n")
        go.set()
        assert await terminal.ends() == 0
    assert terminal.seen.startswith("· waiting for the agent …\nThere.\n")


# Ctrl-C.


async def test_ctrl_c_cancels_the_task_and_shows_its_end(bridge: StartBridge) -> None:
    transport = ScriptedTransport(TextDelta("So far"), asyncio.Event(), Completed("never"))
    async with bridge(transport) as b, AtTerminal("send", "go", "--url", b.url) as terminal:
        await terminal.shows("So far")
        terminal.interrupt()
        assert await terminal.ends() == 130
        task = await the_task(b.url)
    assert "\ncanceling …" in terminal.seen
    assert "\ncanceled\n" in terminal.seen
    assert (state(task), reply_text(task)) == ("CANCELED", "So far")


async def test_ctrl_c_at_the_prompt_cancels_the_task(bridge: StartBridge) -> None:
    transport = ScriptedTransport(APPROVAL, Answered(), Completed("never"))
    async with bridge(transport) as b, AtTerminal("send", "go", "--url", b.url) as terminal:
        await terminal.shows("answer> ")
        terminal.type("ye")
        terminal.interrupt()
        assert await terminal.ends() == 130
        task = await the_task(b.url)
    assert "\ncanceling …" in terminal.seen
    assert terminal.seen.count("answer> ") == 1
    assert state(task) == "CANCELED"
    assert transport.answers == []


async def test_a_second_ctrl_c_leaves_at_once(bridge: StartBridge) -> None:
    go = asyncio.Event()
    transport = ScriptedTransport(TextDelta("So far"), go, Completed("So far"))
    transport.deaf = True
    async with bridge(transport) as b, AtTerminal("send", "go", "--url", b.url) as terminal:
        await terminal.shows("So far")
        terminal.interrupt()
        await terminal.shows("canceling …")
        terminal.interrupt()
        assert await terminal.ends() == 130
        task = await the_task(b.url)
        go.set()
    assert f"left; task {task.id} may still run\n" in terminal.seen
    assert state(task) == "WORKING"


async def test_ctrl_c_before_the_task_exists_cancels_it_once_it_does(
    bridge: StartBridge,
) -> None:
    transport = ScriptedTransport(asyncio.Event(), Completed("never"))
    async with bridge(transport) as b, proxy_to(b.url) as proxy:
        proxy.holds = b"POST"
        async with AtTerminal("send", "go", "--url", proxy.url) as terminal:
            await until(lambda: not proxy.passes.is_set())
            terminal.interrupt()
            await terminal.shows("canceling …")
            proxy.holds = b""
            proxy.passes.set()
            assert await terminal.ends() == 130
        assert state(await the_task(b.url)) == "CANCELED"
    assert "\ncanceled\n" in terminal.seen


async def test_ctrl_c_while_the_agent_does_not_answer_leaves(agent: FakeAgent) -> None:
    agent.answer_waits = True
    async with AtTerminal("send", "go", "--url", agent.url) as terminal:
        await until(lambda: agent.parts)
        terminal.interrupt()
        await terminal.shows("canceling …")
        terminal.interrupt()
        assert await terminal.ends() == 130
    assert "left; the task may still run\n" in terminal.seen


async def test_ctrl_c_before_anything_is_sent_just_leaves(agent: FakeAgent) -> None:
    agent.card_waits = True
    async with AtTerminal("send", "go", "--url", agent.url) as terminal:
        await until(lambda: agent.asked_for_card)
        terminal.interrupt()
        assert await terminal.ends() == 130
    assert terminal.seen == "^C"


async def test_an_interrupt_without_a_terminal_cancels_too(bridge: StartBridge) -> None:
    transport = ScriptedTransport(TextDelta("So far"), asyncio.Event(), Completed("never"))
    session = Session()
    async with bridge(transport) as b, asyncio.TaskGroup() as group:
        sending = group.create_task(session.send(b.url))
        await until(session.out.getvalue)
        signal.raise_signal(signal.SIGINT)
        sent = await sending
        task = await the_task(b.url)
    assert sent.code == 130
    assert state(task) == "CANCELED"


# A line that breaks.


async def test_a_bridge_that_is_killed_is_one_clear_line(bridge: StartBridge) -> None:
    transport = ScriptedTransport(TextDelta("So far"), asyncio.Event())
    async with bridge(transport, DRAIN_TIMEOUT=0) as b, proxy_to(b.url) as proxy:
        ended = asyncio.create_task(asyncio.to_thread(run, "send", "go", "--url", proxy.url))
        await until(lambda: transport.turns)
        task = await the_task(b.url)
        proxy.go()
        sent = await ended
    assert sent.returncode == 1
    lines = sent.stderr.splitlines()
    assert lines[-1].startswith("molecule-hermes: the connection to the agent was lost (")
    assert lines[-1].endswith(f"— task {task.id} may still run")
    assert "Traceback" not in sent.stderr


async def test_after_a_lost_connection_the_rest_is_shown_and_nothing_twice(
    bridge: StartBridge, tmp_path: Path
) -> None:
    go = asyncio.Event()
    transport = ScriptedTransport(
        ToolProgress("terminal", "start", "ls"),
        FileProduced("a", "x/y", b"1"),
        TextDelta("So far"),
        ToolProgress("terminal", "end", ok=True),
        go,
        FileProduced("b", "x/y", b"2"),
        TextDelta(", so good."),
        Completed("So far, so good."),
    )
    session = Session(save=tmp_path / "d")
    async with bridge(transport) as b, proxy_to(b.url) as proxy, asyncio.TaskGroup() as group:
        sending = group.create_task(session.send(proxy.url))
        await until(lambda: "terminal done" in session.err.getvalue())
        proxy.cut()
        await until(lambda: "connection was lost" in session.err.getvalue())
        go.set()
        sent = await sending
    assert sent.code == 0
    assert sent.out == "So far\n, so good.\n"
    assert sent.err.count("· terminal: ls") == sent.err.count("· terminal done") == 1
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == ["a", "b"]


async def test_after_a_lost_connection_an_ended_task_is_shown(bridge: StartBridge) -> None:
    go = asyncio.Event()
    transport = ScriptedTransport(TextDelta("So far"), go, Completed("Better."))
    session = Session()

    async def completed() -> bool:
        return state(await the_task(b.url)) == "COMPLETED"

    async with bridge(transport) as b, proxy_to(b.url) as proxy, asyncio.TaskGroup() as group:
        sending = group.create_task(session.send(proxy.url))
        await until(session.out.getvalue)
        proxy.passes.clear()
        proxy.cut()
        go.set()
        await until(completed)
        proxy.passes.set()
        sent = await sending
    assert sent.code == 0
    assert sent.out == "So far\nBetter.\n"


async def test_a_reply_that_is_a_message_is_shown(agent: FakeAgent) -> None:
    sent = await Session().send(agent.url)
    assert (sent.code, sent.out, sent.err) == (0, "seen\n", "")


async def test_the_reply_of_an_agent_without_streaming_is_shown(agent: FakeAgent) -> None:
    artifacts = [{"artifactId": "1", "parts": [{"text": "a"}]}]
    artifacts += [{"artifactId": "2", "parts": [{"text": "b"}]}]
    status = {"state": "TASK_STATE_COMPLETED"}
    task = {"id": "t", "contextId": "c", "status": status, "artifacts": artifacts}
    agent.answers = [[{"task": task}]]
    sent = await Session().send(agent.url)
    assert (sent.code, sent.out) == (0, "a\nb\n")


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("result", [{"message": 7}, {"task": {"status": {"state": {}}}}, [], {}])
async def test_a_malformed_response_is_one_line_and_exits_1(
    agent: FakeAgent, result: Any, streams: bool
) -> None:
    agent.streams = streams
    agent.answers = [[result]]
    ended = await asyncio.to_thread(run, "send", "hi", "--url", agent.url)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1), ended.stderr
    assert "Traceback" not in ended.stderr


async def test_a_question_without_our_metadata_is_answered_as_text(agent: FakeAgent) -> None:
    ids = {"taskId": "t", "contextId": "c"}
    question = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "which colour?"}]}
    asks = {"state": "TASK_STATE_INPUT_REQUIRED", "message": question}
    painted = {"artifactId": "a", "parts": [{"text": "Painted."}]}
    done = {"state": "TASK_STATE_COMPLETED"}
    agent.streams = True
    agent.answers = [
        [{"statusUpdate": ids | {"status": asks}}],
        [{"artifactUpdate": ids | {"artifact": painted}}, {"statusUpdate": ids | {"status": done}}],
    ]
    async with AtTerminal("send", "paint", "--url", agent.url) as terminal:
        await terminal.shows("answer> ")
        await until(lambda: "GetTask" in agent.methods)
        terminal.type("blue\n")
        assert await terminal.ends() == 0
    assert agent.parts[1] == [{"text": "blue"}]
    assert terminal.seen.startswith("? which colour?\nanswer> blue\nPainted.\n")
