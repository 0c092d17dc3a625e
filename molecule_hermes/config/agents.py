"""What operators say about agents, routes and peers.

Without a configuration file there is one agent, `main`, and the environment says the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import SecretStr

from molecule_hermes.wire import MAIN_AGENT

if TYPE_CHECKING:
    from molecule_hermes.config.settings import Settings

__all__ = [
    "AgentConfig",
    "Configuration",
    "Isolation",
    "Limits",
    "OAuthClient",
    "PeerConfig",
    "RemoteHermes",
    "RouteConfig",
    "Webhook",
    "isolation_of",
    "uses_main_hermes",
]

Isolation = Literal["shared", "peer"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Of turns; 0 means no limit besides those of the whole bridge."""

    running: int = 0
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class RemoteHermes:
    """A Hermes that this bridge does not run. `profile` is one of those that it multiplexes."""

    plugin: str = ""
    """The URL of its plugin; empty where `api` is used."""
    api: str = ""
    """The URL of its API, which ends in /v1."""
    profile: str = ""
    secret: SecretStr | None = None
    """The shared secret of its plugin, or the key of its API."""


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """What an agent is. Every field that is unset leaves it to the settings, or to Hermes."""

    name: str = MAIN_AGENT
    title: str = ""
    """Its name on its card."""
    description: str = ""
    isolation: Isolation | None = None
    model: str = ""
    """As HERMES_INFERENCE_MODEL names it."""
    models: tuple[str, ...] | None = None
    """The models that a message may choose."""
    system_prompt: str | None = None
    soul: Path | None = None
    """The file that becomes its SOUL.md."""
    skills: Path | None = None
    """The folder that becomes its skills."""
    toolsets: tuple[str, ...] | None = None
    mcp_servers: Mapping[str, Any] = field(default_factory=dict)
    hermes_config: Mapping[str, Any] = field(default_factory=dict)
    """What is merged into Hermes's config.yaml."""
    env: Mapping[str, SecretStr] = field(default_factory=dict, repr=False)
    """Variables for Hermes, such as the keys of model providers."""
    approvals: Literal["ask", "deny"] | None = None
    deliveries: Literal["allow", "deny"] | None = None
    limits: Limits = Limits()
    calls: tuple[str, ...] | None = None
    """Patterns for the peers that it may call; None: all that the configuration gives a URL, but
    for the one that it works for."""
    hermes: RemoteHermes | None = None

    def may_call(self, peer: PeerConfig, caller: str) -> bool:
        """Whether the agent may call the peer in a turn for the peer `caller`."""
        if self.calls is None:
            return peer.name != caller and not peer.from_registry
        return any(fnmatchcase(peer.name, pattern) for pattern in self.calls)

    @property
    def shapes_hermes(self) -> bool:
        """Whether it says what its Hermes is, so that this is no folder of the operator's."""
        said = (self.model, self.soul, self.skills, self.mcp_servers, self.hermes_config, self.env)
        return any(said) or self.toolsets is not None


@dataclass(frozen=True, slots=True)
class RouteConfig:
    """Patterns as those of file names: `*`, `?` and `[…]`."""

    agent: str
    peer: str = "*"
    tenant: str = ""
    """Empty: the route is for requests that name no tenant."""
    context: str = "*"
    skill: str = "*"


@dataclass(frozen=True, slots=True)
class Webhook:
    url: str
    token: SecretStr | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self.token.get_secret_value()}"} if self.token else {}


@dataclass(frozen=True, slots=True)
class OAuthClient:
    """How the bridge gets the tokens with which it calls a peer: client credentials."""

    token_url: str
    client_id: str
    client_secret: SecretStr
    scope: str = ""


@dataclass(frozen=True, slots=True)
class PeerConfig:
    name: str
    token: SecretStr | None = None
    agents: tuple[str, ...] = ("*",)
    """Patterns for the agents that the peer may reach."""
    toolsets: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    approvals: Literal["ask", "deny"] | None = None
    deliveries: Literal["allow", "deny"] | None = None
    limits: Limits = Limits()
    webhook: Webhook | None = None
    """Where the peer's deliveries are posted."""
    url: str = ""
    """Where the peer itself is an agent that can be called."""
    bearer: SecretStr | None = None
    """The token with which the bridge calls the peer."""
    oauth: OAuthClient | None = None
    card_keys: bytes = b""
    """The public key, or the JSON Web Key Set, that its card is signed with."""
    from_registry: bool = False
    """Whether a registry names it, and not the operator."""
    at_interface: bool = False
    """Whether the URL is one where it answers: its card is below that, or at its origin."""
    source: str = field(default="", compare=False)
    """The file and the line; empty for a peer that only the environment names."""

    def may_reach(self, agent: str) -> bool:
        return any(fnmatchcase(agent, pattern) for pattern in self.agents)


@dataclass(frozen=True, slots=True)
class Configuration:
    agents: Mapping[str, AgentConfig] = field(default_factory=lambda: {MAIN_AGENT: AgentConfig()})
    routes: tuple[RouteConfig, ...] = ()
    default: str = MAIN_AGENT
    """The agent for requests that match no route."""
    peers: Mapping[str, PeerConfig] = field(default_factory=dict)
    warnings: tuple[str, ...] = field(default=(), compare=False)
    """What the operator should know, and what stops nothing."""

    secret_files: tuple[Path, ...] = field(default=(), compare=False)
    """The files that secrets were read from."""

    def isolation(self, agent: str, settings: Settings) -> Isolation:
        """Whether the peers that may reach the agent share its Hermes, or each has one of its own.

        The settings have the tokens of all peers.
        """
        reach = [name for name in settings.peer_tokens if self.peer(name).may_reach(agent)]
        return isolation_of(self.agents[agent], settings, peers=len(reach))

    def peer(self, name: str) -> PeerConfig:
        """What is said about the peer, if anything."""
        return self.peers.get(name) or PeerConfig(name)


def isolation_of(agent: AgentConfig, settings: Settings, *, peers: int) -> Isolation:
    """Whether the peers that reach the agent share its Hermes, or each has one of its own."""
    if agent.hermes is not None:
        return "shared"
    default: Isolation = "peer" if peers > 1 and not settings.shared_memory else "shared"
    return agent.isolation or settings.isolation or default


def uses_main_hermes(settings: Settings, configuration: Configuration) -> bool:
    """Whether `up` runs Hermes on HERMES_HOME itself: for the main agent, if its peers share it,
    the configuration file does not say what it is, and `up` runs no other agent.

    To all other workers that folder is a template. An agent that lived in it could change what the
    others are made from.
    """
    managed = [name for name, agent in configuration.agents.items() if agent.hermes is None]
    if managed != [MAIN_AGENT] or configuration.agents[MAIN_AGENT].shapes_hermes:
        return False
    return configuration.isolation(MAIN_AGENT, settings) == "shared"
