"""A peer whose agent keeps killing its own Hermes does not stop it for other peers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from tests.support.peers import ask, peer
from tests.support.stack import environment, up
from tests.support.waiting import until

pytestmark = pytest.mark.hermes

MALLORY, BOB = "mallory-token-0123456789", "bob-token-0123456789"
# The shell's nearest ancestor that is a gateway. The brackets keep it from matching itself.
KILL = (
    "demo:run P=$PPID; while ! grep -aq 'gatew[a]y' /proc/$P/cmdline; "
    "do P=$(sed -n 's/^PPid:[^0-9]*//p' /proc/$P/status); done; kill -9 $P"
)
TIMES = 2
"""One more than `up` restarts a Hermes that dies by itself."""


@pytest.mark.parametrize("isolation", ["shared", "peer"])
async def test_hermes_killed_by_its_tools_comes_back_for_the_others(
    tmp_path: Path, isolation: str
) -> None:
    environ = environment(
        tmp_path,
        MOLECULE_HERMES_PEER_TOKENS=f"mallory:{MALLORY},bob:{BOB}",
        MOLECULE_HERMES_MAX_RESTARTS="1",
        MOLECULE_HERMES_ISOLATION=isolation,
    )
    config = tmp_path / "hermes" / "config.yaml"
    config.parent.mkdir()
    config.write_text("approvals: {mode: 'off'}\n")
    async with (
        up(environ) as stack,
        peer(stack.url, token=MALLORY) as mallory,
        peer(stack.url, token=BOB) as bob,
        asyncio.timeout(240),
    ):
        await ask(bob, "hello")
        of_bob = stack.hermes_pid("bob") if isolation == "peer" else None
        for _ in range(TIMES):
            turn = await ask(mallory, KILL)
            assert turn.failure["kind"] == "interrupted"
        mine = await ask(bob, "demo:say still here")
        assert mine.text == "still here"
        assert stack.process.returncode is None
        assert of_bob is None or stack.hermes_pid("bob") == of_bob
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {BOB}"}) as http:

            async def all_counted() -> bool:
                """A Hermes of Bob's own answers him before the other is back."""
                figures = (await http.get(stack.url + "/metrics")).text
                return f"molecule_hermes_hermes_restarts {float(TIMES)}" in figures

            await until(all_counted)
