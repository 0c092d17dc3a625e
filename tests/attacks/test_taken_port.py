"""A tool that kills Hermes and takes its port for a while does not stop Hermes for good."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from molecule_hermes.backoff import Backoff
from molecule_hermes.errors import Unreachable
from molecule_hermes.hermes.process import Gateway
from tests.hermes.test_process import DIES, gateway
from tests.support.waiting import until

# The first process serves until it is killed. The later ones find the port taken.
STAYS_DEAF = "import time; time.sleep(60)"
EXITS = (
    f"import os, time; os.path.exists('once') and exec({DIES!r}); open('once', 'w'); time.sleep(60)"
)
START_TIMEOUT = 1.0
SOON = Backoff(first=0.05, longest=0.1)


class Port:
    """Answers the gateway's check while it is not taken."""

    def __init__(self) -> None:
        self.taken = False
        self.served = asyncio.Event()

    async def check(self) -> None:
        if self.taken:
            raise Unreachable("another process has the port")
        self.served.set()


async def kill_and_take(running: Gateway, port: Port) -> None:
    await asyncio.wait_for(port.served.wait(), 20)
    port.taken = True
    port.served.clear()
    assert running.pid is not None
    os.kill(running.pid, signal.SIGKILL)


async def until_restarted(running: Gateway, times: int) -> None:
    """Waits for that many restarts; fails when the gateway is given up instead."""
    given_up = asyncio.create_task(running.failed())
    try:
        await until(lambda: given_up.done() or running.restarts >= times)
        assert not given_up.done()
    finally:
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)


async def test_a_hermes_that_runs_without_its_port_is_restarted(tmp_path: Path) -> None:
    port = Port()
    made = gateway(tmp_path, STAYS_DEAF, start_timeout=START_TIMEOUT, max_restarts=0, backoff=SOON)
    made.watch(port.check)
    async with made as running:
        await kill_and_take(running, port)
        await until_restarted(running, 2)
        port.taken = False
        await asyncio.wait_for(port.served.wait(), 20)
        restarts = running.restarts
        await asyncio.sleep(START_TIMEOUT * 1.2)  # a process that serves is not killed for it
        assert running.restarts == restarts


async def test_a_hermes_that_has_served_is_restarted_however_often_it_fails(tmp_path: Path) -> None:
    port = Port()
    made = gateway(tmp_path, EXITS, max_restarts=0, backoff=SOON)
    made.watch(port.check)
    async with made as running:
        await until((made.home.path / "once").exists)
        await kill_and_take(running, port)
        await until_restarted(running, 3)
