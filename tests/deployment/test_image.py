"""The image, built and run. Needs `pytest --image`, as CI runs it."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "smoke-image"


@pytest.mark.image
def test_the_image_passes_its_smoke_test(capsys: pytest.CaptureFixture[str]) -> None:
    """What it prints is shown while it runs: it takes minutes."""
    # pip may need the user's own settings.
    environ = os.environ | {"HOME": pwd.getpwuid(os.getuid()).pw_dir}
    with capsys.disabled(), subprocess.Popen([sys.executable, SCRIPT], env=environ) as running:
        try:
            code = running.wait(900)
        finally:
            running.terminate()
    assert code == 0
