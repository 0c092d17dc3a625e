"""What `up` says at its start."""

from __future__ import annotations

from pathlib import Path

import pytest

from molecule_hermes.cli.messages import introduce_agents, report_work_folder
from molecule_hermes.config import AgentConfig, Configuration, Isolation, Settings


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


TWO = {"MOLECULE_HERMES_PEER_TOKENS": "ann:ann-token-0123456789,bob:bob-token-0123456789"}


@pytest.mark.parametrize(
    ("isolation", "environ", "warnings", "said"),
    [
        ("shared", TWO, 1, "session_search, memory, cronjob are disabled"),
        (
            "shared",
            {**TWO, "MOLECULE_HERMES_SHARED_MEMORY": "true"},
            1,
            "session_search, memory, cronjob: one may learn what another said",
        ),
        ("peer", TWO, 0, "each peer has a Hermes of its own"),
        ("shared", {}, 0, ""),
    ],
)
def test_peers_that_share_a_hermes_are_warned_of_once_with_what_they_share(
    isolation: Isolation, environ: dict[str, str], warnings: int, said: str
) -> None:
    lines: list[str] = []
    agents = {"main": AgentConfig("main", isolation=isolation)}
    introduce_agents(Settings.from_env(environ), Configuration(agents), lines.append)
    text = "\n".join(lines)
    assert text.count("warning") == warnings
    assert text.count("all peers share one Hermes: its files and its shell") == warnings
    assert said in text
