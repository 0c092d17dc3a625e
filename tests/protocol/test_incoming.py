"""A peer's message, read into one text and files, with URLs fetched from real servers."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from a2a.compat.v0_3.conversions import to_compat_message
from a2a.helpers import get_data_parts, new_data_part
from a2a.types import CancelTaskRequest, GetTaskRequest, Message, Part
from aiohttp import web
from google.protobuf import struct_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from molecule_hermes.client.connection import message
from molecule_hermes.errors import BadRequest, Busy, TooLarge, TurnFailure
from molecule_hermes.net.addresses import PublicOnly
from molecule_hermes.protocol.incoming import (
    MAX_INLINE_BYTES,
    MAX_TOTAL_BYTES,
    NOTHING_TO_DO,
    Attachments,
    inlined,
    without_bytes,
)
from molecule_hermes.protocol.workspace_files import WorkspaceFiles
from molecule_hermes.transports.chat.transport import ChatTransport
from molecule_hermes.turns.model import Attachment, Completed
from molecule_hermes.wire import MAX_BODY_BYTES, MAX_FILE_BYTES, Inbound
from molecule_hermes.wire import Attachment as WireAttachment
from tests.conftest import StartBridge
from tests.net.test_addresses import Resolver, local_server
from tests.protocol.test_media_types import JPEG, PDF, PNG
from tests.support.fakes import ScriptedTransport
from tests.support.peers import peer, send, state
from tests.support.serving import serve
from tests.support.waiting import until

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def told(*parts: Part) -> Message:
    return Message(message_id="m", parts=parts)


async def refusal(attachments: Attachments, *parts: Part) -> TurnFailure:
    with pytest.raises((BadRequest, TooLarge)) as refused:
        async with asyncio.timeout(20):
            await attachments.read(told(*parts))
    assert refused.value.hint
    return refused.value


@asynccontextmanager
async def serving(**handlers: Handler) -> AsyncIterator[str]:
    """A file server on loopback; yields `http://127.0.0.1:PORT`."""
    app = web.Application()
    for name, handler in handlers.items():
        app.router.add_get(f"/{name}", handler)
    async with serve(app) as url:
        yield url


async def hanging(request: web.Request) -> web.Response:
    """Never answers."""
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


def giving(body: bytes, **headers: str) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(body=body, headers={k.replace("_", "-"): v for k, v in headers.items()})

    return handler


def leading_to(*locations: str) -> Handler:
    """Redirects to the given places, one after the other."""
    left = list(locations)

    async def handler(request: web.Request) -> web.Response:
        location = left.pop(0) if len(left) > 1 else left[0]
        return web.Response(status=302, headers={"Location": location})

    return handler


def near(**given: object) -> Attachments:
    """As an operator who allows files from this machine."""
    return Attachments(addresses=PublicOnly(["127.0.0.1"]), **given)  # type: ignore[arg-type]


async def test_text_parts_are_one_text() -> None:
    text, files = await Attachments().read(told(Part(text=" a"), Part(text="b "), Part()))
    assert (text, files) == ("a\nb", ())


async def test_nothing_is_nothing_to_do() -> None:
    for empty in (None, told(), told(Part()), told(Part(text=" \n"), Part(text=""))):
        with pytest.raises(BadRequest, match=NOTHING_TO_DO):
            await Attachments().read(empty)


async def test_a_file_alone_is_something_to_do() -> None:
    assert await Attachments().read(told(Part(raw=PNG))) == (
        "",
        (Attachment("file-1.png", "image/png", PNG),),
    )


async def test_text_documents_are_put_into_the_text_under_their_names() -> None:
    python = Part(raw=b"\xef\xbb\xbfprint('````')", filename="a.py", media_type="text/x-python")
    empty = Part(raw=b"", filename="empty.txt")
    text, files = await Attachments().read(told(python, Part(text="look"), empty))
    assert files == ()
    assert text == (
        "look\n\n[Attached document: a.py (text/x-python)]\n`````\nprint('````')\n`````"
        "\n\n[Attached document: empty.txt (text/plain)]\n```\n\n```"
    )


async def test_data_parts_are_json_documents() -> None:
    named = new_data_part({"n": 1, "x": [1.5, None, True], "ü": {"a": "b"}})
    named.filename = "order.json"
    text, files = await Attachments().read(told(Part(text="see"), new_data_part([1]), named))
    assert files == ()
    assert "[Attached document: data-2.json (application/json)]" in text
    assert "[Attached document: order.json (application/json)]" in text
    block = text.rpartition("```\n{")[2].rpartition("\n```")[0]
    assert json.loads("{" + block) == {"n": 1, "x": [1.5, None, True], "ü": {"a": "b"}}
    assert '"n": 1.0' not in block


async def test_a_number_that_json_does_not_have_is_refused() -> None:
    for number in (math.nan, math.inf):
        part = Part(data=struct_pb2.Value(number_value=number))
        assert "part 1 (data)" in (await refusal(Attachments(), part)).message


async def test_a_long_text_document_is_a_file() -> None:
    long = b"x" * (MAX_INLINE_BYTES + 1)
    _, files = await Attachments().read(told(Part(raw=long, filename="long.txt")))
    assert files == (Attachment("long.txt", "text/plain", long),)
    large = new_data_part(["x" * MAX_INLINE_BYTES])
    _, (file,) = await Attachments().read(told(large))
    assert (file.name, file.media_type) == ("data-1.json", "application/json")


async def test_a_names_path_and_odd_characters_are_gone() -> None:
    for name, safe in {
        "../../etc/passwd": "passwd",
        "C:\\x\\evil.png": "evil.png",
        "a\nb\x00].png": "a_b_.png",
        "..": "file-1.png",
        ".hidden": "hidden",
        "ünï 1.png": "ünï 1.png",
        "": "file-1.png",
    }.items():
        _, (file,) = await Attachments().read(told(Part(raw=PNG, filename=name)))
        assert file.name == safe
    for name in ("x" * 500 + ".png", "漢" * 200 + ".png"):
        _, (file,) = await Attachments().read(told(Part(raw=PNG, filename=name)))
        assert file.name.endswith(".png")
        assert len(file.name.encode()) <= 120


async def test_what_is_not_what_it_is_declared_to_be_is_refused_by_name() -> None:
    failure = await refusal(
        Attachments(), Part(text="x"), Part(raw=JPEG, filename="a.png", media_type="image/png")
    )
    assert isinstance(failure, BadRequest)
    assert failure.message == "part 2 (a.png) is declared as image/png but is image/jpeg"


async def test_a_part_that_lost_its_content_is_refused() -> None:
    failure = await refusal(Attachments(), Part(filename="a.png"))
    assert failure.message == "part 1 (a.png) has no content"


async def test_limits_hold_for_each_file_for_all_and_for_their_number() -> None:
    few = Attachments(max_files=2, max_file=len(PNG))
    await few.read(told(Part(raw=PNG), Part(text="x"), Part(text="y"), Part(raw=PNG)))
    failure = await refusal(few, Part(raw=PNG), Part(raw=PNG), new_data_part({}))
    assert isinstance(failure, TooLarge)
    assert "3 files; this agent accepts 2" in failure.message
    failure = await refusal(few, Part(raw=PNG + b"x", filename="a.png"))
    assert isinstance(failure, TooLarge)
    assert f"part 1 (a.png) is larger than the {len(PNG):,} bytes" in failure.message
    large = bytes(MAX_FILE_BYTES)
    await Attachments().read(told(Part(raw=large), Part(raw=large)))
    failure = await refusal(Attachments(), Part(raw=large), Part(raw=large), Part(raw=PNG))
    assert isinstance(failure, TooLarge)
    assert "part 3" in failure.message


def test_all_that_is_taken_fits_the_wire() -> None:
    files = (WireAttachment("n" * 256, "image/png", bytes(MAX_TOTAL_BYTES // 2)),) * 2
    inbound = Inbound("c", "p", "m", "http://127.0.0.1/", "x" * 2**22, attachments=files)
    assert len(json.dumps(inbound.to_json())) < MAX_BODY_BYTES


async def test_a_transport_takes_only_its_own_types() -> None:
    chat = Attachments(ChatTransport.features)
    await chat.read(told(Part(raw=PNG), Part(raw=JPEG), Part(raw=b"text"), new_data_part({})))
    failure = await refusal(chat, Part(raw=PNG), Part(raw=PDF, filename="a.pdf"))
    assert isinstance(failure, BadRequest)
    assert "part 2 (a.pdf) is application/pdf" in failure.message
    assert "image/png" in failure.hint


async def test_a_file_is_fetched_with_its_name_and_type() -> None:
    body = b"a,b\n1,2"
    async with serving(**{"table.csv": giving(body, Content_Type="text/csv; charset=utf-8")}) as at:
        text, _ = await near().read(told(Part(url=f"{at}/table.csv?token=x")))
        assert "[Attached document: table.csv (text/csv)]" in text
        text, _ = await near().read(told(Part(url=f"{at}/table.csv", filename="mine.txt")))
        assert "[Attached document: mine.txt (text/csv)]" in text
        failure = await refusal(near(), Part(url=f"{at}/table.csv", media_type="image/png"))
        assert "is declared as image/png" in failure.message


async def test_an_error_page_is_no_image() -> None:
    page = giving(b"<html>gone</html>", Content_Type="image/png")
    async with serving(a=page) as at:
        failure = await refusal(near(), Part(url=f"{at}/a", filename="a.png"))
    assert "part 1 (a.png) is declared as image/png" in failure.message


async def test_private_addresses_are_not_fetched_from() -> None:
    async with local_server() as (port, called):
        for url in (
            f"http://127.0.0.1:{port}/",
            f"http://localhost:{port}/",
            f"http://[::ffff:127.0.0.1]:{port}/",
            "file:///etc/passwd",
            f"http://user:password@127.0.0.1:{port}/",
        ):
            failure = await refusal(Attachments(), Part(url=url, filename="x"))
            assert failure.message.startswith("part 1 (x) cannot be fetched: ")
            assert "password" not in failure.message
    assert called == []


async def test_a_redirect_to_a_private_address_is_not_followed() -> None:
    async with local_server() as (port, called):
        aims = [f"http://localhost:{port}/", f"//[::1]:{port}/", "file:///etc/passwd", "http://["]
        for aim in aims:
            async with serving(a=leading_to(aim)) as at:
                failure = await refusal(near(), Part(url=f"{at}/a"))
                assert "cannot be fetched" in failure.message
    assert called == []


async def test_a_redirect_to_a_name_of_a_private_address_is_not_followed() -> None:
    async with local_server() as (port, called):
        addresses = PublicOnly(["127.0.0.1"], Resolver("127.0.0.1"))
        async with serving(a=leading_to(f"http://example.com:{port}/")) as at:
            failure = await refusal(Attachments(addresses=addresses), Part(url=f"{at}/a"))
    assert "example.com is not a public address" in failure.message
    assert called == []


async def test_a_few_redirects_are_followed_and_no_more() -> None:
    async with serving(a=leading_to("a", "a", "a", "a", "/b"), b=giving(PNG)) as at:
        _, (file,) = await near().read(told(Part(url=f"{at}/a")))
    assert (file.name, file.data) == ("b", PNG)
    async with serving(a=leading_to("a")) as at:
        failure = await refusal(near(), Part(url=f"{at}/a"))
    assert "redirected more than 5 times" in failure.message


@pytest.mark.parametrize("length", [True, False])
async def test_a_body_over_the_limit_is_cut(length: bool) -> None:
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        if length:
            response.content_length = 2**40
        await response.prepare(request)
        while sent < 2**28:
            await response.write(bytes(2**16))
            sent += 2**16
        return response

    async with serving(a=endless) as at:
        failure = await refusal(near(max_file=1000), Part(url=f"{at}/a"))
    assert isinstance(failure, TooLarge)
    assert sent < 2**26


async def test_a_compressed_body_counts_with_what_it_becomes() -> None:
    bomb = giving(gzip.compress(bytes(2**26)), Content_Encoding="gzip")
    async with serving(a=bomb) as at:
        failure = await refusal(near(max_file=2**20), Part(url=f"{at}/a"))
    assert isinstance(failure, TooLarge)


async def test_a_slow_server_is_not_waited_for() -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x")
            await asyncio.sleep(0.05)

    async with serving(a=slow) as at:
        failure = await refusal(near(fetch_timeout=0.3), Part(url=f"{at}/a"))
    assert "takes too long" in failure.message


async def test_a_server_that_fails_is_named_in_the_failure() -> None:
    async def gone(request: web.Request) -> web.Response:
        return web.Response(status=404)

    async with serving(a=gone) as at:
        failure = await refusal(near(), Part(url=f"{at}/a"))
        assert "status 404" in failure.message
    for url in (f"{at}/a", "http://does-not-exist.invalid/", "http://" + "x" * 70 + ".invalid/"):
        failure = await refusal(near(), Part(url=url))
        assert "cannot be reached" in failure.message


async def test_a_canceled_read_stops_fetching() -> None:
    asked = asyncio.Event()

    async def silent(request: web.Request) -> web.Response:
        asked.set()
        return await hanging(request)

    attachments = near()
    async with asyncio.timeout(20), serving(a=silent) as at:
        reads = [
            asyncio.create_task(attachments.read(told(Part(url=f"{at}/a")))) for _ in range(20)
        ]
        await asked.wait()
        for read in reads:
            read.cancel()
        assert all(
            isinstance(ended, asyncio.CancelledError)
            for ended in await asyncio.gather(*reads, return_exceptions=True)
        )


async def test_peers_take_turns_with_their_urls() -> None:
    """One that names many slow servers does not keep another from its file."""
    asked: list[str] = []
    gate = asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        asked.append(request.query["of"])
        await gate.wait()
        return web.Response(body=b"x")

    attachments = near()

    def read(of: str) -> asyncio.Task[object]:
        part = Part(url=f"{at}/a?of={of}")
        return asyncio.create_task(attachments.read(told(part), of))

    async with asyncio.timeout(20), serving(a=slow) as at:
        reads = [read("flood") for _ in range(60)]
        await until(lambda: len(asked) >= 8)
        reads.append(read("other"))
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*reads)
    assert asked.index("other") < 20


async def test_more_urls_than_may_wait_are_busy() -> None:
    attachments = near()
    async with asyncio.timeout(20), serving(a=hanging) as at:
        part = Part(url=f"{at}/a")
        reads = [asyncio.create_task(attachments.read(told(part), "flood")) for _ in range(150)]
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await attachments.read(told(part), "flood")
        for task in reads:
            task.cancel()
        await asyncio.gather(*reads, return_exceptions=True)


def test_a_message_is_kept_without_its_bytes() -> None:
    full = told(
        Part(text="x"),
        Part(raw=bytes(20_000), filename="a.bin", media_type="image/png"),
        Part(raw=b"short", filename="b.bin"),
    )
    kept = without_bytes(full)
    assert len(full.parts[1].raw) == 20_000
    assert (kept.parts[0], kept.parts[2]) == (full.parts[0], full.parts[2])
    assert (kept.parts[1].raw, kept.parts[1].filename) == (b"", "a.bin")
    assert kept.parts[1].media_type == "image/png"
    assert kept.parts[1].metadata["omittedBytes"] == 20_000
    kept.role = 1
    assert to_compat_message(kept)


async def test_files_reach_the_transport_and_do_not_stay_in_the_task(bridge: StartBridge) -> None:
    transport = ScriptedTransport(Completed("seen"))
    request = message("look")
    large = PNG + bytes(20_000)
    request.message.parts.append(Part(raw=large, filename="a.png", media_type="image/png"))
    request.message.parts.append(new_data_part({"a": 1}))
    async with bridge(transport) as b, peer(b.url) as client:
        turn = await send(client, request)
        task = await client.get_task(GetTaskRequest(id=turn.task_id))
    assert turn.states[-1] == "COMPLETED"
    (seen,) = transport.turns
    assert seen.attachments == (Attachment("a.png", "image/png", large),)
    assert seen.text.startswith("look\n\n[Attached document: data-3.json")
    assert task.history[0].parts[1].metadata["omittedBytes"] == len(large)
    assert get_data_parts(task.history[0].parts) == [{"a": 1}]
    assert len(task.history) == 1
    assert len(task.SerializeToString()) < 4000


async def test_settings_bound_the_files_of_a_bridge(bridge: StartBridge) -> None:
    request = message("look")
    request.message.parts.append(Part(raw=PNG, filename="a.png"))
    async with bridge(ScriptedTransport(Completed("x")), MAX_FILE=10) as b, peer(b.url) as client:
        turn = await send(client, request)
    assert turn.states == ["SUBMITTED", "REJECTED"]
    assert turn.failure["kind"] == "too_large"
    async with serving(a=giving(PNG)) as at:
        request.message.parts[1].url = f"{at}/a"
        request.message.message_id = "one"
        transport = ScriptedTransport(Completed("x"))
        async with bridge(transport) as b, peer(b.url) as client:
            assert (await send(client, request)).states[-1] == "REJECTED"
        request.message.message_id = "another"
        async with bridge(transport, FILE_HOSTS=at[7:]) as b, peer(b.url) as client:
            assert (await send(client, request)).states[-1] == "COMPLETED"
    assert transport.turns[0].attachments[0].data == PNG


async def test_a_task_can_be_canceled_while_its_files_are_fetched(bridge: StartBridge) -> None:
    asked = asyncio.Event()

    async def silent(request: web.Request) -> web.Response:
        asked.set()
        return await hanging(request)

    request = message("look")
    transport = ScriptedTransport(Completed("never"))
    async with (
        asyncio.timeout(20),
        serving(a=silent) as at,
        bridge(transport, FILE_HOSTS="127.0.0.1") as b,
        peer(b.url) as client,
    ):
        request.message.parts.append(Part(url=f"{at}/a"))
        stream = client.send_message(request)
        first = await anext(stream)
        await asked.wait()
        ended = await client.cancel_task(CancelTaskRequest(id=first.task.id))
        await stream.aclose()
    assert state(ended) == "CANCELED"
    assert transport.turns == []


async def test_workspace_uris_are_honored_only_with_a_workspace(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("a quince")
    part = Part(url="workspace:/notes.txt")
    refused = await refusal(Attachments(), part)
    assert isinstance(refused, BadRequest)
    assert "quince" not in str(refused)
    text, _ = await Attachments(workspace=WorkspaceFiles(tmp_path)).read(told(part))
    assert "notes.txt (text/plain)" in text
    assert "a quince" in text


async def test_files_of_the_workspace_have_the_same_bounds(tmp_path: Path) -> None:
    (tmp_path / "large.bin").write_bytes(b"\0" * 11)
    workspace = WorkspaceFiles(tmp_path)
    part = Part(url="workspace:/large.bin")
    assert isinstance(await refusal(Attachments(workspace=workspace, max_file=10), part), TooLarge)
    assert isinstance(await refusal(Attachments(workspace=workspace, max_files=0), part), TooLarge)
    _, (file,) = await Attachments(workspace=workspace, max_file=11).read(told(part))
    assert (file.name, len(file.data)) == ("large.bin", 11)


async def test_a_peer_of_a_bridge_reads_no_files_unless_the_operator_says_so(
    bridge: StartBridge, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("a quince")
    file = Part(url="workspace:/notes.txt")
    for variables, state_name in (({}, "REJECTED"), ({"WORKSPACE": tmp_path}, "COMPLETED")):
        transport = ScriptedTransport(Completed("ok"))
        async with bridge(transport, **variables) as b, peer(b.url) as client:
            turn = await send(client, message("read", files=[file]))
        assert turn.states[-1] == state_name
        assert any("a quince" in turn.text for turn in transport.turns) is bool(variables)


def test_inlining_nothing_changes_nothing() -> None:
    assert inlined("text", []) == "text"


_names = st.text(max_size=20)
_types = st.text(max_size=20) | st.sampled_from(
    ["image/png", "text/plain", "application/json", "application/pdf", "audio/ogg", "video/mp4"]
)
_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def _as_value(value: object) -> struct_pb2.Value:
    match value:
        case None:
            return struct_pb2.Value(null_value=struct_pb2.NULL_VALUE)
        case bool():
            return struct_pb2.Value(bool_value=value)
        case float():
            return struct_pb2.Value(number_value=value)
        case str():
            return struct_pb2.Value(string_value=value)
        case list():
            values = [_as_value(item) for item in value]
            return struct_pb2.Value(list_value=struct_pb2.ListValue(values=values))
        case dict():
            fields = {key: _as_value(item) for key, item in value.items()}
            return struct_pb2.Value(struct_value=struct_pb2.Struct(fields=fields))
    raise AssertionError(value)


_no_halves = st.characters(exclude_categories=["Cs"])
_parts = st.one_of(
    st.builds(Part, text=st.text(_no_halves)),
    st.builds(
        Part,
        raw=st.binary(max_size=200) | st.sampled_from([PNG, PDF]),
        filename=st.text(_no_halves, max_size=20),
        media_type=_types.filter(str.isascii),
    ),
    st.builds(
        Part,
        url=st.text(_no_halves, max_size=30) | st.from_regex(r"http://127\.0\.0\.1:1/[a-z]*"),
        filename=st.text(_no_halves, max_size=20),
    ),
    st.builds(lambda value: Part(data=_as_value(value)), _values),
    st.builds(Part, filename=st.text(_no_halves, max_size=20)),
)


@given(st.lists(_parts, max_size=5))
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
async def test_any_message_is_read_or_refused_as_documented(parts: list[Part]) -> None:
    attachments = Attachments(
        addresses=PublicOnly(resolver=Resolver("127.0.0.1")), max_files=4, max_file=150
    )
    try:
        text, files = await attachments.read(told(*parts))
    except (BadRequest, TooLarge) as refused:
        assert refused.message
        assert refused.hint
        return
    assert text or files
    for file in files:
        wired = WireAttachment(file.name, file.media_type, file.data)
        assert WireAttachment.parse(wired.to_json()) == wired
    text.encode()
