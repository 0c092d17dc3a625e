"""The Dockerfile and the compose file. The chart has tests of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from molecule_hermes.config import Settings

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deploy" / "compose.yaml"
DOCKERFILE = (ROOT / "Dockerfile").read_text()
NAMES_OF_SECRETS = re.compile("TOKEN|KEY|SECRET|PASSWORD")
MIB_OF_A_WORKER = 300
"""An idle Hermes has less than 200; the rest is for its tools and for the bridge."""
AFTER_THE_DRAIN = 10 + 5 + 30
"""Seconds at most: turns that do not stop, open connections, Hermes."""


def test_the_compose_file_is_valid() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    ended = subprocess.run(
        [*command, COMPOSE], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stdout


def test_the_composed_agent_is_unprivileged_and_keeps_its_state() -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    for service in services.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert "privileged" not in service
        variables = service["environment"]
        secrets = {name: v for name, v in variables.items() if NAMES_OF_SECRETS.search(name)}
        assert all(value.startswith("${") for value in secrets.values())
    agent = services["agent"]
    assert agent["volumes"] == ["data:/data"]
    assert agent["ports"] == ["127.0.0.1:8000:8000"]
    drain = int(agent["environment"]["MOLECULE_HERMES_DRAIN_TIMEOUT"])
    assert int(agent["stop_grace_period"].removesuffix("s")) > drain + AFTER_THE_DRAIN
    workers = int(
        agent["environment"]["MOLECULE_HERMES_MAX_WORKERS"].rpartition(":-")[2].strip("}")
    )
    assert agent["mem_limit"] == "2g"
    assert workers * MIB_OF_A_WORKER <= 2048
    assert services["peer"]["depends_on"]["agent"]["condition"] == "service_healthy"


def test_the_example_of_secrets_contains_none() -> None:
    lines = (ROOT / "deploy" / ".env.example").read_text().splitlines()
    assert all(line.startswith("#") or line.endswith("=") for line in lines)


def test_the_base_of_the_image_is_pinned() -> None:
    base = re.search(r"^ARG BASE=(\S+)$", DOCKERFILE, re.M)
    assert base
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", base[1])
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.M)) == {"scratch", "${BASE}", "installed"}


def test_the_image_agrees_with_the_settings() -> None:
    settings = Settings.from_env({})
    text = without_workspace()
    assert f"EXPOSE {settings.port}\n" in text
    variables = dict(re.findall(r"^(?:ENV|   ) (\w+)=(\S+)", text, re.M))
    inside = Settings.from_env(variables)
    assert inside.host == "0.0.0.0"
    assert str(inside.state_dir) == "/data"
    assert inside.home.parent == inside.state_dir
    for name in ("HOME", "TMPDIR"):
        assert variables[name].startswith("/data/")
    health = json.loads(re.search(r"CMD (\[.*\])$", text, re.M)[1])  # type: ignore[index]
    assert "/readyz" in health[-1]
    assert "curl" not in text


def test_the_workspaces_image_has_its_user_and_folders_by_arguments() -> None:
    stage = workspace_stage()
    arguments = dict(re.findall(r'^ARG (\w+)="?([^"\n]*)"?$', stage, re.M))
    assert (arguments["AGENT"], arguments["AGENT_UID"]) == ("agent", "1000")
    assert arguments["AGENT_HOME"] == "/home/agent"
    assert arguments["FOLDERS"].split() == ["/configs", "/workspace"]
    assert {"git", "curl", "ca-certificates"} == set(arguments["TOOLS"].split())
    shown = (ROOT / "docs" / "deploy.md").read_text()
    assert all(f"`{name}`" in shown and f"`{value}`" in shown for name, value in arguments.items())
    variables = dict(re.findall(r"^(?:ENV|   ) (\w+)=(\S+)", stage, re.M))
    assert variables["HERMES_HOME"] == "${AGENT_HOME}/.hermes"
    assert variables["ADAPTER_MODULE"] == "molecule_hermes.adapter"
    assert variables["MOLECULE_HERMES_WORKSPACE"] in arguments["FOLDERS"].split()


def test_a_workspace_without_a_runtime_is_refused() -> None:
    script = ROOT / "scripts" / "workspace.sh"
    ended = subprocess.run([script], capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 2
    assert "name the platform's runtime as the command" in ended.stderr


def run_workspace(
    folder: Path, command: str, up: str = "exit 0", **environ: str
) -> subprocess.CompletedProcess[str]:
    """Runs a runtime in a workspace, with a shell script in the place of `molecule-hermes`."""
    (folder / "bin").mkdir()
    stand_in = folder / "bin" / "molecule-hermes"
    stand_in.write_text(f"#!/bin/sh\n{up}\n")
    stand_in.chmod(0o755)
    given = {
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "PATH": f"{folder / 'bin'}:/usr/bin:/bin",
    }
    return subprocess.run(
        [ROOT / "scripts" / "workspace.sh", "sh", "-c", command],
        env=given | environ,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_in_smoke_mode_a_workspace_runs_only_its_runtime(tmp_path: Path) -> None:
    secret = "${#MOLECULE_A2A_PLATFORM_SHARED_SECRET}"
    ended = run_workspace(
        tmp_path,
        f"echo $MOLECULE_A2A_PLATFORM_ENABLED $API_SERVER_KEY {secret}",
        "echo Hermes >&2",
        MOLECULE_SMOKE_MODE="1",
        API_SERVER_KEY="the-platforms-own-key",
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "true the-platforms-own-key 64\n"


@pytest.mark.parametrize(
    ("environ", "demo"),
    [
        ({}, "never"),
        ({"MOLECULE_SMOKE_MODE": "False", "MOLECULE_HERMES_DEMO": "auto"}, "never"),
        ({"MOLECULE_SMOKE_MODE": "0", "MOLECULE_HERMES_DEMO": "always"}, "always"),
    ],
)
def test_the_demo_model_answers_in_a_workspace_only_if_it_is_asked_for(
    tmp_path: Path, environ: dict[str, str], demo: str
) -> None:
    fifo = tmp_path / "started"
    os.mkfifo(fifo)
    started = f'echo "$*" $MOLECULE_HERMES_HOST $MOLECULE_HERMES_DEMO >{fifo}'
    ended = run_workspace(tmp_path, f"cat {fifo}", started, **environ)
    assert (ended.returncode, ended.stdout) == (0, f"up 127.0.0.1 {demo}\n")


def test_a_workspace_has_one_hermes_whatever_is_set_for_other_bridges(tmp_path: Path) -> None:
    fifo = tmp_path / "started"
    os.mkfifo(fifo)
    started = f'echo "$MOLECULE_HERMES_ISOLATION ($MOLECULE_HERMES_CONFIG)" >{fifo}'
    given = {"MOLECULE_HERMES_ISOLATION": "peer", "MOLECULE_HERMES_CONFIG": "/configs/agents.yaml"}
    ended = run_workspace(tmp_path, f"cat {fifo}", started, **given)
    assert (ended.returncode, ended.stdout) == (0, "shared ()\n")


def test_a_workspace_whose_hermes_cannot_start_ends(tmp_path: Path) -> None:
    ended = run_workspace(tmp_path, "exec sleep 60", "echo no model key is set >&2; exit 2")
    assert ended.returncode == -signal.SIGTERM
    assert ended.stderr == "no model key is set\n"


def workspace_stage() -> str:
    found = re.search(r"^FROM installed AS workspace\n.*?(?=^FROM )", DOCKERFILE, re.M | re.S)
    assert found
    return found[0]


def without_workspace() -> str:
    return DOCKERFILE.replace(workspace_stage(), "")


def test_a_volume_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    environ = {
        "HOME": "/dev/null/home",
        "TMPDIR": str(tmp_path),
        "MOLECULE_HERMES_STATE_DIR": "/data",
        "PATH": "/usr/bin:/bin",
    }
    script = ROOT / "scripts" / "entrypoint.sh"
    ended = subprocess.run(
        [script], env=environ, capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == 1
    assert "cannot write to /data; mount a volume" in ended.stderr
