"""The folders of a worker, whatever its tools have made of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from molecule_hermes.errors import StartError
from molecule_hermes.hermes.worker_folders import WorkerFolders, make_folder


def test_folders_are_for_their_owner_alone_also_after_a_tool_has_changed_their_modes(
    tmp_path: Path,
) -> None:
    folders = WorkerFolders.below(tmp_path / "worker")
    folders.create()
    for path, mode in ((folders.home, 0), (folders.work, 0o777), (folders.tmp, 0o755)):
        path.chmod(mode)
    folders.repair()
    for path in (folders.home, folders.work, folders.tmp):
        assert path.stat().st_mode & 0o777 == 0o700


def test_what_is_temporary_is_removed_and_no_link_is_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("stays")
    folders = WorkerFolders.below(tmp_path / "worker")
    folders.create()
    (folders.tmp / "folder" / "below").mkdir(parents=True)
    (folders.tmp / "folder" / "link").symlink_to(kept)
    (folders.tmp / "link").symlink_to(kept)
    os.mkfifo(folders.tmp / "pipe")
    folders.clear()
    assert list(folders.tmp.iterdir()) == []
    assert (kept / "file").read_text() == "stays"


def test_something_else_in_the_place_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").write_text("")
    for name in ("link", "file"):
        with pytest.raises(StartError, match=name):
            make_folder(tmp_path / name)
