"""The values of the configuration file: each knows its name and its line, and what it may be."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from molecule_hermes.config.yaml_tree import Tree
from molecule_hermes.errors import ConfigError
from molecule_hermes.text import redact, shorten

__all__ = ["Value"]

_PLAIN_KEY = re.compile(r"[\w.@-]{1,100}")
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Value:
    file: Path
    name: str
    """Such as `agents.main.isolation`; empty for the whole file."""
    tree: Tree

    @property
    def line(self) -> int:
        return self.tree.line

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"

    def error(self, what: str) -> ConfigError:
        """One line: where, which value, and what is wrong."""
        name = f"{self.name} " if self.name else ""
        return ConfigError(f"{self.place}: {name}{redact(what)}")

    def invalid(self, takes: str, *, shown: bool = True) -> ConfigError:
        """A value that might be a secret is not shown."""
        value = shorten(redact(_show(self.tree.value)), _SHOWN) if shown else "(not shown)"
        name = self.name or "the file"
        return ConfigError(f"{self.place}: {name}={value} is not valid: it takes {takes}")

    def entries(self, takes: str, limit: int) -> dict[str, Value]:
        """The values of a mapping by their keys, in order. Null is an empty mapping."""
        value = self.tree.value
        if value is None:
            return {}
        if not isinstance(value, dict):
            # Where a name was forgotten, the text may be a secret.
            raise self.invalid(takes, shown=not isinstance(value, str))
        if len(value) > limit:
            raise self.error(f"has {len(value)} entries, and may have {limit}")
        for key, tree in value.items():
            if not isinstance(key, str):
                raise self._child(_show(key), tree).error("is not text: put the name in quotes")
        return {str(key): self._child(str(key), tree) for key, tree in value.items()}

    def fields(self, known: Collection[str]) -> dict[str, Value]:
        """The values of a mapping that has these keys and no others."""
        found = self.entries(f"a mapping with {_or(known)}", 1000)
        for key, value in found.items():
            if key not in known:
                nearest = get_close_matches(key, known, 1)
                hint = f"did you mean {nearest[0]}?" if nearest else f"there are {_or(known)}"
                raise value.error(f"is not known; {hint}")
        return found

    def items(self, takes: str, limit: int) -> list[Value]:
        value = self.tree.value
        if not isinstance(value, list):
            raise self.invalid(takes, shown=not isinstance(value, str))
        if len(value) > limit:
            raise self.error(f"has {len(value)} entries, and may have {limit}")
        return [
            replace(self, name=f"{self.name}[{number}]", tree=tree)
            for number, tree in enumerate(value, 1)
        ]

    def text(self, takes: str, pattern: str = r".+", *, shown: bool = True) -> str:
        value = self.tree.value
        if isinstance(value, str) and re.fullmatch(pattern, value) and "\0" not in value:
            return value
        if isinstance(value, bool | int | float):
            takes += " (text: put it in quotes)"
        raise self.invalid(takes, shown=shown)

    def names(self, takes: str, pattern: str, limit: int = 1000) -> tuple[str, ...]:
        """A list of different texts."""
        items = self.items(f"a list of {takes}", limit)
        names: dict[str, None] = {}
        for item in items:
            name = item.text(takes, pattern)
            if name in names:
                raise item.error(f"repeats {name!r}")
            names[name] = None
        return tuple(names)

    def choice(self, *options: str) -> Any:
        """One of the words."""
        return self.text(" or ".join(options), "|".join(options))

    def require_name(self, key: str, pattern: str, takes: str) -> None:
        """Raises if the key under which the value stands is not such a name."""
        if not re.fullmatch(pattern, key):
            raise self.error(f"has a name that is not valid: it takes {takes}")

    def whole(self, low: int, high: int) -> int:
        value = self.tree.value
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.invalid(f"a whole number from {low} to {high}")
        return value

    def plain(self) -> Any:
        """What YAML describes, as Python's own values."""
        return _plain(self.tree)

    def _child(self, key: str, tree: Tree) -> Value:
        shown = key
        if not _PLAIN_KEY.fullmatch(key):
            # In the form of MOLECULE_HERMES_PEER_TOKENS, a token follows the name.
            name, colon, _ = key.partition(":")
            shown = shorten(redact(repr(name)), 60) + ("…" if colon else "")
        return Value(self.file, f"{self.name}.{shown}" if self.name else shown, tree)


def _plain(tree: Tree) -> Any:
    if isinstance(tree.value, dict):
        return {key: _plain(each) for key, each in tree.value.items()}
    if isinstance(tree.value, list):
        return [_plain(each) for each in tree.value]
    return tree.value


def _show(value: object) -> str:
    if isinstance(value, dict):
        return "{…}"
    if isinstance(value, list):
        return "[…]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value)


def _or(names: Collection[str]) -> str:
    *rest, last = sorted(names)
    return f"{', '.join(rest)} and {last}" if rest else last
