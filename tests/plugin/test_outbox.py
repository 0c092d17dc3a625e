"""The plugin's outbox: order, retries and bounds of callbacks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from molecule_hermes.backoff import Backoff
from molecule_hermes.plugin.journal import Journals
from molecule_hermes.plugin.outbox import Outbox
from molecule_hermes.transports.plugin.replies import Replies
from molecule_hermes.turns.model import Completed, TextDelta, ToolProgress
from molecule_hermes.wire import Body, Callback, Delta, File, Final, Notice, Reasoning, Tool
from tests.support.gateway import CallbackServer, callback_server
from tests.support.serving import free_port, serve
from tests.support.waiting import until


@pytest.fixture
async def server() -> AsyncIterator[CallbackServer]:
    async with callback_server() as running:
        yield running


class Sender:
    """Queues the callbacks of one message."""

    def __init__(self, outbox: Outbox, url: str, message: str = "m", chat: str = "c") -> None:
        self._outbox, self._message, self._chat = outbox, message, chat
        self.journal = outbox.journals.begin(message, chat, url)

    def put(self, body: Body, content: str = "") -> None:
        self._outbox.put(self.journal, Callback(self._chat, self._message, content, body))


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
        sender.put(Delta(), "a")
        await server.arrived.wait()
        for word in ("b", "c", "d"):
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


async def test_reasoning_that_waits_is_merged_and_kept_apart_from_the_text(
    server: CallbackServer,
) -> None:
    server.hang = asyncio.Event()
    async with Outbox() as outbox:
        sender = Sender(outbox, server.url)
        sender.put(Notice(), "a")
        await server.arrived.wait()
        for word in ("b", "c"):
            sender.put(Reasoning(), word)
        sender.put(Delta(), "d")
        sender.put(Reasoning(), "e")
        sender.put(Final(), "d")
        server.hang.set()
        await server.final("m")
    assert [(c.content, c.body.type) for c in server.taken[1:]] == [
        ("bc", "reasoning"),
        ("d", "delta"),
        ("e", "reasoning"),
        ("d", "final"),
    ]


async def test_a_gap_is_remembered_until_the_final_even_if_the_queue_was_empty(
    server: CallbackServer,
) -> None:
    server.refuse.extend([400])
    async with Outbox() as outbox:
        sender = Sender(outbox, server.url)
        sender.put(Delta(), "lost ")
        await until(lambda: len(outbox) == 0)
        sender.put(Delta(), "tail")
        await until(lambda: len(outbox) == 0)
        sender.put(Final(), "lost tail")
        await server.final("m")
    assert [c.body.type for c in server.taken] == ["final"]


async def test_a_single_callback_is_posted_by_itself_and_several_as_a_batch(
    server: CallbackServer,
) -> None:
    server.hang = asyncio.Event()
    async with Outbox() as outbox:
        sender, other = Sender(outbox, server.url), Sender(outbox, server.url, "m2", "c2")
        sender.put(Notice(), "alone")
        await server.arrived.wait()
        for number in range(200):
            sender.put(Tool("t", "start", str(number)))
            other.put(Tool("t", "start", str(number)))
        sender.put(Final(), "done")
        server.hang.set()
        await server.final("m")
    assert server.bodies[0]["content"] == "alone"
    sizes = [len(body["batch"]) for body in server.bodies[1:]]
    assert sizes == [256, 145]
    # Chats take turns, so that one with a long queue does not hold up another.
    assert [item["reply_to"] for item in server.bodies[1]["batch"]] == ["m", "m2"] * 128


async def test_2000_callbacks_need_few_requests(server: CallbackServer) -> None:
    async with Outbox() as outbox:
        sender = Sender(outbox, server.url)
        for number in range(1000):
            sender.put(Delta(), f"word{number} ")
            sender.put(Tool("t", "start"))
            await asyncio.sleep(0)
        sender.put(Final(), "done")
        await server.final("m")
    assert [c.seq for c in server.taken] == list(range(2001))
    assert server.requests < 200


async def test_large_callbacks_do_not_share_a_batch(server: CallbackServer) -> None:
    async with Outbox() as outbox:
        sender = Sender(outbox, server.url)
        for _ in range(4):
            sender.put(File("f", "a/b", data=bytes(700_000)))
        sender.put(Final())
        await server.final("m")
    assert server.requests == 4


class LossyBridge:
    """Takes callbacks as the bridge does, but fails requests, before or after it took them."""

    def __init__(self, seed: int) -> None:
        self.replies = Replies()
        self._random = random.Random(seed)

    async def handle(self, request: web.Request) -> web.Response:
        callbacks = Callback.parse_batch(await request.read())
        fate = self._random.choice(["ok", "ok", "unavailable", "lost answer"])
        if fate != "unavailable":
            for callback in callbacks:
                self.replies.take(callback)
        return web.json_response({"ok": fate == "ok"}, status=200 if fate == "ok" else 503)


@pytest.mark.parametrize("seed", range(4))
async def test_every_callback_arrives_once_and_in_order_whatever_requests_fail(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("molecule_hermes.plugin.outbox._BATCH", 16)
    monkeypatch.setattr("molecule_hermes.plugin.outbox._BACKOFF", Backoff(0.001, 0.01))
    bridge = LossyBridge(seed)
    app = web.Application()
    app.router.add_post("/", bridge.handle)
    names = [f"m{number}" for number in range(5)]
    async with serve(app) as url, Outbox() as outbox:
        pending = [bridge.replies.register(name) for name in names]
        senders = [Sender(outbox, f"{url}/", name, name) for name in names]
        for number in range(40):
            for sender in senders:
                sender.put(Delta(), f"{number} ")
                sender.put(Tool("t", "start", str(number)))
            await asyncio.sleep(0)
        for sender in senders:
            sender.put(Final(), "done")
        for reply in pending:
            events = [await asyncio.wait_for(reply.next(), 30) for _ in range(81)]
            texts = [event.text for event in events if isinstance(event, TextDelta)]
            previews = [event.preview for event in events if isinstance(event, ToolProgress)]
            assert texts == [f"{number} " for number in range(40)]
            assert previews == [str(number) for number in range(40)]
            assert events[-1] == Completed("done")


async def test_a_final_is_sent_until_it_is_taken(server: CallbackServer) -> None:
    server.refuse.extend([503, 500, 502])
    async with Outbox() as outbox:
        Sender(outbox, server.url).put(Final(), "done")
        await server.final("m")


@pytest.mark.parametrize("status", [401, 307, 404])
async def test_a_server_that_is_not_the_bridge_loses_nothing(
    server: CallbackServer, status: int
) -> None:
    server.refuse.extend([status, status])
    async with Outbox() as outbox:
        sender = Sender(outbox, server.url)
        sender.put(Notice(), "first")
        await server.arrived.wait()
        sender.put(Final(), "done")
        await server.final("m")
    assert [c.content for c in server.taken] == ["first", "done"]


@pytest.mark.parametrize("said", [{"stale": True}, {"stale": True, "unknown": ["m"]}])
async def test_a_bridge_that_does_not_know_the_message_gets_no_more_until_one_attaches(
    server: CallbackServer, said: dict[str, Any]
) -> None:
    server.says = said
    async with Outbox() as outbox, callback_server() as other:
        sender = Sender(outbox, server.url)
        sender.put(Notice(), "first")
        await until(lambda: not sender.journal.url)
        sender.put(Final(), "done")
        assert len(server.taken) == 1
        assert not sender.journal.acknowledged
        outbox.attach(sender.journal, other.url, -1)
        await other.final("m")
        assert [(c.content, c.seq) for c in other.taken] == [("first", 0), ("done", 1)]
        await until(lambda: sender.journal.acknowledged)


async def test_messages_that_a_bridge_knows_go_on_beside_one_that_it_does_not(
    server: CallbackServer,
) -> None:
    server.hang = asyncio.Event()
    server.says = {"unknown": ["other"]}
    async with Outbox() as outbox:
        sender, other = Sender(outbox, server.url), Sender(outbox, server.url, "other", "c2")
        sender.put(Notice(), "under way")
        await server.arrived.wait()
        sender.put(Notice(), "more")
        other.put(Notice(), "more")
        server.hang.set()
        await until(lambda: not other.journal.url)
        sender.put(Final(), "done")
        other.put(Final(), "done")
        await server.final("m")
    assert not server.finals("other")


async def test_an_answer_to_the_bridge_before_no_longer_counts(server: CallbackServer) -> None:
    server.hang = asyncio.Event()
    server.says = {"stale": True}
    async with Outbox() as outbox, callback_server() as other:
        sender = Sender(outbox, server.url)
        sender.put(Notice(), "first")
        await server.arrived.wait()
        outbox.attach(sender.journal, other.url, -1)
        server.hang.set()
        await server.until(lambda: server.taken)
        sender.put(Final(), "done")
        await other.final("m")
    assert [c.seq for c in other.taken] == [0, 1]


async def test_a_bridge_that_comes_back_need_not_wait_for_the_next_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("molecule_hermes.plugin.outbox._BACKOFF", Backoff(3600, 3600))
    async with Outbox() as outbox:
        sender = Sender(outbox, f"http://127.0.0.1:{free_port()}/")
        sender.put(Final(), "done")
        await until(lambda: outbox._failures.get("m"))
        async with callback_server() as server:
            outbox.attach(sender.journal, server.url, -1)
            await server.final("m", 5)


async def test_only_the_invalid_callback_of_a_refused_batch_is_lost(
    server: CallbackServer,
) -> None:
    # The batch, then the second of its callbacks.
    server.refuse.extend([400, 200, 400])
    async with Outbox() as outbox:
        sender = Sender(outbox, server.url)
        for text in ("first", "at fault", "third"):
            sender.put(Notice(), text)
        sender.put(Final(), "done")
        await server.final("m")
    assert [(c.content, c.seq) for c in server.taken] == [("third", 2), ("done", 3)]


async def test_text_with_a_gap_is_not_continued(server: CallbackServer) -> None:
    # The batch, then the first of its callbacks.
    server.refuse.extend([400, 400])
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


async def test_a_server_that_hangs_does_not_delay_others(server: CallbackServer) -> None:
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


async def test_closing_sends_what_is_left_within_its_time(
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


async def test_a_final_that_the_bridge_refuses_is_replaced_by_a_failure(
    server: CallbackServer,
) -> None:
    # The batch, then the second of its callbacks.
    server.refuse = [400, 200, 400]
    async with Outbox() as outbox:
        sender = Sender(outbox, server.url)
        sender.put(Notice(), "first")
        sender.put(Final(), "x" * 100)
        callback, final = await server.final("m")
    assert (final.status, callback.content, callback.seq) == ("failed", "", 1)
    assert final.error is not None
    assert final.error.kind == "internal"


async def test_a_final_that_is_always_refused_is_given_up(server: CallbackServer) -> None:
    server.refuse = [400, 400, 200]
    async with Outbox() as outbox:
        Sender(outbox, server.url).put(Final(), "x")
        await until(lambda: not len(outbox))
    assert server.refuse == [200]


async def test_a_callback_that_fails_does_not_hold_up_other_chats() -> None:
    taken: list[str] = []

    async def reply(request: web.Request) -> web.Response:
        callbacks = Callback.parse_batch(await request.read())
        if any(callback.chat_id == "bad" for callback in callbacks):
            return web.Response(status=500)
        taken.extend(callback.chat_id for callback in callbacks)
        return web.json_response({"ok": True})

    app = web.Application()
    app.router.add_post("/", reply)
    async with serve(app) as url, Outbox() as outbox:
        for chat in ("bad", "a", "b"):
            Sender(outbox, url, message=chat, chat=chat).put(Final(), "done")
        await until(lambda: set(taken) == {"a", "b"})
        Sender(outbox, url, message="later", chat="later").put(Final(), "done")
        await until(lambda: "later" in taken)
        assert len(outbox) == 1


async def test_text_is_not_added_to_a_delta_that_may_have_arrived(server: CallbackServer) -> None:
    server.refuse.extend([500, 500])
    async with Outbox() as outbox:
        sender = Sender(outbox, server.url)
        sender.put(Delta(), "a")
        await until(lambda: len(server.refuse) < 2)
        sender.put(Delta(), "b")
        sender.put(Final(), "ab")
        await server.final("m")
    assert [(c.content, c.seq) for c in server.taken] == [("a", 0), ("b", 1), ("ab", 2)]


async def test_a_message_that_was_forgotten_for_want_of_room_is_not_retried_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("molecule_hermes.plugin.outbox._BACKOFF", Backoff(first=0.01, longest=0.01))
    async with Outbox(Journals(max_bytes=10_000)) as outbox:
        url = f"http://127.0.0.1:{free_port()}/"
        senders = [Sender(outbox, url, f"m{number}") for number in range(50)]
        for sender in senders:
            sender.put(Final(), "x" * 1000)
        kept = len(outbox.journals)
        assert kept < 10
        await until(lambda: len(outbox._lane_of) == kept)
        senders[0].put(Notice(), "y" * 1000)
        assert senders[0].journal.size < 2000
