"""Files in both directions through the real Hermes, over both transports."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from a2a.helpers import new_data_part
from a2a.types import GetTaskRequest, Part
from aiohttp import web

from molecule_hermes.client.connection import message
from molecule_hermes.turns.features import Feature, TransportName, why_not
from tests.protocol.test_incoming import giving, serving
from tests.protocol.test_media_types import JPEG, PDF, PNG
from tests.support.peers import Turn, peer, reply_text, send
from tests.support.stack import Stack, environment, up

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOST = "127.0.0.1"


@pytest.fixture(scope="module", params=["plugin", "chat"])
def way(request: pytest.FixtureRequest) -> TransportName:
    way: TransportName = request.param
    return way


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory, way: TransportName) -> Path:
    return tmp_path_factory.mktemp(way)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(way: TransportName, state_dir: Path) -> AsyncIterator[Stack]:
    environ = environment(
        state_dir,
        MOLECULE_A2A_PLATFORM_ENABLED="true" if way == "plugin" else "false",
        MOLECULE_HERMES_FILE_HOSTS=HOST,
    )
    async with up(environ) as running:
        yield running


@pytest.fixture
def work(state_dir: Path) -> Path:
    """Where the agent works."""
    return state_dir / "work"


async def say(stack: Stack, text: str, *parts: Part, version: str = "1.0") -> Turn:
    request = message(text)
    request.message.parts.extend(parts)
    async with peer(stack.url, version=version) as client:
        return await send(client, request)


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_an_image_is_seen_by_the_model(stack: Stack, version: str) -> None:
    png = Part(raw=PNG, filename="a.png", media_type="image/png")
    turn = await say(stack, "look", png, Part(raw=JPEG), version=version)
    assert turn.states[-1] == "COMPLETED"
    sizes = f"image/png, {len(PNG)} bytes; image/jpeg, {len(JPEG)} bytes"
    assert f"You said: look\nI see 2 images: {sizes}" in turn.text
    assert turn.file_parts == []


async def test_an_image_with_an_address_is_fetched_and_seen(stack: Stack) -> None:
    async with serving(**{"a.png": giving(PNG, Content_Type="image/png")}) as at:
        turn = await say(stack, "look", Part(url=f"{at}/a.png"))
        assert f"I see 1 image: image/png, {len(PNG)} bytes" in turn.text
        refused = await say(stack, "look", Part(url=at.replace(HOST, "localhost") + "/a.png"))
    assert refused.states[-1] == "REJECTED"
    assert "localhost is not a public address" in refused.failure["message"]


async def test_documents_and_data_are_read(stack: Stack) -> None:
    notes = Part(raw="the answer is 42 – or 43".encode(), filename="notes.md")
    turn = await say(stack, "see", notes, new_data_part({"colour": "teal", "n": 7}))
    assert turn.states[-1] == "COMPLETED"
    assert "[Attached document: notes.md (text/markdown)]" in turn.text
    assert "the answer is 42 – or 43" in turn.text
    assert "[Attached document: data-3.json (application/json)]" in turn.text
    assert '"n": 7' in turn.text


async def test_another_file_is_opened_by_a_tool_or_refused_by_name(
    stack: Stack, way: TransportName
) -> None:
    turn = await say(stack, "demo:read", Part(raw=PDF + b" 42", filename="a report.pdf"))
    if not why_not(Feature.FILES_IN, way):
        assert turn.states[-1] == "COMPLETED"
        assert "1 0 obj 42" in turn.text
    else:
        assert turn.states == ["SUBMITTED", "REJECTED"]
        assert turn.failure["kind"] == "bad_request"
        assert "part 2 (a report.pdf) is application/pdf" in turn.failure["message"]
        assert "image/png" in turn.failure["hint"]


async def test_a_file_that_is_not_what_it_claims_to_be_is_refused(stack: Stack) -> None:
    turn = await say(stack, "look", Part(raw=PDF, filename="a.png", media_type="image/png"))
    assert turn.states == ["SUBMITTED", "REJECTED"]
    assert turn.failure["message"].startswith("part 2 (a.png) is declared as image/png")


@pytest.mark.parametrize(
    ("name", "media_type", "data"),
    [("dot.png", "image/png", PNG), ("odd.pdf", "application/pdf", bytes(range(256)))],
)
async def test_a_file_that_the_agent_makes_is_an_artifact(
    stack: Stack, way: TransportName, name: str, media_type: str, data: bytes
) -> None:
    encoded = base64.b64encode(data).decode()
    turn = await say(stack, f"demo:file={name} base64:{encoded}")
    assert turn.states[-1] == "COMPLETED"
    if why_not(Feature.FILES_OUT, way):
        assert turn.file_parts == []
        assert "files cannot be delivered over chat completions" in turn.progress
        return
    (file,) = turn.file_parts
    assert (file.filename, file.media_type, file.raw) == (name, media_type, data)
    assert turn.text == "Here is the file."
    async with peer(stack.url) as client:
        task = await client.get_task(GetTaskRequest(id=turn.task_id))
    assert reply_text(task) == turn.text
    assert [a.parts[0].raw for a in task.artifacts if a.name == name] == [data]


async def test_a_file_over_the_limit_is_reported(
    stack: Stack, way: TransportName, work: Path
) -> None:
    if why := why_not(Feature.FILES_OUT, way):
        pytest.skip(why)
    with (work / "large.pdf").open("wb") as file:
        file.truncate(10 * 2**20 + 1)
    turn = await say(stack, f"say this:\nMEDIA:{work}/large.pdf")
    assert turn.states[-1] == "COMPLETED"
    assert turn.file_parts == []
    assert any(line.startswith("the file large.pdf was not delivered") for line in turn.progress)


async def test_files_outside_the_folders_of_the_agent_are_not_delivered(
    stack: Stack, way: TransportName, state_dir: Path, work: Path
) -> None:
    (state_dir / "outside.txt").write_text("private")
    for path in (state_dir / "outside.txt", work / ".." / "hermes" / "config.yaml"):
        turn = await say(stack, f"say this:\nMEDIA:{path}")
        assert turn.states[-1] == "COMPLETED"
        assert turn.file_parts == []
        if not why_not(Feature.FILES_OUT, way):
            assert f"the file {path.name} is not available" in turn.progress


async def test_the_largest_file_comes_through(stack: Stack, way: TransportName) -> None:
    """In a body of base64, over the wire, to Hermes's disk."""
    if why := why_not(Feature.FILES_IN, way):
        pytest.skip(why)
    async with serving(large=_large) as at:
        large = Part(raw=bytes(10 * 2**20), filename="a.bin")
        turn = await say(stack, "demo:words=3", large, Part(url=f"{at}/large"))
    assert (turn.states[-1], turn.text) == ("COMPLETED", "word0 word1 word2")


async def _large(request: web.Request) -> web.Response:
    return web.Response(body=bytes(10 * 2**20))
