"""The launcher imports nothing from Hermes's folder, where tools can write."""

from __future__ import annotations

import subprocess
from pathlib import Path

from molecule_hermes.hermes.process import COMMAND


def test_a_module_planted_in_the_folder_of_hermes_is_not_imported(tmp_path: Path) -> None:
    for name in ("molecule_hermes", "ctypes"):
        (tmp_path / f"{name}.py").write_text("open('planted', 'w').close()\n")
    ended = subprocess.run(
        COMMAND,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert not (tmp_path / "planted").exists()
    assert ended.returncode == 2
    assert b"no handover" in ended.stderr
