"""`scripts/e2e_full_chain.py`, from a wheel to the full chain, as a person runs it."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "e2e_full_chain.py"


async def test_from_a_wheel_to_a_full_chain() -> None:
    ended = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, SCRIPT],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    passed = re.search(r"^(\d+) passed, 0 failed$", ended.stdout, re.M)
    assert passed
    assert int(passed[1]) == ended.stdout.count("\nok ") >= 16
