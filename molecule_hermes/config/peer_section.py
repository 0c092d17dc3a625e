"""The section `peers` of the configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from molecule_hermes.config.agents import AgentConfig, OAuthClient, PeerConfig, Webhook
from molecule_hermes.config.checks import PATTERN, matches_one_of
from molecule_hermes.config.named_files import NamedFiles
from molecule_hermes.config.policies import (
    approvals,
    deliveries,
    limits,
    model_names,
    plain_url,
    toolsets,
)
from molecule_hermes.config.values import Value
from molecule_hermes.net.urls import call_url

__all__ = ["read_peer"]

_KEYS = (
    "agents",
    "approvals",
    "bearer_file",
    "card_key_file",
    "deliveries",
    "limits",
    "models",
    "oauth",
    "token_file",
    "toolsets",
    "url",
    "webhook",
)
_OAUTH_KEYS = ("client_id", "client_secret_file", "scope", "token_url")
_WORD = r"[!-~]{1,1024}"


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
        webhook=_webhook(found["webhook"], files) if "webhook" in found else None,
        **_outbound(found, files),
        **policies,
    )
    if peer.toolsets is not None:
        _require_enforceable(found["toolsets"], peer, agents)
    return peer


_POLICIES = {
    "approvals": approvals,
    "deliveries": deliveries,
    "limits": limits,
    "models": model_names,
    "toolsets": toolsets,
}


def _webhook(value: Value, files: NamedFiles) -> Webhook:
    """A URL, or a mapping with one."""
    if isinstance(value.tree.value, str):
        return Webhook(_webhook_url(value))
    found = value.fields(("token_file", "url"))
    if "url" not in found:
        raise value.error("needs a url")
    token = files.secret(found["token_file"]) if "token_file" in found else None
    return Webhook(_webhook_url(found["url"]), token)


def _webhook_url(value: Value) -> str:
    takes = "a URL with http:// or https:// and a host, without a user or a fragment"
    try:
        return call_url(value.text(takes, shown=False))
    except ValueError:
        raise value.invalid(takes, shown=False) from None


def _outbound(found: Mapping[str, Value], files: NamedFiles) -> dict[str, Any]:
    """Where the peer itself can be called, and with what."""
    if "url" not in found:
        for key in ("bearer_file", "card_key_file", "oauth"):
            if key in found:
                raise found[key].error("is for calling the peer, and there is no url")
        return {}
    if "bearer_file" in found and "oauth" in found:
        raise found["oauth"].error("cannot stand beside bearer_file: a peer is called with one")
    read: dict[str, Any] = {"url": plain_url(found["url"])}
    if "bearer_file" in found:
        read["bearer"] = files.secret(found["bearer_file"])
    if "oauth" in found:
        read["oauth"] = _oauth(found["oauth"], files)
    if "card_key_file" in found:
        read["card_keys"] = files.text(found["card_key_file"]).read_bytes()
    return read


def _oauth(value: Value, files: NamedFiles) -> OAuthClient:
    found = value.fields(_OAUTH_KEYS)
    for key in ("client_id", "client_secret_file", "token_url"):
        if key not in found:
            raise value.error(f"needs {key}")
    scope = (
        found["scope"].text("words between spaces", r"[!-~]+( [!-~]+)*") if "scope" in found else ""
    )
    return OAuthClient(
        plain_url(found["token_url"]),
        found["client_id"].text("one word of at most 1024 characters", _WORD),
        files.secret(found["client_secret_file"]),
        scope,
    )


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
