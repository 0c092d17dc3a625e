"""What `scripts/smoke-image` prints and returns when a check fails."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.append(str(SCRIPTS))

from image_smoke.report import CheckError, Job, Report, StopError, run  # noqa: E402
from image_smoke.sabotages import SABOTAGES  # noqa: E402


def smoke_image(*words: str, path: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPTS / "smoke-image", *words],
        env=dict(os.environ) | ({"PATH": path} if path else {}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_script_explains_itself() -> None:
    told = smoke_image("--help")
    assert told.returncode == 0
    assert all(word in told.stdout for word in ("--cache", "--engine", "--sabotage", *SABOTAGES))


def test_a_client_without_its_engine_is_not_used(tmp_path: Path) -> None:
    client = tmp_path / "docker"
    client.write_text("#!/bin/sh\necho no daemon >&2\nexit 1\n")
    client.chmod(0o755)
    told = smoke_image("--engine", "docker", "--cache", str(tmp_path / "c"), path=str(tmp_path))
    assert told.returncode == 1
    assert "docker does not work here" in told.stdout
    assert "1 passed, 1 failed" in told.stdout


def test_the_docs_name_what_each_sabotage_makes_it_say() -> None:
    text = (SCRIPTS.parent / "docs" / "deploy.md").read_text()
    for sabotage in SABOTAGES.values():
        assert sabotage.told.removeprefix("set ") in text


def test_a_failed_step_fails_the_run_and_the_others_go_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = Report()

    def fail() -> None:
        raise CheckError("what was seen\nthe cause")

    assert report.check("good", lambda: "fine") == "fine"
    assert report.check("bad", fail) is None
    with pytest.raises(StopError):
        report.need("needed", fail)
    assert report.summary() == 1
    table = capsys.readouterr().out.partition("seconds  what")[2]
    assert "good    fine" in table
    assert "bad     the cause" in table
    assert "1 passed, 2 failed" in table


def test_nothing_checked_is_not_a_pass() -> None:
    assert Report().summary() == 1


def test_a_command_that_takes_too_long_is_killed_with_its_children() -> None:
    with pytest.raises(CheckError, match=r"longer than 0\.2 s"):
        run(["sh", "-c", "sleep 4321 & wait"], limit=0.2)
    end = time.monotonic() + 10
    while time.monotonic() < end:
        left = [p for p in psutil.process_iter() if _is_ours(p)]
        if not left:
            return
        time.sleep(0.05)  # between two looks
    pytest.fail(f"left: {left}")


def _is_ours(process: psutil.Process) -> bool:
    try:
        return "4321" in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def test_a_failed_command_shows_the_end_of_its_output() -> None:
    with pytest.raises(CheckError, match=r"ended with 3:\nthe reason"):
        run(["sh", "-c", "echo the reason; exit 3"], limit=10)


def test_leaving_a_job_kills_it() -> None:
    with Job(["sleep", "60"]) as job:
        process = psutil.Process(job.pid)
    assert not process.is_running()
