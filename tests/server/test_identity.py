"""The secret of a bridge that outlives it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from molecule_hermes.config import Settings
from molecule_hermes.errors import StartError
from molecule_hermes.server.identity import identity_of


def test_it_is_the_same_after_a_restart_and_only_its_owner_can_read_it(
    settings: Callable[..., Settings], tmp_path: Path
) -> None:
    first = identity_of(settings())
    assert identity_of(settings()) == first
    assert len(first) >= 32
    assert (tmp_path / "identity").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["identity"]


def test_with_tasks_in_memory_nothing_is_written(
    settings: Callable[..., Settings], tmp_path: Path
) -> None:
    assert identity_of(settings(STORE="memory")) != identity_of(settings(STORE="memory"))
    assert list(tmp_path.iterdir()) == []


def test_two_that_make_it_at_once_have_the_same(settings: Callable[..., Settings]) -> None:
    made: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: made.append(identity_of(settings()))) for _ in "1234"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 1


def test_a_file_that_cannot_be_used_stops_the_start(
    settings: Callable[..., Settings], tmp_path: Path
) -> None:
    (tmp_path / "identity").write_text("short")
    with pytest.raises(StartError, match="too short"):
        identity_of(settings())
    (tmp_path / "identity").unlink()
    (tmp_path / "identity").mkdir()
    with pytest.raises(StartError, match="cannot use"):
        identity_of(settings())
