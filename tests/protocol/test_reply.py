"""The streamed reply, with an updater that takes its time."""

from __future__ import annotations

import asyncio
from typing import Any

from molecule_hermes.protocol.reply import ReplyArtifact


class SlowUpdater:
    def __init__(self) -> None:
        self.sending = asyncio.Event()
        self.sent = ""

    async def add_artifact(self, parts: list[Any], *ids: str, **more: Any) -> None:
        if parts[0].text == "b":
            self.sending.set()
            await asyncio.sleep(0.05)
        self.sent += parts[0].text


async def test_what_is_being_sent_when_the_turn_ends_is_not_lost() -> None:
    updater = SlowUpdater()
    reply = ReplyArtifact(updater, interval=0.05)  # type: ignore[arg-type]
    async with asyncio.timeout(20):
        async with reply:
            await reply.add("a")
            await reply.add("b")
            await updater.sending.wait()
        await reply.finish("ab")
    assert updater.sent == "ab"
