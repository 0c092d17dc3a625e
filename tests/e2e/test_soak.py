"""A short run of `scripts/soak`."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


async def test_a_twenty_second_soak_with_a_killed_hermes_adds_up() -> None:
    ended = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "soaking", "0.33", "--peers", "3"],
        cwd=ROOT / "scripts",
        env=dict(os.environ) | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Hermes killed 0 times" not in ended.stdout.splitlines()[-3]
    assert "all counts agree" in ended.stdout
