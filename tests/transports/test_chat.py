"""The chat transport against a fake Hermes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from molecule_hermes.errors import AuthFailure, Unreachable
from molecule_hermes.transports.chat.transport import MAX_BODY, MAX_TEXT, ChatTransport
from molecule_hermes.turns.model import (
    Attachment,
    Canceled,
    Completed,
    Failed,
    Notice,
    TextDelta,
    ToolProgress,
    Turn,
    TurnEvent,
    Usage,
)
from tests.support.fakes import (
    DONE,
    KEY,
    USAGE,
    FakeHermes,
    answer,
    breaking,
    chunk,
    fake_hermes,
    status,
    streaming,
    tool,
    upstream_error,
)
from tests.support.serving import free_port
from tests.support.waiting import until


def turn(text: str = "ping", context_id: str = "c", peer: str = "alice") -> Turn:
    return Turn("m-1", peer, context_id, "t-1", text)


@pytest.fixture
async def chat(hermes: FakeHermes) -> AsyncIterator[ChatTransport]:
    transport = ChatTransport(hermes.base_url, KEY, model="m")
    async with transport:
        yield transport


async def run(transport: ChatTransport, turn: Turn) -> list[TurnEvent]:
    async with asyncio.timeout(20):
        return [event async for event in transport.run(turn)]


def failure(events: list[TurnEvent]) -> str:
    assert isinstance(events[-1], Failed), events
    return events[-1].failure.kind


async def test_the_reply_streams_and_ends_with_its_usage(
    hermes: FakeHermes, chat: ChatTransport
) -> None:
    hermes.replies = [streaming(*answer("po", "ng"))]
    assert await run(chat, turn()) == [
        TextDelta("po"),
        TextDelta("ng"),
        Completed("pong", Usage(3, 2, 5)),
    ]


async def test_images_are_sent_as_parts_after_the_text(
    hermes: FakeHermes, chat: ChatTransport
) -> None:
    images = (
        Attachment("a.png", "image/png", b"\x89P"),
        Attachment("b.jpg", "image/jpeg", b"\xff"),
    )
    await run(chat, replace(turn("lök"), attachments=images))
    await run(chat, replace(turn(""), attachments=images[:1]))
    png = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVA="}}
    jpeg = {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,/w=="}}
    sent = [request["messages"][-1]["content"] for request in hermes.requests]
    assert sent == [[{"type": "text", "text": "lök"}, png, jpeg], [png]]


async def test_images_that_are_too_large_are_not_sent(
    hermes: FakeHermes, chat: ChatTransport
) -> None:
    large = Attachment("a.png", "image/png", bytes(MAX_BODY * 3 // 4))
    events = await run(chat, replace(turn(), attachments=(large,)))
    assert failure(events) == "too_large"
    assert isinstance(events[-1], Failed)
    assert "Hermes accepts 10,000,000" in events[-1].failure.message
    assert hermes.requests == []
    fits = Attachment("a.png", "image/png", bytes(MAX_BODY * 3 // 4 - 1000))
    assert isinstance((await run(chat, replace(turn(), attachments=(fits,))))[-1], Completed)


async def test_the_peer_is_told_that_a_file_cannot_be_delivered(
    hermes: FakeHermes, chat: ChatTransport
) -> None:
    hermes.replies = [streaming(*answer("Here.\n", "MEDIA:/srv/a.pdf"))]
    *_, notice, completed = await run(chat, turn())
    assert notice == Notice("files cannot be delivered over chat completions")
    assert isinstance(completed, Completed)


async def test_the_request_carries_key_model_prompt_and_conversation(
    hermes: FakeHermes, chat: ChatTransport
) -> None:
    await run(chat, replace(turn(), system_prompt="be brief"))
    assert hermes.requests[0] == {
        "model": "m",
        "stream": True,
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "ping"},
        ],
    }
    assert hermes.headers[0]["X-Hermes-Session-Id"] == turn().conversation
    await run(chat, turn())
    assert hermes.requests[1]["messages"] == [{"role": "user", "content": "ping"}]


async def test_text_before_a_tool_call_is_not_part_of_the_answer(
    hermes: FakeHermes, chat: ChatTransport
) -> None:
    hermes.replies = [
        streaming(
            chunk("Let me see."),
            tool("running", label="ls"),
            tool("completed"),
            chunk("\n\nThere "),
            chunk("it is."),
            chunk(finish="stop"),
            DONE,
        )
    ]
    assert await run(chat, turn()) == [
        TextDelta("Let me see."),
        ToolProgress("terminal", "start", "ls", call_id="c1"),
        ToolProgress("terminal", "end", call_id="c1"),
        TextDelta("There ", replace=True),
        TextDelta("it is."),
        Completed("There it is."),
    ]


async def test_a_turn_that_ends_with_a_tool_keeps_its_last_text(
    hermes: FakeHermes, chat: ChatTransport
) -> None:
    hermes.replies = [
        streaming(chunk("Done."), tool("running"), tool("completed"), chunk(finish="stop"), DONE)
    ]
    assert (await run(chat, turn()))[-1] == Completed("Done.")


async def test_keepalives_and_lines_split_anywhere_are_understood(
    hermes: FakeHermes, chat: ChatTransport
) -> None:
    flow = b": keepalive\n\n" + chunk("grüß ") + b": keepalive\n\n" + b"".join(answer("dich 🙂"))
    hermes.replies = [streaming(*(flow[i : i + 1] for i in range(len(flow))))]
    assert (await run(chat, turn()))[-1] == Completed("grüß dich 🙂", Usage(3, 2, 5))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("HTTP 401: Incorrect API key provided.", "auth"),
        ("HTTP 404: The model `x` does not exist.", "model_not_found"),
        ("HTTP 429: Rate limit reached, please slow down.", "rate_limit"),
        ("HTTP 429: You exceeded your current quota.", "quota"),
        ("HTTP 500: The server had an error.", "internal"),
        ("Context length exceeded (9 tokens). Cannot compress further.", "context_overflow"),
    ],
)
async def test_an_upstream_error_inside_a_200_is_a_failure_of_its_kind(
    hermes: FakeHermes, chat: ChatTransport, text: str, kind: str
) -> None:
    hermes.replies = [streaming(*upstream_error(text))]
    assert failure(await run(chat, turn())) == kind


@pytest.mark.parametrize(
    ("code", "kind"), [(400, "bad_request"), (404, "unreachable"), (413, "too_large")]
)
async def test_a_refused_request_names_its_reason(
    hermes: FakeHermes, chat: ChatTransport, code: int, kind: str
) -> None:
    hermes.replies = [status(code)]
    assert failure(await run(chat, turn())) == kind


async def test_an_html_error_page_does_not_reach_the_peer(
    hermes: FakeHermes, chat: ChatTransport
) -> None:
    hermes.replies = [status(502, text="<html><body><h1>Bad gateway</h1></body></html>")]
    events = await run(chat, turn())
    assert isinstance(events[-1], Failed)
    assert events[-1].failure.retryable
    assert "<" not in events[-1].failure.message


@pytest.mark.parametrize("code", [429, 503])
async def test_a_busy_hermes_is_retried_and_the_peer_is_notified(
    hermes: FakeHermes, chat: ChatTransport, code: int
) -> None:
    hermes.replies = [status(code), streaming(*answer("pong"))]
    events = await run(chat, turn())
    assert isinstance(events[0], Notice)
    assert events[-1] == Completed("pong", Usage(3, 2, 5))
    assert len(hermes.requests) == 2


@pytest.mark.parametrize(
    "pieces",
    [
        [b"data: nonsense\n\n"],
        [b"data: [1]\n\n"],
        [b'data: {"choices": ["x"]}\n\n'],
        [b"event: hermes.tool.progress\ndata: {}\n\n"],
    ],
)
async def test_junk_in_the_stream_is_an_internal_failure(
    hermes: FakeHermes, chat: ChatTransport, pieces: list[bytes]
) -> None:
    hermes.replies = [streaming(*pieces)]
    assert failure(await run(chat, turn())) == "internal"


async def test_a_response_without_an_event_stream_is_an_internal_failure(
    hermes: FakeHermes, chat: ChatTransport
) -> None:
    hermes.replies = [status(200, text="<html>hello</html>")]
    assert failure(await run(chat, turn())) == "internal"


async def test_a_reply_without_text_is_an_empty_reply(
    hermes: FakeHermes, chat: ChatTransport
) -> None:
    hermes.replies = [streaming(*answer())]
    assert failure(await run(chat, turn())) == "empty_reply"


async def test_a_stream_that_is_cut_is_interrupted_and_keeps_its_text(
    hermes: FakeHermes, chat: ChatTransport
) -> None:
    hermes.replies = [breaking(chunk("half of "))]
    events = await run(chat, turn())
    assert events[0] == TextDelta("half of ")
    assert failure(events) == "interrupted"


async def test_a_stream_that_ends_without_a_finish_is_interrupted(
    hermes: FakeHermes, chat: ChatTransport
) -> None:
    hermes.replies = [streaming(chunk("half"))]
    assert failure(await run(chat, turn())) == "interrupted"


async def test_a_text_that_hermes_would_truncate_is_not_sent(
    hermes: FakeHermes, chat: ChatTransport
) -> None:
    assert failure(await run(chat, turn("x" * (MAX_TEXT + 1)))) == "too_large"
    assert hermes.requests == []
    assert isinstance((await run(chat, turn("x" * MAX_TEXT)))[-1], Completed)


async def test_a_wrong_key_is_an_auth_failure_at_the_check_and_in_a_turn(
    hermes: FakeHermes,
) -> None:
    async with ChatTransport(hermes.base_url, "not-the-right-key") as chat:
        with pytest.raises(AuthFailure, match="API key"):
            await chat.check()
        assert failure(await run(chat, turn())) == "auth"


async def test_a_hermes_that_does_not_run_is_unreachable_at_the_check_and_in_a_turn() -> None:
    async with ChatTransport(f"http://127.0.0.1:{free_port()}/v1", KEY) as chat:
        with pytest.raises(Unreachable):
            await chat.check()
        assert failure(await run(chat, turn())) == "unreachable"


async def test_a_turn_waits_for_a_hermes_that_is_being_restarted() -> None:
    port = free_port()
    patient = ChatTransport(f"http://127.0.0.1:{port}/v1", KEY, patient=True)
    async with asyncio.timeout(20), patient as chat, aclosing(chat.run(turn())) as events:
        assert isinstance(await anext(events), Notice)
        async with fake_hermes(port):
            assert isinstance([event async for event in events][-1], Completed)


@pytest.mark.parametrize("patient", [True, False])
async def test_a_turn_is_not_retried_when_hermes_dies_before_its_first_word(
    hermes: FakeHermes, patient: bool
) -> None:
    """It may have begun to work on the message."""
    hermes.replies = [breaking_before_any_text]
    async with ChatTransport(hermes.base_url, KEY, patient=patient) as chat:
        assert failure(await run(chat, turn())) == "interrupted"
    assert len(hermes.requests) == 1


async def test_a_wrong_address_is_reported_even_if_hermes_may_come_back(hermes: FakeHermes) -> None:
    async with ChatTransport(hermes.base_url + "/elsewhere", KEY, patient=True) as chat:
        assert failure(await run(chat, turn())) == "unreachable"


async def breaking_before_any_text(
    hermes: FakeHermes, request: web.Request, body: dict[str, Any]
) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def test_a_ready_hermes_passes_the_check(chat: ChatTransport) -> None:
    await chat.check()


async def test_cancel_closes_the_stream_and_ends_the_turn(
    hermes: FakeHermes, chat: ChatTransport
) -> None:
    hermes.gate.clear()
    events = []

    async def consume() -> None:
        async for event in chat.run(turn()):
            events.append(event)

    consumer = asyncio.create_task(consume())
    async with asyncio.timeout(10):
        await until(lambda: hermes.running)
        await chat.cancel(turn())
        await consumer
        await hermes.closed_early.wait()
    assert events == [Canceled()]


async def test_closing_a_turn_early_closes_its_stream(
    hermes: FakeHermes, chat: ChatTransport
) -> None:
    async def reply(h: FakeHermes, request: object, body: object) -> object:
        response = await streaming(chunk("a"))(h, request, body)  # type: ignore[arg-type]
        await asyncio.Event().wait()
        return response

    hermes.replies = [reply]  # type: ignore[list-item]
    async with asyncio.timeout(10):
        async with aclosing(chat.run(turn())) as events:
            assert await anext(events) == TextDelta("a")
        await hermes.closed_early.wait()


async def test_no_repr_shows_the_key(chat: ChatTransport) -> None:
    assert KEY not in repr(chat)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(
    hermes: FakeHermes, chat: ChatTransport, status: int
) -> None:
    async def redirect(hermes: FakeHermes, request: web.Request, body: Any) -> web.Response:
        return web.Response(status=status, headers={"Location": f"{hermes.base_url}/elsewhere"})

    hermes.replies = [redirect, streaming(*answer("pong"))]
    assert failure(await run(chat, turn())) == "unreachable"
    assert len(hermes.requests) == 1
    assert (await run(chat, turn()))[-1] == Completed("pong", Usage(3, 2, 5))


async def test_a_cancel_that_comes_before_anything_was_sent_ends_the_turn(
    hermes: FakeHermes, chat: ChatTransport
) -> None:
    hermes.gate.clear()
    events = chat.run(turn())
    first = asyncio.create_task(anext(events))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await chat.cancel(turn())
    async with asyncio.timeout(20):
        assert await first == Canceled()
    await events.aclose()
    assert chat.pending == 0


@pytest.mark.parametrize("status", [401, 413, 429, 500, 503])
async def test_a_refusal_counts_even_if_its_body_is_cut(status: int) -> None:
    answers = 0

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal answers
        answers += 1
        await reader.readuntil(b"\r\n\r\n")
        if answers == 1:
            writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: 200\r\n\r\n{{}}".encode())
        else:
            kind = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            writer.write(kind + b"Connection: close\r\n\r\n" + b"".join(answer("pong")))
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        async with ChatTransport(url, KEY) as chat:
            events = await run(chat, turn())
    if status in (429, 503):
        assert events[-1] == Completed("pong", Usage(3, 2, 5))
    else:
        assert failure(events) == {401: "auth", 413: "too_large", 500: "internal"}[status]


@pytest.mark.parametrize(
    "pieces", [upstream_error("HTTP 401: no"), [chunk(finish="stop", usage=USAGE), DONE]]
)
async def test_a_turn_that_fails_has_the_usage_that_hermes_reports(
    hermes: FakeHermes, chat: ChatTransport, pieces: list[bytes]
) -> None:
    hermes.replies = [streaming(*pieces)]
    (last,) = await run(chat, turn())
    assert isinstance(last, Failed)
    assert last.usage == Usage(3, 2, 5)


async def test_toolsets_are_refused_unless_hermes_itself_holds_them(hermes: FakeHermes) -> None:
    limited = replace(turn(), toolsets=("web",))
    async with ChatTransport(hermes.base_url, KEY) as chat:
        (end,) = await run(chat, limited)
        assert isinstance(end, Failed)
        assert end.failure.kind == "bad_request"
        assert hermes.requests == []
    async with ChatTransport(hermes.base_url, KEY, holds_toolsets=True) as chat:
        assert isinstance((await run(chat, limited))[-1], Completed)
