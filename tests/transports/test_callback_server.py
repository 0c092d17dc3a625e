"""The bridge's callback server, after a restart at the same address."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import httpx

from molecule_hermes.transports.plugin.callback_server import ReplyServer
from molecule_hermes.transports.plugin.replies import Replies
from molecule_hermes.wire import SECRET_HEADER, Callback, Delta
from tests.support.serving import free_port
from tests.support.waiting import until


async def post(url: str, seq: int) -> dict[str, object]:
    async with httpx.AsyncClient() as http:
        response = await http.post(url, json=Callback("c", "m", "text", Delta(), seq).to_json())
    answer: dict[str, object] = response.json()
    return answer


async def test_a_callback_on_its_way_to_the_bridge_before_leaves_no_gap() -> None:
    """That bridge had 4, but stored only 3."""
    port = free_port()
    async with ReplyServer(Replies(), "127.0.0.1", port) as earlier:
        pass
    replies = Replies()
    reply = replies.register("m", 3)
    async with ReplyServer(replies, "127.0.0.1", port) as server:
        assert await post(earlier.url, 5) == {"ok": True, "stale": True, "unknown": ["m"]}
        assert [await post(server.url, seq) for seq in (4, 5)] == [{"ok": True}] * 2
    assert reply.last_seq == 5


async def test_a_plugin_may_leave_out_the_query() -> None:
    replies = Replies()
    replies.register("m")
    async with ReplyServer(replies, "127.0.0.1", 0) as server:
        assert await post(server.url.partition("?")[0], 0) == {"ok": True}


async def test_connections_without_the_secret_do_not_pile_up_and_keep_nobody_out() -> None:
    replies = Replies()
    replies.register("m")
    async with (
        ReplyServer(replies, "127.0.0.1", 0, "the-secret") as server,
        httpx.AsyncClient(headers={SECRET_HEADER: "the-secret"}) as plugin,
    ):
        first = Callback("c", "m", "text", Delta(), 0).to_json()
        assert (await plugin.post(server.url, json=first)).json() == {"ok": True}
        address = urlsplit(server.url)
        strangers = [
            await asyncio.open_connection(address.hostname, address.port) for _ in range(500)
        ]
        closed = [asyncio.create_task(reader.read()) for reader, _ in strangers]
        await until(lambda: sum(task.done() for task in closed) >= 200)
        # The plugin's own connection is still there, and a new one gets through.
        second = Callback("c", "m", "text", Delta(), 1).to_json()
        answer = await plugin.post(server.url, json=second)
        assert answer.json() == {"ok": True}
        async with httpx.AsyncClient(headers={SECRET_HEADER: "the-secret"}) as another:
            third = Callback("c", "m", "text", Delta(), 2).to_json()
            assert (await another.post(server.url, json=third)).json() == {"ok": True}
        for _, writer in strangers:
            writer.close()
        await asyncio.gather(*closed, return_exceptions=True)
