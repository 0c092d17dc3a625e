"""Workers with folders of their own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from molecule_hermes.agents.managed import ManagedWorkers
from molecule_hermes.config import Settings
from molecule_hermes.hermes.home import HermesHome


@pytest.mark.parametrize(
    ("stored", "planned"),
    [
        ('{"jobs": [{"id": "a", "enabled": true}]}', True),
        ('[{"id": "a"}]', True),
        ('{"jobs": [{"id": "a", "enabled": false}]}', False),
        ('{"jobs": []}', False),
        ("", False),
        ("7", False),
        ('{"jobs": 7}', False),
        ('{"jobs": [7]}', False),
        ("[" * 100_000, False),
        ("\udcff", False),
        (None, False),
        ("pipe", False),
        ("link", False),
    ],
)
def test_a_worker_is_needed_for_cron_jobs_whatever_its_tools_have_written(
    tmp_path: Path, stored: str | None, planned: bool
) -> None:
    jobs = tmp_path / "workers" / "main@ann-0" / "home" / "cron" / "jobs.json"
    jobs.parent.mkdir(parents=True)
    if stored == "pipe":
        os.mkfifo(jobs)
    elif stored == "link":
        (tmp_path / "outside").write_text('[{"id": "a"}]')
        jobs.symlink_to(tmp_path / "outside")
    elif stored is not None:
        jobs.write_bytes(stored.encode("utf-8", "surrogateescape"))
    settings = Settings.from_env({"MOLECULE_HERMES_STATE_DIR": str(tmp_path)})
    template = HermesHome(tmp_path / "template")
    workers = ManagedWorkers({}, template, "plugin", protected=list, say=print)
    assert workers.planned(settings) == ({"main@ann-0"} if planned else set())
