"""The configuration file: agents, routes and peers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from molecule_hermes.config.agent_section import AGENT_NAME, AGENT_TAKES, read_agent
from molecule_hermes.config.agents import AgentConfig, Configuration, PeerConfig, RouteConfig
from molecule_hermes.config.checks import PATTERN, PATTERN_TAKES, matches_one_of, shadowed_by
from molecule_hermes.config.fields import PEER_NAME, PREFIX
from molecule_hermes.config.named_files import NamedFiles
from molecule_hermes.config.peer_section import read_peer
from molecule_hermes.config.settings import Settings
from molecule_hermes.config.values import Value
from molecule_hermes.config.yaml_tree import MAX_BYTES, YamlProblem, parse_yaml
from molecule_hermes.confined_files import read_regular
from molecule_hermes.errors import ConfigError
from molecule_hermes.text import shorten
from molecule_hermes.wire import MAIN_AGENT

__all__ = ["load_configuration", "with_peers"]

_MAX_AGENTS = 1000
_MAX_PEERS = 10_000
_MAX_ROUTES = 10_000
_TOKENS = f"{PREFIX}PEER_TOKENS"

_PEER_TAKES = "a peer's name: letters, digits, ., _, @ and -, at most 64"


def load_configuration(settings: Settings) -> Configuration:
    """Reads the file that MOLECULE_HERMES_CONFIG names, and the files that this one names.

    Raises `ConfigError`. A file near the limits takes seconds.
    """
    if settings.config is None:
        return Configuration()
    return _Loader(settings.config, settings).load()


def with_peers(settings: Settings, configuration: Configuration) -> Settings:
    """The settings with the tokens of the configuration's peers, too. Raises `ConfigError`."""
    tokens = dict(settings.peer_tokens)
    places = {token.get_secret_value(): f"{name!r} in {_TOKENS}" for name, token in tokens.items()}
    for peer in configuration.peers.values():
        if peer.token is None:
            continue
        what = f"{peer.source}: peers.{peer.name}"
        if peer.name in tokens:
            raise ConfigError(f"{what} has a token_file, and {peer.name!r} is in {_TOKENS}, too")
        token = peer.token.get_secret_value()
        if token in places:
            raise ConfigError(f"{what} has the token of {places[token]}")
        tokens[peer.name] = peer.token
        places[token] = f"peers.{peer.name} ({peer.source})"
    return settings.model_copy(update={"peer_tokens": tokens})


class _Loader:
    def __init__(self, file: Path, settings: Settings) -> None:
        self._file = file
        self._known_peers = settings.peer_tokens.keys()
        self._has_registry = settings.registry is not None
        self._warnings: list[str] = []
        self._files = NamedFiles(file.parent, self._warnings.append)

    def load(self) -> Configuration:
        found = self._read().fields(("agents", "default", "peers", "routes"))
        agents = self._agents(found.get("agents"))
        default = self._default(found, agents)
        peers = self._peers(found.get("peers"), agents)
        routes = self._routes(found.get("routes"), agents, peers)
        self._check_calls(found.get("agents"), agents, peers)
        return Configuration(
            agents=agents,
            routes=routes,
            default=default,
            peers=peers,
            warnings=tuple(self._warnings),
            secret_files=tuple(self._files.secrets),
        )

    def _read(self) -> Value:
        try:
            return Value(self._file, "", parse_yaml(read_regular(self._file, MAX_BYTES)))
        except OSError as error:
            raise ConfigError(
                f"cannot read {self._file}: {error.strerror}", f"{PREFIX}CONFIG names this file"
            ) from None
        except YamlProblem as problem:
            raise ConfigError(f"{self._file}:{problem.line}: {problem.message}") from None

    def _agents(self, section: Value | None) -> dict[str, AgentConfig]:
        takes = "a mapping of agents' names to what they are"
        entries = section.entries(takes, _MAX_AGENTS) if section else {}
        for name, value in entries.items():
            value.require_name(name, AGENT_NAME, AGENT_TAKES)
        agents = {name: read_agent(name, value, self._files) for name, value in entries.items()}
        return agents or dict(Configuration().agents)

    def _default(self, found: Mapping[str, Value], agents: Mapping[str, AgentConfig]) -> str:
        if "default" in found:
            return _agent_named(found["default"], agents)
        if MAIN_AGENT in agents:
            return MAIN_AGENT
        if len(agents) > 1:
            raise found["agents"].error(
                f"has no agent {MAIN_AGENT!r}: add `default: NAME`, for requests without a route"
            )
        return next(iter(agents))

    def _peers(
        self, section: Value | None, agents: Mapping[str, AgentConfig]
    ) -> dict[str, PeerConfig]:
        takes = "a mapping of peers' names to what they may do"
        entries = section.entries(takes, _MAX_PEERS) if section else {}
        peers = {}
        for name, value in entries.items():
            value.require_name(name, PEER_NAME, _PEER_TAKES)
            peers[name] = read_peer(name, value, self._files, agents)
            calls = peers[name].token is not None or name in self._known_peers
            if not calls and not peers[name].url:
                self._warn(value, f"has no token_file, and is not in {_TOKENS}: it cannot call")
        return peers

    def _routes(
        self,
        section: Value | None,
        agents: Mapping[str, AgentConfig],
        peers: Mapping[str, PeerConfig],
    ) -> tuple[RouteConfig, ...]:
        items = section.items("a list of routes", _MAX_ROUTES) if section else []
        routes = [_route(item, agents) for item in items]
        names = self._known_peers | peers.keys()
        for item, route in zip(items, routes, strict=True):
            if route.peer != "*" and not matches_one_of(route.peer, names):
                self._warn(item, f"is for peers like {route.peer!r}, and no such peer is known")
        if shadowed := shadowed_by(routes):
            number, earlier = shadowed
            raise items[number].error(
                f"can never match: {items[earlier].name} (line {items[earlier].line}) comes first "
                "and takes all its requests"
            )
        return tuple(routes)

    def _check_calls(
        self,
        section: Value | None,
        agents: Mapping[str, AgentConfig],
        peers: Mapping[str, PeerConfig],
    ) -> None:
        """Warns of patterns that no agent answers to. What a registry names is not known here."""
        if self._has_registry:
            return
        with_url = {name for name, peer in peers.items() if peer.url}
        for name, value in section.entries("", _MAX_AGENTS).items() if section else ():
            for pattern in agents[name].calls or ():
                if not matches_one_of(pattern, with_url):
                    self._warn(value, f"calls {pattern!r}, and no such peer has a url")

    def _warn(self, value: Value, what: str) -> None:
        self._warnings.append(str(value.error(what)))


def _route(value: Value, agents: Mapping[str, AgentConfig]) -> RouteConfig:
    found = value.fields(("agent", "context", "peer", "skill", "tenant"))
    if "agent" not in found:
        raise value.error("needs an agent")
    name = _agent_named(found.pop("agent"), agents)
    patterns = {key: each.text(PATTERN_TAKES, PATTERN) for key, each in found.items()}
    if (tenant := patterns.get("tenant")) in agents:
        raise found["tenant"].error(
            f"can never match: {tenant!r} is an agent, which is reached by its name"
        )
    return RouteConfig(agent=name, **patterns)


def _agent_named(value: Value, agents: Mapping[str, AgentConfig]) -> str:
    takes = f"the name of an agent: {shorten(', '.join(agents), 200)}"
    name = value.text(takes)
    if name not in agents:
        raise value.invalid(takes)
    return name
