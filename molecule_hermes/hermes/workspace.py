"""What a platform's workspace gives to Hermes: the MCP servers of its config.yaml."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from molecule_hermes.config import Settings
from molecule_hermes.errors import StartError
from molecule_hermes.hermes.home import HermesHome, read_yaml

__all__ = ["has_mcp_client", "merge_mcp_servers"]


def merge_mcp_servers(home: HermesHome, settings: Settings) -> list[str]:
    """Merges the workspace's MCP servers into Hermes's config.yaml; returns their names."""
    servers = _servers(settings)
    home.create()
    home.set_mcp_servers(servers)
    return list(servers)


def has_mcp_client() -> bool:
    """Whether this environment has the package without which Hermes ignores MCP servers."""
    return importlib.util.find_spec("mcp") is not None


def _servers(settings: Settings) -> dict[str, Mapping[str, Any]]:
    """The servers by name. They are a mapping as in Hermes, or a list of servers with names."""
    file = settings.workspace_config_path / "config.yaml"
    listed = read_yaml(file).get("mcp_servers") or {}
    if isinstance(listed, list):
        listed = {_name(entry): _without_name(entry) for entry in listed}
    if not isinstance(listed, Mapping) or not all(
        isinstance(name, str) and name and isinstance(server, Mapping)
        for name, server in listed.items()
    ):
        raise StartError(
            f"mcp_servers in {file} is not valid",
            "write each server as NAME: {command: …} or NAME: {url: …}",
        )
    return dict(listed)


def _name(entry: object) -> object:
    return entry.get("name") if isinstance(entry, Mapping) else None


def _without_name(entry: object) -> object:
    if not isinstance(entry, Mapping):
        return entry
    return {key: value for key, value in entry.items() if key != "name"}
