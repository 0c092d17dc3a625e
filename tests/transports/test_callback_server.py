"""The bridge's callback server, after a restart at the same address."""

from __future__ import annotations

import httpx

from molecule_hermes.transports.plugin.callback_server import ReplyServer
from molecule_hermes.transports.plugin.replies import Replies
from molecule_hermes.wire import Callback, Delta
from tests.support.serving import free_port


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
