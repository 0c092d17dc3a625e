"""`scripts/bootstrap`, mostly with a stand-in for Python that only records its arguments."""

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
    """Returns the commands that Python was run with."""
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


def test_it_repairs_a_folder_whose_creation_was_interrupted(checkout: Path) -> None:
    bootstrap(checkout)
    (checkout / ".venv/pip").unlink()
    (checkout / ".venv/.installed-run").unlink()
    assert bootstrap(checkout)[0] == "-m venv .venv"


def test_it_installs_again_in_a_checkout_that_was_moved(checkout: Path) -> None:
    bootstrap(checkout)
    moved = checkout.rename(checkout.with_name("moved"))
    assert bootstrap(moved)[0] == "-m venv .venv"
    assert bootstrap(moved) == []


def test_without_a_network_it_shows_what_pip_said_and_what_to_do(checkout: Path) -> None:
    shutil.copy(ROOT / "scripts/run", checkout / "scripts/run")
    unset = {"PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PYTHON"}
    environ = {name: value for name, value in os.environ.items() if name not in unset} | {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": "http://127.0.0.1:9/",
        "PIP_NO_CACHE_DIR": "1",
        "PIP_RETRIES": "1",
    }
    ended = subprocess.run(
        ["scripts/run"],
        cwd=checkout,
        env=environ,
        timeout=100,
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1
    assert "Connection refused" in ended.stderr
    assert "the package index cannot be reached" in ended.stderr
    assert "PIP_INDEX_URL" in ended.stderr
    assert "run the same command again" in ended.stderr
    assert not (checkout / ".venv/.installed-run").exists()


def test_any_other_failure_shows_the_last_lines_of_the_output(checkout: Path) -> None:
    python = checkout.parent / "python"
    failing = PYTHON + 'case "$*" in "-m pip"*) echo "the disk is full"; exit 1 ;; esac\n'
    python.write_text(failing)
    environ = dict(os.environ) | {"PYTHON": str(python), "CALLS": os.devnull}
    ended = subprocess.run(
        ["scripts/bootstrap"],
        cwd=checkout,
        env=environ,
        timeout=60,
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1
    assert "the disk is full" in ended.stderr
    assert "package index" not in ended.stderr
    assert "run the same command again" in ended.stderr
