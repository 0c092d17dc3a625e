"""Private names of Hermes are used in `plugin/hermes_api` only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import molecule_hermes

PACKAGE = Path(molecule_hermes.__file__).parent
PLUGIN = PACKAGE / "plugin"
DOOR = PLUGIN / "hermes_api"
HERMES = frozenset(
    {
        "agent",
        "cron",
        "gateway",
        "hermes_cli",
        "hermes_constants",
        "hermes_state",
        "run_agent",
        "tools",
        "toolsets",
    }
)
OTHERS = sorted(path for path in PLUGIN.rglob("*.py") if not path.is_relative_to(DOOR))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def defined_names(tree: ast.AST) -> Iterator[str]:
    """The names that the module itself gives to functions, classes, fields and attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


def private_uses(tree: ast.AST) -> Iterator[str]:
    """The private attributes and imports of a module that it does not define itself."""
    own = set(defined_names(tree))
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) if is_private(name) and name not in own:
                yield name
            case ast.Attribute(value=value, attr=name) if is_private(name):
                if not (isinstance(value, ast.Name) and value.id in ("self", "cls")):
                    yield name
            case ast.Call(func=ast.Name(id="getattr" | "setattr" | "hasattr" | "delattr")):
                for argument in node.args[1:2]:
                    if isinstance(argument, ast.Constant) and is_private(str(argument.value)):
                        yield str(argument.value)
            case ast.ImportFrom(module=str(module), names=names):
                parts = [*module.split("."), *(alias.name for alias in names)]
                if parts[0] != "molecule_hermes" and parts[0] != "__future__":
                    yield from filter(is_private, parts)


def imported_roots(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name.partition(".")[0] for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.name)
def test_no_other_module_of_the_plugin_uses_a_private_name_of_hermes(path: Path) -> None:
    assert list(private_uses(ast.parse(path.read_text()))) == []


def test_hermess_modules_are_imported_in_the_plugin_only() -> None:
    outside = [path for path in PACKAGE.rglob("*.py") if not path.is_relative_to(PLUGIN)]
    assert len(outside) > 50
    importing = {
        str(path.relative_to(PACKAGE))
        for path in outside
        if HERMES & set(imported_roots(ast.parse(path.read_text())))
    }
    assert importing == set()


@pytest.mark.parametrize(
    "code",
    [
        "runner._draining",
        "class A:\n def f(self):\n  return self._active_sessions",
        "class A:\n def __init__(self):\n  self._x = 1\n def f(self, other):\n  return other._x",
        "getattr(runner, '_draining', False)",
        "setattr(runner, '_executor', None)",
        "from gateway.run import _AGENT_PENDING_SENTINEL",
        "from gateway._internal import name",
    ],
)
def test_the_rule_finds_each_form_of_use(code: str) -> None:
    assert list(private_uses(ast.parse(code)))


def test_the_rule_leaves_a_modules_own_names_alone() -> None:
    code = "class A:\n _y: int = 0\n def _f(self):\n  self._x = self._f(self._y)"
    assert list(private_uses(ast.parse(code))) == []
    gateway = (DOOR / "gateway.py").read_text()
    assert "_draining" in set(private_uses(ast.parse(gateway)))
