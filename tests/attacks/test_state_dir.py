"""Only the owner of STATE_DIR may read its files, whatever the umask is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from molecule_hermes.storage.state_dir import make_private
from tests.support.stack import environment, up


@pytest.fixture(autouse=True)
def umask() -> object:
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    found = [folder, *folder.rglob("*")]
    return [str(p.relative_to(folder)) for p in found if p.lstat().st_mode & 0o077]


def test_the_permissions_of_others_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    (folder / "work").mkdir(parents=True)
    (folder / "tasks.db").write_bytes(b"")
    (folder / "script").write_bytes(b"")
    (folder / "script").chmod(0o755)
    assert open_to_others(folder)
    make_private(folder)
    assert open_to_others(folder) == []
    assert (folder / "script").stat().st_mode & 0o777 == 0o700
    (folder / "later").write_bytes(b"")
    assert open_to_others(folder) == []


def test_the_target_of_a_link_in_the_folder_keeps_its_permissions(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"")
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "link").symlink_to(outside)
    make_private(folder)
    assert outside.stat().st_mode & 0o777 == 0o644


async def test_a_served_bridge_keeps_its_files_private(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    environ = environment(folder)
    async with up(environ, ready=False, command="serve") as stack:
        await stack.until_ready(False)  # no Hermes runs
        kept = {path.name for path in folder.iterdir()}
        assert "tasks.db" in kept
        # The terminal's log is the test's own file; `user` is its stand-in for a home.
        mine = {"serve.log", "user"}
        assert [name for name in open_to_others(folder) if name.split("/")[0] not in mine] == []


def test_the_folder_of_an_embedded_store_is_private(tmp_path: Path) -> None:
    """An application that opens the store without `up` or `serve` has its own umask."""
    code = (
        "import asyncio, os, pathlib, sys\n"
        "os.umask(0)\n"
        "from molecule_hermes.storage.sqlite.store import SqliteTaskStore\n"
        "async def main():\n"
        "    async with SqliteTaskStore(pathlib.Path(sys.argv[1]) / 'tasks.db'):\n"
        "        pass\n"
        "asyncio.run(main())\n"
    )
    folder = tmp_path / "embedded"
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, timeout=60)
    assert open_to_others(folder) == []
