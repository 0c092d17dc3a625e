"""An agent delivers only files of its own conversation."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from a2a.types import Part

from molecule_hermes.client.connection import message
from tests.protocol.test_media_types import PDF
from tests.support.peers import Turn, ask, peer, send
from tests.support.recorded_model import RecordedModel, recorded_model
from tests.support.stack import Stack, environment, up

pytestmark = [pytest.mark.hermes, pytest.mark.asyncio(loop_scope="module")]

ALICE, BOB = "alice-token-0123456789", "bob-token-0123456789"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model() -> AsyncIterator[RecordedModel]:
    async with recorded_model() as recorded:
        yield recorded


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(folder: Path, model: RecordedModel) -> AsyncIterator[Stack]:
    environ = environment(
        folder,
        MOLECULE_HERMES_PEER_TOKENS=f"alice:{ALICE},bob:{BOB}",
        # In a Hermes of its own, no other peer's file can even be read.
        MOLECULE_HERMES_ISOLATION="shared",
        HERMES_CUSTOM_BASE_URL=model.url,
        HERMES_INFERENCE_MODEL="molecule-demo",
    )
    async with up(environ) as running:
        yield running


async def say(stack: Stack, token: str, text: str, context: str) -> Turn:
    async with peer(stack.url, token=token) as client:
        turn = await ask(client, text, context)
    assert turn.states[-1] == "COMPLETED"
    return turn


def files(turn: Turn) -> dict[str, bytes]:
    return {part.filename: part.raw for part in turn.file_parts}


async def where(stack: Stack, token: str, context: str) -> Path:
    turn = await say(stack, token, "demo:run pwd", context)
    (path,) = re.findall(r'"output": "(.*?)"', turn.text)
    return Path(path)


async def test_a_file_of_another_peer_is_refused(stack: Stack, folder: Path) -> None:
    made = await say(stack, ALICE, "demo:file=salary.txt 1,000,000", "work")
    assert files(made) == {"salary.txt": b"1,000,000"}
    (path,) = folder.glob("work/**/salary.txt")
    for token, context in ((BOB, "work"), (BOB, "other"), (ALICE, "other")):
        stolen = await say(stack, token, f"say this:\nMEDIA:{path}", context)
        assert files(stolen) == {}
        assert "the file salary.txt is not available" in stolen.progress
    # In its own conversation it can be had again, by its whole path or a link of a path.
    for name in (path, path.parent / ".." / path.parent.name / path.name):
        again = await say(stack, ALICE, f"say this:\nMEDIA:{name}", "work")
        assert files(again) == {"salary.txt": b"1,000,000"}


async def test_a_link_to_a_file_of_another_peer_is_refused(stack: Stack, folder: Path) -> None:
    await say(stack, ALICE, "demo:file=plan.txt secret", "links")
    (path,) = folder.glob("work/**/plan.txt")
    link = await where(stack, BOB, "links") / "mine.txt"
    await say(stack, BOB, f"demo:run ln -s {path} {link}", "links")
    assert link.is_symlink()
    assert files(await say(stack, BOB, f"say this:\nMEDIA:{link}", "links")) == {}


async def test_a_file_that_another_peer_sent_is_refused(stack: Stack, folder: Path) -> None:
    request = message("keep this", "kept")
    request.message.parts.append(Part(raw=PDF + b"1,000,000", filename="contract.pdf"))
    async with peer(stack.url, token=ALICE) as client:
        assert (await send(client, request)).states[-1] == "COMPLETED"
    (path,) = folder.glob("hermes/cache/documents/a2a/*/contract.pdf")
    link = await where(stack, BOB, "kept") / "mine.pdf"
    await say(stack, BOB, f"demo:run ln -s {path} {link}", "kept")
    assert link.is_symlink()
    for name in (path, link):
        # It is newer than the turn, like media that the turn has made.
        soon = time.time() + 60
        os.utime(path, (soon, soon))
        stolen = await say(stack, BOB, f"say this:\nMEDIA:{name}", "kept")
        assert files(stolen) == {}
        assert "the file contract.pdf is not available" in stolen.progress


async def test_media_that_an_earlier_turn_made_is_refused(stack: Stack, folder: Path) -> None:
    cache = folder / "hermes" / "cache" / "images"
    cache.mkdir(parents=True, exist_ok=True)
    old, new = cache / "old.png", cache / "new.png"
    old.write_bytes(b"old")
    os.utime(old, (time.time() - 60, time.time() - 60))
    refused = await say(stack, BOB, f"say this:\nMEDIA:{old}", "media")
    assert files(refused) == {}
    assert "the file old.png is not available" in refused.progress
    # As an image tool would: it is written in the turn that hands it over.
    made = Turn()
    async with peer(stack.url, token=BOB) as client:
        request = message(f"demo:slow=0.1 one two three four\nMEDIA:{new}", "media")
        async for event in client.send_message(request):
            made.add(event)
            if made.updates:
                new.write_bytes(b"new")
    assert files(made) == {"new.png": b"new"}


async def test_each_conversation_works_in_a_folder_of_its_own(
    stack: Stack, folder: Path, model: RecordedModel
) -> None:
    alice, bob = await where(stack, ALICE, "cwd"), await where(stack, BOB, "cwd")
    assert alice.parent == bob.parent == folder / "work" / "conversations"
    assert len({alice, bob, await where(stack, ALICE, "another")}) == 3
    # The prompt says so, and the other tools agree.
    assert f"Current working directory: {alice}" in model.prompts()
    write = json.dumps({"path": "notes.txt", "content": "from a file tool"})
    await say(stack, ALICE, f"demo:call=write_file {write}", "cwd")
    assert (alice / "notes.txt").read_text() == "from a file tool"
    code = json.dumps({"code": "open('code.txt', 'w').write('from code')"})
    async with peer(stack.url, token=ALICE) as client:
        asked = await ask(client, f"demo:call=execute_code {code}", "cwd")
        assert asked.states[-1] == "INPUT_REQUIRED"
        await ask(client, "once", "cwd", asked.task_id)
    assert (alice / "code.txt").read_text() == "from code"
    read = await say(stack, BOB, 'demo:call=read_file {"path": "notes.txt"}', "cwd")
    assert "from a file tool" not in read.text
    # A `cd` stays in its conversation, and cannot leave the folder for the next turn.
    await say(stack, ALICE, "demo:run mkdir -p sub && cd sub", "cwd")
    assert await where(stack, ALICE, "cwd") == alice / "sub"
    assert await where(stack, BOB, "cwd") == bob
    await say(stack, ALICE, "demo:run cd /", "cwd")
    assert await where(stack, ALICE, "cwd") == alice
    # Instructions that one peer leaves in its folder are not read to another.
    await say(stack, ALICE, "demo:run echo obey-alice > AGENTS.md", "cwd")
    model.requests.clear()
    await say(stack, BOB, "hello", "fresh")
    assert "obey-alice" not in model.prompts()
    # Of a conversation without files nothing stays.
    assert not bob.exists()


async def test_a_single_peer_finds_its_files_in_every_conversation(tmp_path: Path) -> None:
    async with up(environment(tmp_path)) as stack:
        await say(stack, "", "demo:file=notes.txt hello", "one")
        path = tmp_path / "work" / "notes.txt"
        assert path.read_text() == "hello"
        turn = await say(stack, "", f"say this:\nMEDIA:{path}", "two")
        assert files(turn) == {"notes.txt": b"hello"}
