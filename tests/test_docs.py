"""The documentation agrees with the code: links, file names, settings, failure kinds, the wire."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import get_args

import pytest

from molecule_hermes import wire
from molecule_hermes.config import (
    AgentConfig,
    Configuration,
    Limits,
    OAuthClient,
    PeerConfig,
    RemoteHermes,
    RouteConfig,
    Settings,
    load_configuration,
    with_peers,
)
from molecule_hermes.errors import FAILURES

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
PAGES += sorted((ROOT / "docs").glob("*.md"))

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


@each_page
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@each_page
def test_every_setting_that_is_named_exists(page: Path) -> None:
    known = {str(field.alias) for field in Settings.model_fields.values()}
    named = set(re.findall(r"\bMOLECULE_(?:HERMES|A2A)_[A-Z0-9_]*[A-Z0-9]\b", page.read_text()))
    assert named <= known


def test_the_contributing_page_names_files_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`([\w./-]+(?:\.py|\.md|\.toml|\.txt|/))`", text)
    assert len(named) > 50
    roots = (ROOT, ROOT / "molecule_hermes")
    missing = [name for name in named if not any((root / name).exists() for root in roots)]
    assert not missing


def test_the_contributing_page_shows_every_package_and_module_at_the_top() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    package = ROOT / "molecule_hermes"
    folders = {f"{path.parent.name}/" for path in package.glob("*/__init__.py")}
    modules = {path.name for path in package.glob("[a-z]*.py")}
    assert [name for name in sorted(folders | modules) if f"`{name}`" not in text] == []


def test_the_docs_have_every_failure_kind() -> None:
    text = _page("operations").split("\n## Failures\n")[1]
    assert set(re.findall(r"^\| `(\w+)` \|", text.split("\n## ")[0], re.M)) == set(FAILURES)


def test_the_docs_have_every_message_of_the_wire() -> None:
    text = _page("wire")
    assert all(f"`{body.type}`" in text for body in get_args(wire.Body))
    paths = [value for name, value in vars(wire).items() if name.endswith("_PATH")]
    paths.remove(wire.REPLY_PATH)
    assert len(paths) >= 5
    assert all(f"{path}`" in text for path in paths)


def test_the_conformance_page_names_tests_that_exist() -> None:
    named = re.findall(r"`(?:(tests/[\w/]+\.py)::)?(test_\w+)`", _page("conformance"))
    assert named
    for path, test in named:
        file = ROOT / (path or "tests/server/test_conformance.py")
        assert f"def {test}(" in file.read_text(), test


def _example(folder: Path) -> tuple[Configuration, Settings]:
    """The configuration file of docs/agents.md, with the files that it names."""
    (text,) = re.findall(r"^```yaml\n(.*?)^```", _page("agents"), re.M | re.S)
    (folder / "main" / "skills").mkdir(parents=True)
    (folder / "secrets").mkdir()
    (folder / "main" / "SOUL.md").write_text("You are Ada.")
    (folder / "main" / "billing.pem").write_text("-----BEGIN PUBLIC KEY-----")
    for name in ("main/keys.env", *re.findall(r"secrets/[\w-]+", text)):
        (folder / name).touch(mode=0o600)
        (folder / name).write_text(f"KEY_OF_{re.sub('[^a-z]', '_', name)}=0123456789")
    file = folder / "agents.yaml"
    file.write_text(text)
    settings = Settings.from_env({"MOLECULE_HERMES_CONFIG": str(file)})
    configuration = load_configuration(settings)
    return configuration, with_peers(settings, configuration)


def test_the_example_of_the_configuration_file_loads_and_has_every_key(tmp_path: Path) -> None:
    found, settings = _example(tmp_path)
    assert found.warnings == ()
    assert list(settings.peer_tokens) == list(found.peers)
    agents, defaults = list(found.agents.values()), AgentConfig()
    used = {
        field.name
        for field in dataclasses.fields(AgentConfig)
        if any(getattr(each, field.name) != getattr(defaults, field.name) for each in agents)
    }
    assert used == {field.name for field in dataclasses.fields(AgentConfig)}


def test_the_docs_have_every_key_of_the_configuration_file() -> None:
    keys = {
        "bearer": "bearer_file",
        "card_keys": "card_key_file",
        "client_secret": "client_secret_file",
        "env": "env_file",
        "token": "token_file",
        "secret": "secret_file",
    }
    internal = {"name", "source", "warnings", "secret_files", "from_registry", "at_interface"}
    text = _page("agents")
    sections = (AgentConfig, RemoteHermes, RouteConfig, PeerConfig, OAuthClient, Limits)
    for section in (*sections, Configuration):
        names = {field.name for field in dataclasses.fields(section)} - internal
        assert [name for name in names if f"`{keys.get(name, name)}`" not in text] == [], section


def _page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text()
