"""What `up` says at its start."""

from __future__ import annotations

from pathlib import Path

import pytest

from molecule_hermes.cli.messages import report_work_folder
from molecule_hermes.config import Settings


@pytest.mark.parametrize(
    ("cwd", "environ", "warned"),
    [
        ("{folder}/projects", {}, True),
        ("{folder}/work-of-another", {}, True),
        ("{folder}/projects", {"MOLECULE_HERMES_CONFINE": "off"}, False),
        ("{folder}/projects/mine", {"MOLECULE_HERMES_WRITABLE": "{folder}/projects"}, False),
        ("{folder}/work/inner", {}, False),
        ("{folder}/work/../projects", {}, True),
        (".", {}, False),
        (7, {}, False),
    ],
)
def test_a_working_directory_that_is_not_the_agents_is_warned_of(
    tmp_path: Path, cwd: object, environ: dict[str, str], warned: bool
) -> None:
    filled = {name: value.format(folder=tmp_path) for name, value in environ.items()}
    cwd = cwd.format(folder=tmp_path) if isinstance(cwd, str) else cwd
    said: list[str] = []
    config = {"terminal": {"cwd": cwd}}
    report_work_folder(Settings.from_env(filled), config, [tmp_path / "work"], said.append)
    assert bool(said) is warned
    if warned:
        assert f"MOLECULE_HERMES_WRITABLE={cwd}" in said[-1]
