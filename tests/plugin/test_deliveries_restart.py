"""Late results while Hermes stops, and after its restart."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from molecule_hermes.wire import Origin, Push
from tests.support.deliveries import (
    assert_each_is_whole,
    call,
    delivery,
    ended_turns,
    pushes,
    take,
)
from tests.support.gateway import callback_server, running_hermes

pytestmark = pytest.mark.hermes


async def test_a_result_that_comes_while_hermes_stops_is_delivered_after_its_restart(
    tmp_path: Path,
) -> None:
    async with callback_server() as callbacks:
        async with running_hermes(tmp_path) as hermes:
            await take(hermes, callbacks)
            goal = "demo:words=8\ndemo:slow=1"
            asked = call("delegate_task", goal=goal, background=True)
            await callbacks.final(await hermes.say(callbacks, asked, chat="c"))
            # Hermes waits for this turn before it stops.
            last = await hermes.say(callbacks, "demo:words=14\ndemo:slow=1")
            await callbacks.until(lambda: callbacks.of(last))
            assert hermes.process is not None
            os.kill(hermes.process.pid, signal.SIGTERM)
            await asyncio.wait_for(hermes.process.wait(), 60)
            assert callbacks.finals(last)[0].content.endswith("word13")
        assert pushes(callbacks, "c") == []
        async with running_hermes(tmp_path) as hermes:

            async def waits() -> bool:
                return await ended_turns(hermes, "c") == 1

            # No bridge has spoken to this Hermes yet: the result waits for one.
            await hermes.until(waits, 60)
            assert pushes(callbacks, "c") == []
            await take(hermes, callbacks, "bridge-2")
            push_id = await delivery(callbacks, "c")
            # Which message it comes from is no longer known, nor who the agent is.
            push = callbacks.of(push_id)[0]
            assert push.body == Push(push_id, "background", Origin(), "background subagents")
            assert push.agent == ""
            assert "word7" in callbacks.finals(push_id)[0].content
            assert len(pushes(callbacks, "c")) == 1
            assert_each_is_whole(callbacks)
