"""The section `agents` of the configuration file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from molecule_hermes.config.agents import AgentConfig, RemoteHermes
from molecule_hermes.config.checks import PATTERN
from molecule_hermes.config.named_files import NamedFiles
from molecule_hermes.config.policies import (
    MODEL,
    approvals,
    deliveries,
    limits,
    model_names,
    plain_url,
    toolsets,
)
from molecule_hermes.config.values import Value
from molecule_hermes.wire import MAX_SYSTEM_PROMPT

__all__ = ["AGENT_NAME", "AGENT_TAKES", "read_agent"]

# The three are first segments of REST paths, where an agent's name is a first segment, too.
AGENT_NAME = r"(?!(agents|tasks|v1)$)[a-z0-9][a-z0-9_-]{0,62}"
AGENT_TAKES = (
    "an agent's name: lower-case letters, digits, _ and -, at most 63, and not agents, tasks or v1"
)
_PROFILE_TAKES = "a profile's name: lower-case letters, digits, _ and -, at most 64"
_PROFILE = r"[a-z0-9][a-z0-9_-]{0,63}"
_MCP_SERVER = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
_LINE = r"[^\x00-\x1f\x7f]{1,200}"
_MAX_DESCRIPTION = 4000

_Reader = Callable[[Value, NamedFiles], Any]


def read_agent(name: str, value: Value, files: NamedFiles) -> AgentConfig:
    found = value.fields(_READERS)
    if "hermes" in found:
        for key in _MANAGED_ONLY & found.keys():
            raise found[key].error(
                "is for a Hermes that the bridge runs; this agent's Hermes runs elsewhere, and is "
                "configured there"
            )
    given = {_FIELDS.get(key, key): _READERS[key](each, files) for key, each in found.items()}
    agent = AgentConfig(name=name, **given)
    if agent.hermes is not None and agent.hermes.api and agent.models is not None:
        raise found["models"].error("needs hermes.plugin: the API uses the model of its Hermes")
    return agent


def _prompt(value: Value) -> str:
    takes = f"text of at most {MAX_SYSTEM_PROMPT} characters"
    return value.text(takes, rf"(?s:.{{0,{MAX_SYSTEM_PROMPT}}})")


def _mcp_servers(value: Value) -> dict[str, Any]:
    servers = value.entries("a mapping of names to MCP servers", 100)
    read = {}
    for name, server in servers.items():
        server.require_name(name, _MCP_SERVER, "a name of letters, digits, _, . and -, at most 64")
        if not {"command", "url"} & server.entries("a mapping with command or url", 100).keys():
            raise server.error("needs a command or a url")
        read[name] = server.plain()
    return read


_DECIDED: Mapping[str, str] = {
    "api_server": "",
    "approvals.mode": "approvals",
    "display.platforms.molecule_a2a": "",
    "gateway.api_server": "",
    "gateway.multiplex_profiles": "",
    "gateway.platforms.api_server": "",
    "gateway.platforms.molecule_a2a": "",
    "gateway.profile_routes": "",
    "gateway.streaming": "",
    "mcp_servers": "mcp_servers",
    "model": "model",
    "molecule_a2a": "",
    "multiplex_profiles": "",
    "platform_toolsets.api_server": "toolsets",
    "platform_toolsets.molecule_a2a": "toolsets",
    "platforms.api_server": "",
    "platforms.molecule_a2a": "",
    "plugins": "",
    "profile_routes": "",
    "streaming": "",
    "terminal.cwd": "",
}
"""The keys of Hermes's config.yaml that the bridge writes, and the agent's key that says it."""


def _hermes_config(value: Value) -> dict[str, Any]:
    value.entries("a mapping, as Hermes's config.yaml", 1000)
    for path, instead in _DECIDED.items():
        _refuse(value, path.split("."), instead)
    return dict(value.plain() or {})


def _refuse(value: Value, path: list[str], instead: str) -> None:
    """Raises if the value sets the path, or replaces a mapping on the way to it."""
    for key in path:
        entries = value.entries("a mapping, as in Hermes's config.yaml", 1000)
        if key not in entries:
            return
        value = entries[key]
    hint = f"use the agent's `{instead}`" if instead else "remove it"
    raise value.error(f"is decided by the bridge: {hint}")


def _remote(value: Value, files: NamedFiles) -> RemoteHermes:
    found = value.fields(("api", "plugin", "profile", "secret_file"))
    if ("plugin" in found) == ("api" in found):
        raise value.error("needs either plugin or api: the URL of one of the two")
    secret = files.secret(found["secret_file"]) if "secret_file" in found else None
    profile = found["profile"].text(_PROFILE_TAKES, _PROFILE) if "profile" in found else ""
    if "plugin" in found:
        return RemoteHermes(plugin=plain_url(found["plugin"]), profile=profile, secret=secret)
    api = plain_url(found["api"])
    if not urlsplit(api).path.endswith("/v1"):
        raise found["api"].invalid("a URL that ends in /v1")
    return RemoteHermes(api=api, profile=profile, secret=secret)


_READERS: Mapping[str, _Reader] = {
    "title": lambda value, _: value.text("one line of at most 200 characters", _LINE),
    "description": lambda value, _: value.text(
        f"text of at most {_MAX_DESCRIPTION} characters", rf"(?s:.{{1,{_MAX_DESCRIPTION}}})"
    ),
    "isolation": lambda value, _: value.choice("shared", "peer"),
    "model": lambda value, _: value.text("a model's name, as HERMES_INFERENCE_MODEL", MODEL),
    "models": lambda value, _: model_names(value),
    "system_prompt": lambda value, _: _prompt(value),
    "soul": lambda value, files: files.text(value),
    "skills": lambda value, files: files.directory(value),
    "toolsets": lambda value, _: toolsets(value),
    "mcp_servers": lambda value, _: _mcp_servers(value),
    "hermes_config": lambda value, _: _hermes_config(value),
    "env_file": lambda value, files: files.variables(value),
    "approvals": lambda value, _: approvals(value),
    "deliveries": lambda value, _: deliveries(value),
    "limits": lambda value, _: limits(value),
    "calls": lambda value, _: value.names("peers' names or patterns", PATTERN),
    "hermes": _remote,
}
_FIELDS = {"env_file": "env"}
_MANAGED_ONLY = frozenset(
    {"isolation", "model", "soul", "skills", "toolsets", "mcp_servers", "hermes_config", "env_file"}
)
