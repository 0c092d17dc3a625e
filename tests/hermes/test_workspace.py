"""The MCP servers of a platform's workspace in Hermes's configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from molecule_hermes.config import Settings
from molecule_hermes.errors import StartError
from molecule_hermes.hermes.home import HermesHome
from molecule_hermes.hermes.model_choice import demo_choice
from molecule_hermes.hermes.plugin_setup import enable
from molecule_hermes.hermes.workspace import merge_mcp_servers

SERVERS = """\
name: my workspace
mcp_servers:
  files:
    command: npx
    args: [-y, files-server, /workspace]
    env: {MODE: "off", TOKEN: "${FILES_TOKEN}"}
  remote: {url: "https://mcp.example/mcp"}
"""
# Each line holds ten of the line before it: ten million values in all.
LAUGHS = "a0: &a0 x\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 8)
)
LAUGHS += "mcp_servers: {a: {args: *a7}}\n"
USERS_OWN = """\
# mine
mcp_servers:
  files:  # my own
    command: my-files
  notes: {command: notes}
"""


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    folder = tmp_path / "configs"
    folder.mkdir()
    return folder


@pytest.fixture
def settings(tmp_path: Path, configs: Path) -> Settings:
    return Settings.from_env(
        {"HERMES_HOME": str(tmp_path / "hermes"), "WORKSPACE_CONFIG_PATH": str(configs)}
    )


@pytest.fixture
def home(settings: Settings) -> HermesHome:
    home = HermesHome(settings.home)
    home.create()
    return home


def servers_of(home: HermesHome) -> object:
    """As Hermes's YAML 1.1 parser reads them."""
    return yaml.safe_load(home.config_file.read_text()).get("mcp_servers")


def test_the_servers_reach_hermes_as_they_are(
    home: HermesHome, settings: Settings, configs: Path
) -> None:
    (configs / "config.yaml").write_text(SERVERS)
    enable(home, settings)
    assert merge_mcp_servers(home, settings) == ["files", "remote"]
    assert servers_of(home) == yaml.safe_load(SERVERS)["mcp_servers"]
    before = home.config_file.read_text()
    merge_mcp_servers(home, settings)
    assert home.config_file.read_text() == before
    assert "molecule-a2a" in home.read_config()["plugins"]["enabled"]


def test_a_list_of_servers_with_names_is_read_too(
    home: HermesHome, settings: Settings, configs: Path
) -> None:
    (configs / "config.yaml").write_text("mcp_servers: [{name: a, url: 'http://mcp.example/'}]")
    merge_mcp_servers(home, settings)
    assert servers_of(home) == {"a": {"url": "http://mcp.example/"}}


def test_a_server_of_the_user_stays(home: HermesHome, settings: Settings, configs: Path) -> None:
    home.config_file.write_text(USERS_OWN)
    (configs / "config.yaml").write_text(SERVERS)
    merge_mcp_servers(home, settings)
    assert servers_of(home) == {
        "files": {"command": "my-files"},
        "notes": {"command": "notes"},
        "remote": {"url": "https://mcp.example/mcp"},
    }
    assert "# mine" in home.config_file.read_text()
    assert "# my own" in home.config_file.read_text()


def test_a_server_follows_the_workspace_until_the_user_changes_it(
    home: HermesHome, settings: Settings, configs: Path
) -> None:
    file = configs / "config.yaml"
    file.write_text("mcp_servers: {a: {command: one}, b: {command: one}, c: {command: one}}")
    merge_mcp_servers(home, settings)
    home.set_model(demo_choice("http://127.0.0.1:9/v1").block)
    changed = yaml.safe_load(home.config_file.read_text())
    changed["mcp_servers"]["c"] = {"command": "mine"}
    home.config_file.write_text(yaml.safe_dump(changed))
    assert servers_of(home) == {
        "a": {"command": "one"},
        "b": {"command": "one"},
        "c": {"command": "mine"},
    }
    file.write_text("mcp_servers: {a: {command: two}}")
    merge_mcp_servers(home, settings)
    assert servers_of(home) == {"a": {"command": "two"}, "c": {"command": "mine"}}
    file.unlink()
    merge_mcp_servers(home, settings)
    assert servers_of(home) == {"c": {"command": "mine"}}
    assert home.foreign_model() is None


@pytest.mark.parametrize("text", [None, "", "name: x", "mcp_servers:", "mcp_servers: {}"])
def test_a_workspace_without_servers_changes_nothing(
    home: HermesHome, settings: Settings, configs: Path, text: str | None
) -> None:
    if text is not None:
        (configs / "config.yaml").write_text(text)
    home.config_file.write_text(USERS_OWN)
    assert merge_mcp_servers(home, settings) == []
    assert home.config_file.read_text() == USERS_OWN


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("mcp_servers: [1]", "mcp_servers in .*config.yaml is not valid"),
        ("mcp_servers: [{url: x}]", "mcp_servers in .*config.yaml is not valid"),
        ("mcp_servers: {a: npx}", "mcp_servers in .*config.yaml is not valid"),
        ("mcp_servers: text", "mcp_servers in .*config.yaml is not valid"),
        ("mcp_servers: [{name: [1], url: x}]", "mcp_servers in .*config.yaml is not valid"),
        ("mcp_servers: {a: {url: !tag x}}", "mcp_servers in .*config.yaml is not valid"),
        ("mcp_servers: {a: {url: !!binary aGk=}}", "mcp_servers in .*config.yaml is not valid"),
        (LAUGHS, "mcp_servers in .*config.yaml is not valid"),
        ("mcp_servers: {a", "config.yaml is not valid YAML"),
        ("mcp_servers: {a: " + "{a: " * 3000 + "1" + "}" * 3001, "config.yaml is not valid YAML"),
        ("[]", "config.yaml is not a mapping"),
    ],
)
def test_an_invalid_file_is_reported(
    home: HermesHome, settings: Settings, configs: Path, text: str, reason: str
) -> None:
    (configs / "config.yaml").write_text(text)
    with pytest.raises(StartError, match=reason):
        merge_mcp_servers(home, settings)
