"""The file with Hermes's output."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from molecule_hermes.hermes.gateway_log import GatewayLog


@contextmanager
def opened(path: Path, text: str = "", **more: int) -> Iterator[GatewayLog]:
    """A log that a process has written to."""
    with GatewayLog(path, **more) as log:
        log.mark_start()
        write(log, text)
        yield log


def write(log: GatewayLog, text: str) -> None:
    assert log.file is not None
    log.file.write(text.encode())


def test_a_log_is_appended_to_and_its_tail_is_that_of_the_newest_start(tmp_path: Path) -> None:
    path = tmp_path / "gateway.log"
    with opened(path, "the crash\n"):
        pass
    with opened(path, "first\n\nsecond\n") as log:
        assert path.read_text().index("the crash") < path.read_text().index("first")
        assert log.tail() == "first\nsecond"
        assert log.tail(1) == "second"


def test_large_logs_are_rotated_and_two_old_ones_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "gateway.log"
    for number in range(5):
        with opened(path, f"start {number} {'x' * 100}\n", max_bytes=50):
            pass
    contents = {"gateway.log": 4, "gateway.log.1": 3, "gateway.log.2": 2}
    assert {p.name for p in tmp_path.iterdir()} == contents.keys()
    for name, number in contents.items():
        assert f"start {number} " in (tmp_path / name).read_text()


def test_a_process_keeps_writing_to_a_log_that_is_rotated(tmp_path: Path) -> None:
    path = tmp_path / "gateway.log"
    with opened(path, "before\n" * 100, max_bytes=50) as log:
        log.rotate_if_large()
        write(log, "after\n")
    assert path.read_text() == "after\n"
    assert "before" in (tmp_path / "gateway.log.1").read_text()


def test_only_the_owner_can_read_a_log_new_or_old(tmp_path: Path) -> None:
    path = tmp_path / "gateway.log"
    path.write_text("x" * 100)
    path.chmod(0o644)
    with opened(path, max_bytes=50):
        modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()}
    assert modes == {"gateway.log": 0o600, "gateway.log.1": 0o600}


def test_a_log_that_cannot_be_rotated_is_still_written(tmp_path: Path) -> None:
    (tmp_path / "gateway.log.1").touch()
    (tmp_path / "gateway.log.2").mkdir()
    path = tmp_path / "gateway.log"
    with opened(path, "x" * 100, max_bytes=50) as log:
        log.rotate_if_large()
        write(log, "more")
    assert path.read_text().endswith("x" * 100 + "more")


def test_the_tail_of_a_log_has_no_secrets(tmp_path: Path) -> None:
    with opened(tmp_path / "gateway.log", "token=hunter2222\n") as log:
        assert "hunter2222" not in log.tail()


def test_a_missing_log_has_an_empty_tail(tmp_path: Path) -> None:
    assert GatewayLog(tmp_path / "gateway.log").tail() == ""
