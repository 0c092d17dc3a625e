"""The section `peers` of the configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from molecule_hermes.config.agents import AgentConfig, PeerConfig
from molecule_hermes.config.checks import PATTERN, matches_one_of
from molecule_hermes.config.named_files import NamedFiles
from molecule_hermes.config.policies import approvals, limits, model_names, toolsets
from molecule_hermes.config.values import Value

__all__ = ["read_peer"]

_KEYS = ("agents", "approvals", "limits", "models", "token_file", "toolsets")


def read_peer(
    name: str, value: Value, files: NamedFiles, agents: Mapping[str, AgentConfig]
) -> PeerConfig:
    found = value.fields(_KEYS)
    policies = {key: read(found[key]) for key, read in _POLICIES.items() if key in found}
    peer = PeerConfig(
        name,
        token=files.secret(found["token_file"]) if "token_file" in found else None,
        agents=_reach(found["agents"], agents) if "agents" in found else ("*",),
        source=value.place,
        **policies,
    )
    if peer.toolsets is not None:
        _require_enforceable(found["toolsets"], peer, agents)
    return peer


_POLICIES = {
    "approvals": approvals,
    "limits": limits,
    "models": model_names,
    "toolsets": toolsets,
}


def _reach(value: Value, agents: Mapping[str, AgentConfig]) -> tuple[str, ...]:
    patterns = value.names("agents' names or patterns, such as research-*", PATTERN)
    if not patterns:
        raise value.error("is empty: the peer would reach no agent")
    for item, pattern in zip(value.items("", len(patterns)), patterns, strict=True):
        if not matches_one_of(pattern, agents):
            raise item.error(f"matches no agent: {pattern!r}")
    return patterns


def _require_enforceable(value: Value, peer: PeerConfig, agents: Mapping[str, AgentConfig]) -> None:
    """The API of a Hermes has one set of tools for all its callers."""
    for name, agent in agents.items():
        if agent.hermes is None or not agent.hermes.api:
            continue
        if any(fnmatchcase(name, pattern) for pattern in peer.agents):
            raise value.error(
                f"cannot be enforced for agent {name!r}, which is reached over an API: use "
                "hermes.plugin for it, or leave it out of the peer's agents"
            )
