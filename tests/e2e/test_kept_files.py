"""Files of a conversation in its later turns, on the real Hermes over each transport."""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from a2a.types import Part

from molecule_hermes.client.connection import message
from molecule_hermes.protocol.incoming import MAX_INLINE_BYTES
from molecule_hermes.turns.features import Feature, TransportName, why_not
from tests.protocol.test_media_types import PDF
from tests.support.peers import Turn, peer, send
from tests.support.recorded_model import RecordedModel, recorded_model
from tests.support.stack import Stack, environment, up
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

ALICE, BOB = "alice-token-0123456789", "bob-token-0123456789"
LIMIT = 2 * MAX_INLINE_BYTES
LONG_TEXT = b"line 1\nthe answer is 42\n".ljust(MAX_INLINE_BYTES + 1, b"x")


@pytest.fixture(scope="module", params=["plugin", "chat"])
def way(request: pytest.FixtureRequest) -> TransportName:
    found: TransportName = request.param
    return found


@pytest.fixture(autouse=True)
def _as_the_table_says(request: pytest.FixtureRequest, way: TransportName) -> None:
    without = request.node.get_closest_marker("without") is not None
    if bool(reason := why_not(Feature.KEPT_FILES, way)) is not without:
        pytest.skip(f"{way}: {reason or 'yes'}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model() -> AsyncIterator[RecordedModel]:
    async with recorded_model() as recorded:
        yield recorded


def settings(folder: Path, model: RecordedModel, way: TransportName, **more: str) -> dict[str, str]:
    return environment(
        folder,
        MOLECULE_HERMES_PEER_TOKENS=f"alice:{ALICE},bob:{BOB}",
        # One Hermes keeps the files of all of them.
        MOLECULE_HERMES_ISOLATION="shared",
        MOLECULE_A2A_PLATFORM_ENABLED="true" if way == "plugin" else "false",
        HERMES_CUSTOM_BASE_URL=model.url,
        HERMES_INFERENCE_MODEL="molecule-demo",
        **more,
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(folder: Path, model: RecordedModel, way: TransportName) -> AsyncIterator[Stack]:
    bounds = {"MOLECULE_HERMES_KEEP_FILES_BYTES_OF_CONVERSATION": str(LIMIT)}
    async with up(settings(folder / way, model, way, **bounds)) as running:
        yield running


@pytest.fixture(scope="module")
def home(folder: Path, way: TransportName) -> Path:
    return folder / way / "hermes"


def kept_in(home: Path, name: str) -> list[Path]:
    return list((home / "cache" / "documents" / "a2a").glob(f"*/{name}"))


async def say(
    stack: Stack, text: str, context: str, *parts: Part, token: str = ALICE, state: str = ""
) -> Turn:
    request = message(text, context)
    request.message.parts.extend(parts)
    async with peer(stack.url, token=token) as client:
        turn = await send(client, request)
    assert turn.states[-1] == (state or "COMPLETED"), turn.events[-1]
    return turn


async def test_a_later_turn_reads_the_files_of_an_earlier_one_and_others_do_not_see_them(
    stack: Stack, home: Path, model: RecordedModel
) -> None:
    files = (
        Part(raw=PDF + b" page 3: forty-two", filename="a_long_report.pdf"),
        Part(raw=LONG_TEXT, filename="long notes.txt"),
    )
    await say(stack, "here you are", "reading", *files)
    (text,) = kept_in(home, "long notes.txt")
    (pdf,) = kept_in(home, "*report.pdf")
    assert pdf.parent.stat().st_mode & 0o777 == 0o700
    model.requests.clear()
    turn = await say(stack, f"and page 3 of that PDF?\ndemo:run tail -c 9 {pdf}", "reading")
    assert '"output": "forty-two"' in turn.text
    assert turn.file_parts == []
    asked = json.dumps([request["messages"][-1] for request in model.requests])
    assert f"Files of earlier messages are still in {text.parent}: " in asked
    assert "'long notes.txt'" in asked
    assert f"'{pdf.name}'" in asked
    turn = await say(stack, f"demo:run head -n 2 '{text}'", "reading")
    assert "the answer is 42" in turn.text
    # Hermes announces the whole name.
    assert "a_long_report.pdf" in (await say(stack, "hello", "reading")).text
    model.requests.clear()
    for token, context in ((ALICE, "another"), (BOB, "reading")):
        turn = await say(stack, "demo:read", context, token=token)
        assert "no file is attached" in turn.text
    seen = json.dumps(model.requests)
    assert "Files of earlier messages" not in seen
    assert text.parent.name not in seen


async def test_a_file_of_the_peer_comes_back_only_when_the_agent_has_changed_it(
    stack: Stack, home: Path
) -> None:
    await say(stack, "keep it", "returning", Part(raw=PDF + b" mine", filename="mine.pdf"))
    (path,) = kept_in(home, "mine.pdf")
    turn = await say(stack, f"say this:\nMEDIA:{path}", "returning")
    assert turn.file_parts == []
    assert not [line for line in turn.progress if "not available" in line]
    await say(stack, f"demo:run printf more >> {path}", "returning")
    turn = await say(stack, f"say this:\nMEDIA:{path}", "returning")
    assert [(part.filename, part.raw) for part in turn.file_parts] == [
        ("mine.pdf", PDF + b" minemore")
    ]


async def test_a_file_that_another_conversation_sent_is_never_delivered(
    stack: Stack, home: Path
) -> None:
    await say(stack, "keep it", "private", Part(raw=PDF + b" salary", filename="salary.pdf"))
    (path,) = kept_in(home, "salary.pdf")
    for token, context in ((BOB, "private"), (ALICE, "other")):
        # Also if its conversation uses the file while the other turn runs.
        soon = time.time() + 60
        os.utime(path, (soon, soon))
        turn = await say(stack, f"say this:\nMEDIA:{path}", context, token=token)
        assert turn.file_parts == []
        assert "the file salary.pdf is not available" in turn.progress


async def test_the_oldest_files_of_a_conversation_make_room_for_new_ones(
    stack: Stack, home: Path, model: RecordedModel
) -> None:
    for number in range(3):
        data = PDF + bytes([number]) * (LIMIT // 2 - 1000)
        await say(stack, "demo:say kept", "bounds", Part(raw=data, filename=f"bound{number}.pdf"))
    assert not kept_in(home, "bound0.pdf")
    assert kept_in(home, "bound1.pdf")
    assert kept_in(home, "bound2.pdf")
    model.requests.clear()
    await say(stack, "demo:say which?", "bounds")
    last = json.dumps([request["messages"][-1] for request in model.requests])
    assert ": 'bound2.pdf', 'bound1.pdf']" in last


async def test_files_stay_when_hermes_is_restarted(stack: Stack) -> None:
    await say(stack, "keep it", "restart", Part(raw=PDF + b" before", filename="before.pdf"))
    psutil.Process(stack.hermes_pid()).kill()
    await stack.until_ready(False)
    await stack.until_ready()
    turn = await say(stack, "demo:read", "restart")
    assert "1 0 obj before" in turn.text


async def test_files_go_when_their_conversation_is_old(stack: Stack, home: Path) -> None:
    for context in ("old", "young"):
        file = Part(raw=PDF + context.encode(), filename=f"{context}.pdf")
        await say(stack, "keep it", context, file)
    (old,), (young,) = kept_in(home, "old.pdf"), kept_in(home, "young.pdf")
    week_ago = time.time() - 7 * 86_400
    os.utime(old.parent / ".files.json", (week_ago, week_ago))
    await say(stack, "keep it", "trigger", Part(raw=PDF, filename="trigger.pdf"))
    await until(lambda: not old.parent.exists())
    assert young.exists()
    assert "no file is attached" in (await say(stack, "demo:read", "old")).text


async def test_files_can_be_removed_with_their_turn(
    tmp_path: Path, model: RecordedModel, way: TransportName
) -> None:
    environ = settings(tmp_path, model, way, MOLECULE_HERMES_KEEP_FILES_DAYS="0")
    async with up(environ) as stack:
        turn = await say(stack, "demo:read", "none", Part(raw=PDF + b" now", filename="now.pdf"))
        assert "1 0 obj now" in turn.text
        await until(lambda: not kept_in(tmp_path / "hermes", "now.pdf"))
        assert "no file is attached" in (await say(stack, "demo:read", "none")).text


@pytest.mark.without(Feature.KEPT_FILES)
async def test_without_files_nothing_is_kept(stack: Stack, home: Path) -> None:
    file = Part(raw=PDF, filename="a.pdf")
    turn = await say(stack, "keep it", "refused", file, state="REJECTED")
    assert "part 2 (a.pdf) is application/pdf" in turn.failure["message"]
    assert not kept_in(home, "*")
