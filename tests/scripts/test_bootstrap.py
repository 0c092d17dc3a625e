"""`scripts/bootstrap`, with a stand-in for Python that only writes down what it is asked."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = """#!/bin/sh
echo "$*" >>"$CALLS"
case "$*" in
  "-c import pip") exec test -e .venv/pip ;;
  "-m venv .venv")
    mkdir -p .venv/bin && cp "$0" .venv/bin/python && touch .venv/pip
    echo "command = $0 -m venv $(pwd -P)/.venv" >.venv/pyvenv.cfg ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "check out"
    (folder / "scripts").mkdir(parents=True)
    for name in ("scripts/bootstrap", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder / name)
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    return folder


def bootstrap(checkout: Path) -> list[str]:
    """What was asked of Python."""
    calls = checkout.parent / "calls"
    calls.write_text("")
    environ = dict(os.environ) | {"PYTHON": str(checkout.parent / "python"), "CALLS": str(calls)}
    subprocess.run(["scripts/bootstrap"], cwd=checkout, env=environ, timeout=60, check=True)
    return [line for line in calls.read_text().splitlines() if line.startswith("-m")]


def test_it_installs_once(checkout: Path) -> None:
    venv, install = bootstrap(checkout)
    assert venv == "-m venv .venv"
    assert install.startswith("-m pip install")
    assert bootstrap(checkout) == []


def test_it_mends_a_folder_whose_making_was_interrupted(checkout: Path) -> None:
    bootstrap(checkout)
    (checkout / ".venv/pip").unlink()
    (checkout / ".venv/.installed-run").unlink()
    assert bootstrap(checkout)[0] == "-m venv .venv"


def test_it_installs_again_in_a_checkout_that_was_moved(checkout: Path) -> None:
    bootstrap(checkout)
    moved = checkout.rename(checkout.with_name("moved"))
    assert bootstrap(moved)[0] == "-m venv .venv"
    assert bootstrap(moved) == []
