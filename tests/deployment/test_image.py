"""The image, built and run. Needs `pytest --image`, as CI runs it."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path
from threading import Timer

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "smoke-image"


@pytest.mark.image
def test_the_image_passes_its_smoke_test(capsys: pytest.CaptureFixture[str]) -> None:
    """What it prints is shown while it runs: it takes minutes. Parallel tests show it if it
    fails."""
    # pip may need the user's own settings.
    environ = os.environ | {"HOME": pwd.getpwuid(os.getuid()).pw_dir}
    said = []
    with subprocess.Popen(
        [sys.executable, "-u", SCRIPT],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as running:
        assert running.stdout is not None
        limit = Timer(800, running.terminate)
        limit.start()
        try:
            for line in running.stdout:
                said.append(line)
                with capsys.disabled():
                    sys.stdout.write(line)
                    sys.stdout.flush()
        finally:
            limit.cancel()
            running.terminate()
    assert running.returncode == 0, "".join(said)
