"""The environments of clients: installed once, and a failure shows its reason."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.clients.environments import install_once, run_with_progress


def test_an_environment_is_installed_once_for_a_list_of_packages(tmp_path: Path) -> None:
    requirements = tmp_path / "requirements.txt"
    folder = tmp_path / "environment"
    installed: list[str] = []

    def install() -> None:
        assert list(folder.iterdir()) == []
        installed.append(requirements.read_text())
        (folder / "package").touch()

    for wanted in ("a==1", "a==1", "a==2"):
        requirements.write_text(wanted)
        install_once(folder, requirements, install)
    assert installed == ["a==1", "a==2"]


def test_an_interrupted_installation_is_done_again(tmp_path: Path) -> None:
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("a==1")
    folder = tmp_path / "environment"

    def interrupted() -> None:
        (folder / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        install_once(folder, requirements, interrupted)
    install_once(folder, requirements, (folder / "package").touch)
    assert {path.name for path in folder.iterdir()} == {"package", ".installed"}


def test_a_failed_installation_shows_what_the_installer_printed() -> None:
    argv = [sys.executable, "-c", "print('no such version'); exit(1)"]
    with pytest.raises(RuntimeError, match=r"installing a failed:\nno such version"):
        run_with_progress("installing a", argv)
