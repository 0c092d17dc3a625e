"""What an agent is, as the files of a worker's Hermes folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from molecule_hermes.config import AgentConfig, PeerConfig, Settings
from molecule_hermes.errors import ConfigError
from molecule_hermes.hermes.home import HermesHome
from molecule_hermes.hermes.model_choice import ModelChoice
from molecule_hermes.hermes.worker_home import WorkerHome, template_variables
from molecule_hermes.plugin.settings import ENTRY_POINT, PLATFORM

MODEL = ModelChoice({"default": "some-model", "provider": "custom"}, "the test")


def home(
    folder: Path,
    agent: AgentConfig | None = None,
    peer: PeerConfig | None = None,
    model: ModelChoice | None = MODEL,
) -> WorkerHome:
    template = HermesHome(folder / "template")
    template.create()
    settings = Settings.from_env(
        {"HERMES_API_BASE": "http://127.0.0.1:20001/v1", "MOLECULE_A2A_PLATFORM_PORT": "20002"}
    )
    return WorkerHome(agent or AgentConfig(), peer, template, settings, model, folder / "work")


def config(made: WorkerHome) -> dict[str, Any]:
    return dict(yaml.safe_load(made.files()["config.yaml"]))


def test_hermes_listens_where_the_worker_is_expected_and_works_in_its_folder(
    tmp_path: Path,
) -> None:
    made = home(tmp_path)
    found = config(made)
    assert found["platforms"][PLATFORM]["extra"]["port"] == 20002
    assert found["terminal"]["cwd"] == str(tmp_path / "work")
    assert found["model"] == dict(MODEL.block)
    assert "API_SERVER_PORT=20001\n" in made.files()[".env"]


def test_what_the_agent_does_not_say_comes_from_the_operators_folder(tmp_path: Path) -> None:
    made = home(
        tmp_path, AgentConfig(hermes_config={"compression": {"threshold": 0.7}}), None, None
    )
    made.template.config_file.write_text(
        "model: {default: mine}\ncompression: {enabled: true}\n"
        "plugins: {enabled: [other]}\nterminal: {cwd: /etc}\n"
    )
    (made.template.path / "SOUL.md").write_text("I am the operator's")
    found = config(made)
    assert found["model"] == {"default": "mine"}
    assert found["compression"] == {"enabled": True, "threshold": 0.7}
    assert found["plugins"] == {"enabled": [ENTRY_POINT]}
    assert found["terminal"]["cwd"] == str(tmp_path / "work")
    assert made.files()["SOUL.md"] == "I am the operator's"


def test_the_agents_own_soul_counts_and_a_missing_one_is_an_error(tmp_path: Path) -> None:
    soul = tmp_path / "soul.md"
    soul.write_text("I am Ada")
    made = home(tmp_path, AgentConfig(soul=soul))
    (made.template.path / "SOUL.md").write_text("I am the operator's")
    assert made.files()["SOUL.md"] == "I am Ada"
    soul.unlink()
    with pytest.raises(ConfigError, match=r"soul\.md"):
        made.files()
    assert "SOUL.md" not in home(tmp_path / "without").files()


@pytest.mark.parametrize(
    ("agent", "peer", "expected"),
    [
        (None, None, None),
        (("web", "file"), None, ["web", "file"]),
        (None, ("web",), ["web"]),
        (("web", "file"), ("file", "terminal"), ["file"]),
        (("web",), (), []),
    ],
)
def test_a_peer_can_only_lose_toolsets_that_the_agent_has(
    tmp_path: Path,
    agent: tuple[str, ...] | None,
    peer: tuple[str, ...] | None,
    expected: list[str] | None,
) -> None:
    made = home(tmp_path, AgentConfig(toolsets=agent), PeerConfig("alice", toolsets=peer))
    toolsets = config(made).get("platform_toolsets", {})
    assert toolsets.get(PLATFORM) == expected
    assert toolsets.get("api_server") == expected


def test_the_operators_keys_are_handed_over_but_not_what_belongs_to_another_hermes(
    tmp_path: Path,
) -> None:
    template = HermesHome(tmp_path)
    template.env_file.write_text("SOME_API_KEY=abc\nAPI_SERVER_KEY=xyz\nAPI_SERVER_PORT=1\n")
    assert template_variables(template) == {"SOME_API_KEY": "abc"}
