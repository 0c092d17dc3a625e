"""What others rely on: names, documents and settings that belong together."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import molecule_hermes
from molecule_hermes.config import settings_table
from molecule_hermes.hermes.providers import OPENROUTER_VENDORS, PROVIDERS_BY_NAME

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


SDK = "a2a"


def _private_names_of_the_sdk(source: str) -> list[str]:
    """Imports of the SDK with a private name, private attributes of what was imported from it,
    and private attributes of its base classes that a subclass reads."""
    tree = ast.parse(source)
    imported = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and _is_sdk(node.module or ""):
            for name in node.names:
                imported[name.asname or name.name] = f"{node.module}.{name.name}"
        elif isinstance(node, ast.Import):
            for name in node.names:
                if _is_sdk(name.name):
                    imported[(name.asname or name.name).split(".")[0]] = name.name
    found = [path for path in imported.values() if _is_private(path)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            path = ast.unparse(node)
            if path.split(".")[0] in imported and _is_private(path):
                found.append(path)
        elif isinstance(node, ast.ClassDef):
            found += _inherited_private_names(node, imported)
    return found


def _inherited_private_names(node: ast.ClassDef, imported: dict[str, str]) -> list[str]:
    """What a subclass reads of itself and does not define, but its base in the SDK does."""
    found = []
    used = {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name | ast.Call)
    }
    for base in node.bases:
        path = imported.get(ast.unparse(base))
        if path is None:
            continue
        module, _, name = path.rpartition(".")
        cls = getattr(importlib.import_module(module), name)
        for known in cls.__mro__[:-1]:
            if _is_sdk(known.__module__):
                names = set(vars(known)) | set(re.findall(r"self\.(\w+)", inspect.getsource(known)))
                found += [f"{path}.{name}" for name in used & names if _is_private(name)]
    return found


def _is_sdk(module: str) -> bool:
    return module.split(".", maxsplit=1)[0] == SDK


def _is_private(path: str) -> bool:
    return any(re.match(r"_(?!_)|__\w+(?<!__)$", name) for name in path.split("."))


@pytest.mark.parametrize("name", ["molecule_hermes", *MODULES])
def test_no_private_name_of_the_sdk_is_used(name: str) -> None:
    module = importlib.import_module(name)
    assert _private_names_of_the_sdk(Path(str(module.__file__)).read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "from a2a.server.events import _queue",
        "from a2a._base import Model",
        "import a2a._base",
        "from a2a.server import events\nevents._queue()",
        "import a2a.server\na2a.server._state",
        "from a2a.client import Client\nClient._create",
        "from a2a.server.tasks import InMemoryTaskStore\n"
        "class Mine(InMemoryTaskStore):\n    def all(self): return self._impl\n",
    ],
)
def test_a_private_name_of_the_sdk_would_be_found(source: str) -> None:
    assert _private_names_of_the_sdk(source)


def test_the_readme_has_every_setting_with_its_default() -> None:
    assert settings_table() in (ROOT / "README.md").read_text(), "run scripts/settings-table"


def test_the_docs_have_every_provider() -> None:
    text = (ROOT / "docs" / "models.md").read_text()
    for provider in PROVIDERS_BY_NAME.values():
        (row,) = re.findall(rf"^\| {provider.name}(?: \(.*?\))? \|.*$", text, re.M)
        assert all(f"`{variable}`" in row for variable in provider.variables)
        assert all(f"`{prefix}/`" in row for prefix in (provider.name, *provider.prefixes))
        assert provider.model in row
    vendors = ", ".join(f"`{vendor}/`" for vendor in sorted(OPENROUTER_VENDORS))
    assert f"| {vendors} |" in text


def test_the_docs_have_every_demo_directive() -> None:
    source = (ROOT / "molecule_hermes" / "hermes" / "demo_model.py").read_text()
    directives = set(re.findall(r"^    (demo:\w+)", source, re.M))
    text = (ROOT / "docs" / "demo-model.md").read_text()
    assert directives
    assert all(f"`{directive}" in text for directive in directives)


def test_no_file_names_a_registry_address() -> None:
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line) for line in constraints)
