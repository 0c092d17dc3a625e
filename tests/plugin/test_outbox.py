from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator

import pytest

from molecule_hermes.plugin.outbox import Outbox, Parcel
from molecule_hermes.wire import Body, Callback, Delta, File, Final, Notice, Push, Tool
from tests.support.gateway import CallbackServer, callback_server
from tests.support.serving import free_port
from tests.support.waiting import until


@pytest.fixture
async def server() -> AsyncIterator[CallbackServer]:
    async with callback_server() as running:
        yield running


class Sender:
    """The parcels of one message."""

    def __init__(self, outbox: Outbox, url: str, message: str = "m", chat: str = "c") -> None:
        self._outbox, self._url, self._message, self._chat = outbox, url, message, chat
        self._numbers: Iterator[int] = itertools.count()

    def put(self, body: Body, content: str = "") -> None:
        callback = Callback(self._chat, self._message, content, body)
        self._outbox.put(Parcel(self._url, callback, self._numbers))


async def test_callbacks_arrive_in_order_and_numbered(server: CallbackServer) -> None:
    async with Outbox(secret="s3cret") as outbox:
        sender = Sender(outbox, server.url)
        for number in range(20):
            sender.put(Notice(), str(number))
        sender.put(Final(), "done")
        await server.final("m")
    assert [c.seq for c in server.taken] == list(range(21))
    assert [c.content for c in server.taken[:20]] == [str(n) for n in range(20)]
    assert set(server.secrets) == {"s3cret"}


async def test_deltas_that_wait_are_merged_without_a_gap(server: CallbackServer) -> None:
    server.hang = asyncio.Event()
    async with Outbox() as outbox:
        sender = Sender(outbox, server.url)
        for word in ("a", "b", "c", "d"):
            sender.put(Delta(), word)
        sender.put(Tool("t", "start"))
        sender.put(Delta(), "old")
        sender.put(Delta(replace=True), "new")
        sender.put(Final(), "new")
        server.hang.set()
        await server.final("m")
    assert [(c.content, c.body.type, c.seq) for c in server.taken] == [
        ("a", "delta", 0),
        ("bcd", "delta", 1),
        ("", "tool", 2),
        ("new", "delta", 3),
        ("new", "final", 4),
    ]


async def test_a_final_is_sent_until_it_is_taken(server: CallbackServer) -> None:
    server.refuse.extend([503, 500, 502])
    async with Outbox() as outbox:
        Sender(outbox, server.url).put(Final(), "done")
        await server.final("m")


@pytest.mark.parametrize("status", [401, 307])
async def test_a_refused_callback_is_not_sent_again(server: CallbackServer, status: int) -> None:
    server.refuse.extend([status])
    async with Outbox() as outbox:
        sender = Sender(outbox, server.url)
        sender.put(Notice(), "refused")
        sender.put(Final(), "done")
        await server.final("m")
    assert [c.content for c in server.taken] == ["done"]


async def test_text_with_a_hole_is_not_continued(server: CallbackServer) -> None:
    server.refuse.extend([400])
    async with Outbox() as outbox:
        sender = Sender(outbox, server.url)
        sender.put(Delta(), "lost ")
        sender.put(Notice(), "between")
        sender.put(Delta(), "tail")
        sender.put(Notice(), "between")
        sender.put(Delta(replace=True), "all anew")
        sender.put(Notice(), "between")
        sender.put(Delta(), " and on")
        sender.put(Final(), "done")
        await server.final("m")
    deltas = [c.content for c in server.taken if isinstance(c.body, Delta)]
    assert deltas == ["all anew", " and on"]


async def test_one_dead_server_holds_up_only_its_own(server: CallbackServer) -> None:
    async with callback_server() as hung:
        hung.hang = asyncio.Event()
        async with Outbox(timeout=30) as outbox:
            nowhere = f"http://127.0.0.1:{free_port()}/"
            for number in range(200):
                Sender(outbox, hung.url, f"h{number}", f"h{number}").put(Final())
                Sender(outbox, nowhere, f"n{number}", f"n{number}").put(Final())
            Sender(outbox, server.url).put(Final(), "here")
            await server.final("m", 5)
            hung.hang.set()


async def test_a_full_lane_drops_what_passes_and_keeps_the_final() -> None:
    async with Outbox(max_parcels=5, max_file_bytes=100) as outbox:
        sender = Sender(outbox, f"http://127.0.0.1:{free_port()}/")
        for number in range(50):
            sender.put(Notice(), str(number))
            sender.put(Push(), str(number))
            sender.put(File("f", "a/b", data=bytes(40)))
        assert len(outbox) == 5
        for _ in range(8):
            sender.put(Final())
        assert len(outbox) == 9
        await outbox.close()


async def test_a_file_for_which_there_is_no_room_is_told(server: CallbackServer) -> None:
    async with Outbox(max_file_bytes=100) as outbox:
        sender = Sender(outbox, server.url)
        for name in ("a", "b"):
            sender.put(File(name, "a/b", data=bytes(60)), "a caption")
        sender.put(Final())
        await server.final("m")
        sender.put(File("c", "a/b", data=bytes(60)))
        await server.until(lambda: len(server.taken) == 4)
    first, second, _, later = server.taken
    assert isinstance(first.body, File)
    assert isinstance(second.body, Notice)
    assert second.content == "the file b was not handed over: too many files wait"
    assert isinstance(later.body, File)


async def test_closing_sends_what_is_left_but_waits_no_longer_than_told(
    server: CallbackServer,
) -> None:
    loop = asyncio.get_running_loop()
    async with Outbox() as outbox:
        for number in range(5):
            Sender(outbox, server.url, f"m{number}", f"c{number}").put(Final(), "done")
        await outbox.close(flush_for=5)
    assert len(server.taken) == 5
    async with Outbox() as outbox:
        Sender(outbox, f"http://127.0.0.1:{free_port()}/").put(Final(), "done")
        began = loop.time()
        await outbox.close(flush_for=0.3)
        assert 0.2 < loop.time() - began < 2


async def test_an_endless_failure_is_given_up() -> None:
    async with Outbox(retry_for=0.3) as outbox:
        Sender(outbox, f"http://127.0.0.1:{free_port()}/").put(Final(), "done")
        await outbox.close(flush_for=5)
        assert len(outbox) == 0


async def test_a_final_that_the_bridge_refuses_ends_the_turn_all_the_same(
    server: CallbackServer,
) -> None:
    server.refuse = [200, 400]
    async with Outbox() as outbox:
        sender = Sender(outbox, server.url)
        sender.put(Notice(), "first")
        sender.put(Final(), "x" * 100)
        callback, final = await server.final("m")
    assert (final.status, callback.content, callback.seq) == ("failed", "", 1)
    assert final.error is not None
    assert final.error.kind == "internal"


async def test_a_final_that_is_refused_for_ever_is_given_up(server: CallbackServer) -> None:
    server.refuse = [400, 401, 200]
    async with Outbox() as outbox:
        Sender(outbox, server.url).put(Final(), "x")
        await until(lambda: not len(outbox))
    assert server.refuse == [200]
