"""What others rely on: names, documents and settings that belong together."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import molecule_hermes
from molecule_hermes.config import settings_table
from molecule_hermes.hermes.providers import PROVIDERS

ROOT = Path(__file__).parent.parent
MODULES = sorted(
    m.name for m in pkgutil.walk_packages(molecule_hermes.__path__, "molecule_hermes.")
)


@pytest.mark.parametrize("name", MODULES)
def test_every_module_has_a_deliberate_surface(name: str) -> None:
    module = importlib.import_module(name)
    if "__init__" in str(module.__file__):
        return
    assert module.__doc__
    assert all(hasattr(module, public) for public in module.__all__)


def test_the_package_exports_what_users_may_rely_on_and_nothing_else() -> None:
    assert molecule_hermes.__all__ == [
        "BridgeError",
        "ConfigError",
        "EmbeddedExecutor",
        "ExecutorConfig",
        "HermesAgentProxyExecutor",
        "Settings",
        "StartError",
        "TurnFailure",
        "__version__",
        "create_executor",
    ]
    from molecule_hermes import embedding, executor

    assert molecule_hermes.create_executor is embedding.create_executor
    assert molecule_hermes.HermesAgentProxyExecutor is executor.HermesAgentProxyExecutor
    assert issubclass(molecule_hermes.ConfigError, molecule_hermes.StartError)
    assert issubclass(molecule_hermes.TurnFailure, molecule_hermes.BridgeError)
    assert all(getattr(molecule_hermes, name) for name in molecule_hermes.__all__)
    assert set(molecule_hermes.__all__) <= set(dir(molecule_hermes))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Bridges'"):
        molecule_hermes.Bridges  # type: ignore[attr-defined]  # noqa: B018


def test_importing_the_package_loads_none_of_its_modules() -> None:
    code = (
        "import sys, molecule_hermes\n"
        "print([name for name in sys.modules if name.startswith('molecule_hermes.')])\n"
        "molecule_hermes.TurnFailure\n"
        "print([name for name in ('a2a', 'aiohttp', 'pydantic') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["[]", "[]"]


def test_type_checkers_use_the_packages_annotations() -> None:
    assert (Path(molecule_hermes.__path__[0]) / "py.typed").is_file()


def test_the_docs_name_every_public_name() -> None:
    text = (ROOT / "docs" / "embedding.md").read_text()
    for name in molecule_hermes.__all__:
        assert f"`{name}" in text, name


def test_what_others_import_is_where_the_design_says() -> None:
    from molecule_hermes.executor import HermesAgentProxyExecutor
    from molecule_hermes.transports.base import Transport

    assert {"execute", "cancel"} <= set(dir(HermesAgentProxyExecutor))
    assert {"run", "cancel", "check"} <= set(dir(Transport))


def test_the_readme_has_every_setting_with_its_default() -> None:
    assert settings_table() in (ROOT / "README.md").read_text(), "run scripts/settings-table"


def test_the_docs_have_every_provider() -> None:
    text = (ROOT / "docs" / "models.md").read_text()
    for provider in PROVIDERS:
        assert all(f"`{variable}`" in text for variable in provider.variables)
        assert f"`{provider.model}`" in text


def test_the_docs_have_every_demo_directive() -> None:
    source = (ROOT / "molecule_hermes" / "hermes" / "demo_model.py").read_text()
    directives = set(re.findall(r"^    (demo:\w+)", source, re.M))
    text = (ROOT / "docs" / "demo-model.md").read_text()
    assert directives
    assert all(f"`{directive}" in text for directive in directives)


def test_no_file_names_a_registry_address() -> None:
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line) for line in constraints)
