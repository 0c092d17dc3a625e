"""Reading files below a folder that names from outside must not leave."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.confined_files import (
    ConfinedFileError,
    OversizedFileError,
    read_below,
    read_part,
    read_regular,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "file.txt").write_bytes(b"content")
    (tmp_path / "secret.txt").write_bytes(b"secret")
    return folder


@pytest.mark.parametrize("name", ["a/b/file.txt", "/a/b/file.txt", "a/../a/./b/file.txt"])
def test_a_file_inside_is_read(folder: Path, name: str) -> None:
    assert read_below(folder, name, 7) == b"content"


def test_links_are_followed_inside_only(folder: Path, tmp_path: Path) -> None:
    (folder / "near").symlink_to("a/b")
    (folder / "far").symlink_to(tmp_path)
    (folder / "absolute").symlink_to(tmp_path / "secret.txt")
    (folder / "loop").symlink_to("loop")
    assert read_below(folder, "near/file.txt", 7) == b"content"
    for name in ("far/secret.txt", "absolute", "loop"):
        with pytest.raises(ConfinedFileError):
            read_below(folder, name, 100)


@pytest.mark.parametrize(
    "name",
    [
        "../secret.txt",
        "a/../../secret.txt",
        "../missing.txt",
        "../folder/a/b/file.txt",
        "a\0b",
        "a/" * 2_000_000,
    ],
)
def test_a_name_outside_tells_nothing_about_what_is_there(folder: Path, name: str) -> None:
    with pytest.raises(ConfinedFileError, match="not inside the folder"):
        read_below(folder, name, 100)


def test_only_regular_files_are_read(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    for name in ("pipe", "a", "", "missing", "a/b/file.txt/more"):
        with pytest.raises(ConfinedFileError):
            read_below(folder, name, 100)


@pytest.mark.skipif(sys.platform != "linux", reason="counts in /proc")
def test_what_is_not_a_file_is_closed_again(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for name in ("a", "", "pipe") * 10:
        with pytest.raises(ConfinedFileError):
            read_below(folder, name, 100)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_sparse_file_of_a_terabyte_is_refused_at_once(folder: Path) -> None:
    with (folder / "sparse").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(OversizedFileError):
        read_below(folder, "sparse", 1000)


def test_a_large_file_is_refused(folder: Path) -> None:
    with pytest.raises(OversizedFileError):
        read_below(folder, "a/b/file.txt", 6)


def test_a_link_that_is_swapped_in_meanwhile_does_not_lead_outside(
    folder: Path, tmp_path: Path
) -> None:
    inside, stop = folder / "swapped", threading.Event()
    (tmp_path / "file.txt").write_bytes(b"secret")

    def swap() -> None:
        targets = [str(tmp_path), "a/b"]
        while not stop.is_set():
            for target in targets:
                spare = folder / "spare"
                spare.symlink_to(target)
                spare.rename(inside)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        for _ in range(500):
            with contextlib.suppress(ConfinedFileError):
                assert read_below(folder, "swapped/file.txt", 100) == b"content"
    finally:
        stop.set()
        swapping.join()


@given(name=st.text())
def test_any_name_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    folder = tmp_path_factory.getbasetemp()
    with contextlib.suppress(ConfinedFileError):
        read_below(folder, name, 10)


def test_a_file_that_became_a_pipe_or_too_large_is_refused_and_never_waited_for(
    tmp_path: Path,
) -> None:
    pipe, large = tmp_path / "pipe", tmp_path / "large"
    os.mkfifo(pipe)
    large.write_bytes(b"x" * 11)
    for path in (pipe, large, tmp_path, tmp_path / "missing"):
        with pytest.raises(OSError, match=r".+"):
            read_regular(path, 10)
    assert read_regular(large, 11) == b"x" * 11


def test_a_part_of_a_file_is_read_from_its_end_or_where_an_earlier_part_ended(
    tmp_path: Path,
) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"0123456789")
    assert read_part(file, -3, 100) == b"789"
    assert read_part(file, -100, 100) == b"0123456789"
    assert read_part(file, 4, 3) == b"456"
    assert read_part(file, 10, 100) == b""
    assert read_part(file, 11, 100) == b"0123456789"  # it was replaced by a shorter one
