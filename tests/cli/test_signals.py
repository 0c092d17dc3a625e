"""What signals do to the commands that serve."""

from __future__ import annotations

import subprocess
import sys

import pytest

_COMMAND = """
import asyncio, os, signal
from molecule_hermes.cli.signals import Signals

async def main():
    with Signals() as signals:
        if {when!r} == "stops":
            with signals.on_reload(lambda: None):
                pass
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGTERM)
        await signals.wait()
        print("stopped in order")

asyncio.run(main())
"""


@pytest.mark.parametrize("when", ["starts", "stops"])
def test_a_reload_while_the_bridge_starts_or_stops_does_not_end_it(when: str) -> None:
    code = _COMMAND.format(when=when)
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.stdout == "stopped in order\n", (ended.returncode, ended.stderr)
