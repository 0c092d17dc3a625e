"""Which agent a request is for. Pure: decided from names, without I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import translate

from molecule_hermes.config import Configuration, RouteConfig

__all__ = ["Choice", "Routes"]

_SPECIAL = frozenset("*?[")
_Matcher = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Choice:
    """The agent of a request, and why."""

    agent: str
    """Empty if the tenant is unknown."""
    route: int | None = None
    """The place of the route that decided; without one, the tenant's name or the default did."""
    allowed: bool = True
    """Whether the peer may reach the agent."""


class Routes:
    """The routes of a configuration.

    A tenant that is an agent's name is that agent. Otherwise the first matching route decides, and
    the default takes requests that name no tenant. A peer that may not reach the agent that was
    decided on is refused: it does not get the next one.

    The peer that is not authenticated is "", and an ID or name that a request lacks is "", too.
    """

    def __init__(self, configuration: Configuration) -> None:
        self._agents = frozenset(configuration.agents)
        self._default = configuration.default
        self._routes = [_Route(number, each) for number, each in enumerate(configuration.routes)]
        self._reach = {
            name: [_matcher(pattern) for pattern in peer.agents]
            for name, peer in configuration.peers.items()
            if "*" not in peer.agents
        }

    def choose(self, peer: str, tenant: str, context: str, skill: str) -> str | None:
        """The request's agent. None: no such tenant, or none that this peer may reach."""
        choice = self.explain(peer, tenant, context, skill)
        return choice.agent if choice.agent and choice.allowed else None

    def explain(self, peer: str, tenant: str, context: str, skill: str) -> Choice:
        """The decision behind `choose`, for the operator."""
        if tenant in self._agents:
            return Choice(tenant, None, self.allows(peer, tenant))
        for route in self._for(peer, tenant):
            if route.context(context) and route.skill(skill):
                return Choice(route.agent, route.number, self.allows(peer, route.agent))
        agent = "" if tenant else self._default
        return Choice(agent, None, bool(agent) and self.allows(peer, agent))

    def reachable(self, peer: str, tenant: str) -> tuple[str, ...]:
        """The agents that requests of this peer and tenant can get, whatever their context and
        skill, in the order of the routes."""
        return tuple(
            dict.fromkeys(each for each in self._possible(peer, tenant) if self.allows(peer, each))
        )

    def allows(self, peer: str, agent: str) -> bool:
        """Whether the peer's own patterns include the agent."""
        patterns = self._reach.get(peer)
        return patterns is None or any(matches(agent) for matches in patterns)

    def peers_of(self, agent: str, peers: Iterable[str]) -> tuple[str, ...]:
        """Those of the peers that can reach the agent: by its name as the tenant, they all can."""
        return tuple(peer for peer in peers if self.allows(peer, agent))

    def _possible(self, peer: str, tenant: str) -> Iterator[str]:
        if tenant in self._agents:
            yield tenant
            return
        for route in self._for(peer, tenant):
            yield route.agent
            if route.is_unconditional:
                return
        if not tenant:
            yield self._default

    def _for(self, peer: str, tenant: str) -> Iterator[_Route]:
        return (each for each in self._routes if each.tenant(tenant) and each.peer(peer))


class _Route:
    """A route with its patterns compiled."""

    __slots__ = ("agent", "context", "is_unconditional", "number", "peer", "skill", "tenant")

    def __init__(self, number: int, route: RouteConfig) -> None:
        self.number = number
        self.agent = route.agent
        self.peer = _matcher(route.peer)
        self.tenant = _named(_matcher(route.tenant)) if route.tenant else _is_empty
        self.context = _matcher(route.context)
        self.skill = _matcher(route.skill)
        self.is_unconditional = (route.context, route.skill) == ("*", "*")


def _matcher(pattern: str) -> _Matcher:
    if pattern == "*":
        return _anything
    if not _SPECIAL.intersection(pattern):
        return pattern.__eq__
    # As fnmatch.fnmatchcase does, whose cache holds too few patterns.
    return re.compile(translate(pattern)).match


def _anything(_: str) -> object:
    return True


def _is_empty(tenant: str) -> object:
    return not tenant


def _named(matches: _Matcher) -> _Matcher:
    """A route with a tenant is for requests that name one, also with the pattern `*`."""
    return lambda tenant: tenant and matches(tenant)
