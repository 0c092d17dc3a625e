"""What a platform's workspace gives to Hermes: the MCP servers of its config.yaml."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from datetime import date
from typing import Any

from molecule_hermes.config import Settings
from molecule_hermes.errors import StartError
from molecule_hermes.hermes.home import HermesHome, read_yaml

__all__ = ["has_mcp_client", "merge_mcp_servers"]

_MAX_DEPTH = 20


def merge_mcp_servers(home: HermesHome, settings: Settings) -> list[str]:
    """Merges the workspace's MCP servers into Hermes's config.yaml; returns their names."""
    servers = _servers(settings)
    home.create()
    home.set_mcp_servers(servers)
    return list(servers)


def has_mcp_client() -> bool:
    """Whether this environment has the package without which Hermes ignores MCP servers."""
    return importlib.util.find_spec("mcp") is not None


def _servers(settings: Settings) -> dict[str, Any]:
    """The servers by name. They are a mapping as in Hermes, or a list of servers with names."""
    file = settings.workspace_config_path / "config.yaml"
    listed = read_yaml(file).get("mcp_servers") or {}
    try:
        pairs = listed.items() if isinstance(listed, Mapping) else map(_named, listed)
        copy = _Copy()
        return {_name(name): copy.mapping(server) for name, server in pairs}
    except (TypeError, ValueError, KeyError) as error:
        raise StartError(
            f"mcp_servers in {file} is not valid",
            "write each server as NAME: {command: …} or NAME: {url: …}",
        ) from error


def _named(entry: Any) -> tuple[object, object]:
    return entry["name"], {key: value for key, value in entry.items() if key != "name"}


def _name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise TypeError("the name of a server is not text")
    return name


class _Copy:
    """Copies values that every YAML parser reads.

    With a tag, Hermes could not read its config.yaml at all; with an alias of an alias, a small
    file describes more than any memory holds.
    """

    def __init__(self, left: int = 10_000) -> None:
        self._left = left

    def mapping(self, value: object) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise TypeError("a server is not a mapping")
        copied: dict[str, Any] = self._value(value, 0)
        return copied

    def _value(self, value: Any, depth: int) -> Any:
        self._left -= 1
        if self._left < 0 or depth > _MAX_DEPTH:
            raise ValueError("the servers have too many values")
        if isinstance(value, Mapping):
            return {
                self._value(key, _MAX_DEPTH): self._value(each, depth + 1)
                for key, each in value.items()
            }
        if isinstance(value, list):
            return [self._value(each, depth + 1) for each in value]
        if value is None or isinstance(value, str | int | float | date):
            return value
        raise TypeError(f"a {type(value).__name__} has no place here")
