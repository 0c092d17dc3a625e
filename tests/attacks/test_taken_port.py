"""A tool that kills Hermes and takes its port for a while takes it from nobody for good."""

from __future__ import annotations

import asyncio
from pathlib import Path

from molecule_hermes.errors import Unreachable
from molecule_hermes.hermes.process import Gateway
from tests.hermes.test_process import DIES, gateway
from tests.support.waiting import until

# The first life serves until it is killed. The others find the port taken.
STAYS_DEAF = "import time; time.sleep(60)"
EXITS = (
    f"import os, time; os.path.exists('once') and exec({DIES!r}); open('once', 'w'); time.sleep(60)"
)


class Port:
    """Serves while it is not taken."""

    taken = False

    async def check(self) -> None:
        if self.taken:
            raise Unreachable("somebody else has the port")


async def until_lives(running: Gateway, lives: int) -> None:
    while running.restarts < lives or running.pid is None:
        assert running._supervisor is not None
        assert not running._supervisor.done()
        await asyncio.sleep(0.02)


async def kill_and_take(running: Gateway, port: Port) -> None:
    await until(lambda: running._has_served)
    port.taken = True
    assert running._process is not None
    running._process.kill()


async def test_a_hermes_that_runs_without_its_port_is_started_again(tmp_path: Path) -> None:
    port = Port()
    made = gateway(tmp_path, STAYS_DEAF, start_timeout=0.5, max_restarts=0)
    made.watch(port.check)
    async with made as running, asyncio.timeout(20):
        await kill_and_take(running, port)
        await until_lives(running, 2)
        port.taken = False
        deaf = running.pid
        await asyncio.sleep(1.0)
        assert running.pid == deaf


async def test_a_hermes_that_served_and_now_cannot_start_does_not_end_it(tmp_path: Path) -> None:
    port = Port()
    made = gateway(tmp_path, EXITS, max_restarts=0)
    made.watch(port.check)
    async with made as running, asyncio.timeout(20):
        await until((made.home.path / "once").exists)
        await kill_and_take(running, port)
        await until_lives(running, 2)
