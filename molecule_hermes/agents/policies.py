"""What the configuration says about agents and peers, as settings and as policies of turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from molecule_hermes.agents.outbound import OutboundCalls
from molecule_hermes.config import AgentConfig, Configuration, PeerConfig, Settings
from molecule_hermes.protocol.chain import Loops
from molecule_hermes.protocol.policy import Policy
from molecule_hermes.wire import MAIN_AGENT

__all__ = ["delivery_policy", "policies", "policy_of", "settings_of"]


def settings_of(agent: AgentConfig, settings: Settings) -> Settings:
    """The settings with what the agent's configuration says instead."""
    own: Mapping[str, Any] = {
        "name": agent.title or (settings.name if agent.name == MAIN_AGENT else agent.name),
        "description": agent.description or settings.description,
        "system_prompt": agent.system_prompt,
        "models": agent.models,
        "approvals": agent.approvals,
        "deliveries": None if agent.deliveries is None else agent.deliveries == "allow",
    }
    return settings.model_copy(update={k: v for k, v in own.items() if v is not None})


def policy_of(
    agent: AgentConfig, peer: PeerConfig, settings: Settings, calls: OutboundCalls | None = None
) -> Policy:
    """Each of them can only take away: a peer gets no model that the agent does not offer, and
    no question that the agent does not ask."""
    own = settings_of(agent, settings)
    models = tuple(m for m in own.models if peer.models is None or m in peer.models)
    return Policy(
        system_prompt=own.system_prompt,
        models=models,
        approvals="deny" if "deny" in (own.approvals, peer.approvals) else "ask",
        toolsets=peer.toolsets,
        profile=agent.hermes.profile if agent.hermes is not None else "",
        loops=calls.loops(agent.name) if calls is not None else Loops(),
        reach=calls.reach(agent, peer.name) if calls is not None else None,
    )


def delivery_policy(
    configuration: Configuration, settings: Settings
) -> Callable[[str, str | None], bool]:
    """Whether an agent may speak to a peer unasked, or to anyone (None)."""

    def allows(agent: str, peer: str | None) -> bool:
        config = configuration.agents.get(agent)
        if config is None or not settings_of(config, settings).deliveries:
            return False
        return peer is None or configuration.peer(peer).deliveries != "deny"

    return allows


def policies(
    agent: AgentConfig,
    configuration: Configuration,
    settings: Settings,
    calls: OutboundCalls | None = None,
) -> Callable[[str], Policy]:
    """The policy of each peer. They are made now, not for each turn."""
    of_others = policy_of(agent, PeerConfig(""), settings, calls)
    own = {
        name: policy_of(agent, peer, settings, calls) for name, peer in configuration.peers.items()
    }
    return lambda peer: own.get(peer) or _for(peer, of_others, agent, calls)


def _for(peer: str, policy: Policy, agent: AgentConfig, calls: OutboundCalls | None) -> Policy:
    """The policy of a peer that the configuration does not name."""
    if calls is None:
        return policy
    return replace(policy, reach=calls.reach(agent, peer))
