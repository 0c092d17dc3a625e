"""`molecule-hermes agents`: agents, routes and peers, and which agent a request gets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from molecule_hermes.agents.routes import Choice, Routes
from molecule_hermes.config import (
    AgentConfig,
    RouteConfig,
    Settings,
    load_configuration,
    with_peers,
)
from molecule_hermes.text import one_line, shorten

__all__ = ["Overview", "Request"]

_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Request:
    """What is known of a request; the peer "" is not authenticated."""

    peer: str = ""
    tenant: str = ""
    context: str = ""
    skill: str = ""

    def __str__(self) -> str:
        named = [f"{name} {value!r}" for name, value in asdict(self).items() if value]
        return "a request" + (f" with {', '.join(named)}" if named else "")


class Overview:
    """The configuration as its operator sees it. Creating it raises `ConfigError`."""

    def __init__(self, settings: Settings) -> None:
        self._configuration = load_configuration(settings)
        self._settings = with_peers(settings, self._configuration)
        self._routes = Routes(self._configuration)
        self.warnings = self._configuration.warnings

    def lines(self) -> Iterator[str]:
        yield "agents"
        yield from _columns(
            [
                (each.name, self._isolation(each), _where(each), _about(each))
                for each in self._configuration.agents.values()
            ]
        )
        yield "routes"
        routes = enumerate(self._configuration.routes, 1)
        rows = [(str(number), _conditions(each), f"→ {each.agent}") for number, each in routes]
        yield from _columns([*rows, ("", "otherwise", f"→ {self._configuration.default}")])
        yield "peers"
        yield f"  {', '.join(self._peers) or 'none: callers need no token'}"
        if any(peer.url for peer in self._configuration.peers.values()):
            yield "other agents that they may ask"
            yield from _columns(
                [
                    (each.name, ", ".join(self._calls(each)) or "none")
                    for each in self._configuration.agents.values()
                ]
            )

    def as_json(self) -> dict[str, Any]:
        return {
            "agents": [self._agent(each) for each in self._configuration.agents.values()],
            "routes": [
                {name: value for name, value in asdict(each).items() if value not in ("", "*")}
                for each in self._configuration.routes
            ],
            "default": self._configuration.default,
            "peers": self._peers,
            "warnings": list(self.warnings),
        }

    def answer(self, request: Request) -> Answer:
        choice = self._routes.explain(request.peer, request.tenant, request.context, request.skill)
        return Answer(request, choice, self._note(request.peer))

    def _note(self, peer: str) -> str:
        if peer == "" and self._peers:
            return "every caller is a peer here: name one with --peer"
        if peer and peer not in self._peers:
            return f"no peer has the name {peer!r}"
        return ""

    @property
    def _peers(self) -> list[str]:
        return [*self._settings.peer_tokens]

    def _isolation(self, agent: AgentConfig) -> str:
        return self._configuration.isolation(agent.name, self._settings)

    def _calls(self, agent: AgentConfig) -> list[str]:
        """Whom the agent may ask for a peer that is none of them."""
        peers = self._configuration.peers.values()
        return [peer.name for peer in peers if peer.url and agent.may_call(peer, "")]

    def _agent(self, agent: AgentConfig) -> dict[str, Any]:
        remote = agent.hermes
        return {
            "name": agent.name,
            "title": agent.title,
            "description": agent.description,
            "isolation": self._isolation(agent),
            "calls": self._calls(agent),
            "hermes": remote
            and {"plugin": remote.plugin, "api": remote.api, "profile": remote.profile},
        }


@dataclass(frozen=True, slots=True)
class Answer:
    """Which agent a request gets, or that it is refused."""

    request: Request
    choice: Choice
    note: str = ""

    @property
    def is_refused(self) -> bool:
        return not (self.choice.agent and self.choice.allowed)

    @property
    def _by(self) -> str:
        if self.choice.route is not None:
            return f"route {self.choice.route + 1}"
        return "its tenant" if self.request.tenant else "the default"

    def lines(self) -> Iterator[str]:
        yield f"{self.request}: {self._refusal or f'agent {self.choice.agent}, by {self._by}'}"
        if self.note:
            yield f"note: {self.note}"

    def as_json(self) -> dict[str, Any]:
        route = self.choice.route
        return asdict(self.request) | {
            "agent": None if self.is_refused else self.choice.agent,
            "route": None if route is None else route + 1,
            "refused": self._refusal or None,
            "note": self.note or None,
        }

    @property
    def _refusal(self) -> str:
        if not self.is_refused:
            return ""
        if not self.choice.agent:
            return "refused: the tenant is not an agent, and no route takes it"
        return (
            f"refused: {self._by} leads to agent {self.choice.agent}, which the peer may not reach"
        )


def _where(agent: AgentConfig) -> str:
    if agent.hermes is None:
        return "managed"
    profile = f" (profile {agent.hermes.profile})" if agent.hermes.profile else ""
    return f"{agent.hermes.plugin or agent.hermes.api}{profile}"


def _about(agent: AgentConfig) -> str:
    return shorten(one_line(agent.description or agent.title), _SHOWN)


def _conditions(route: RouteConfig) -> str:
    given = [(name, getattr(route, name)) for name in ("peer", "tenant", "context", "skill")]
    return " ".join(f"{name}={value}" for name, value in given if value not in ("", "*")) or "all"


def _columns(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield f"  {'  '.join(cells)}".rstrip()
