"""The table of open connections: what each one waits for, and which one is closed first.

It does no I/O: `http.py` reports what happens on sockets and closes what the table names.
"""

from __future__ import annotations

import ipaddress
import math
import resource
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Generic, Protocol, TypeVar

__all__ = [
    "TIME_LIMITS",
    "ConnectionTable",
    "Phase",
    "default_limit",
    "network_of",
    "open_files_limit",
]

_MOST_BY_DEFAULT = 10_000
_RESERVE = 16
_SETTLED = 1.0
"""Seconds after which an honest client has sent the head of its request."""


class Phase(Enum):
    HEAD = "head"
    """The head of a request has not arrived completely."""
    BODY = "body"
    """The head is complete, the body is not."""
    RESPONSE = "response"
    """The request is complete and being answered, however long its turn takes."""
    WRITE = "write"
    """The client does not read its response."""
    LINGER = "linger"
    """The response is complete. The client may still be sending a body that nobody reads, or be
    slow to take the last bytes."""
    IDLE = "idle"
    """Between two requests."""


TIME_LIMITS: Mapping[Phase, float] = {
    Phase.HEAD: 10.0,
    # BodyMiddleware answers a body that takes 30 s with 408; this ends what it does not read.
    Phase.BODY: 40.0,
    Phase.WRITE: 60.0,
    Phase.LINGER: 10.0,
    # More than clients keep a connection (httpx 5, aiohttp 15): a message that a client sends
    # while the server closes the connection is lost.
    Phase.IDLE: 75.0,
}
"""Seconds. A response has no limit: the turn behind it has one."""


class Connection(Protocol):
    network: str
    phase: Phase | None
    """None before the connection is in the table and after it has left."""
    spare: bool
    """The connection is over the limits: it gets probes and refusals, and no turns."""


C = TypeVar("C", bound=Connection)


class ConnectionTable(Generic[C]):
    """Counts connections in all and per network, and orders those that wait by their age."""

    def __init__(
        self,
        limit: int,
        limit_of_network: int,
        time_limits: Mapping[Phase, float] = TIME_LIMITS,
        reserve: int = _RESERVE,
    ) -> None:
        self.limit = limit
        self._limit_of_network = limit_of_network
        self._time_limits = time_limits
        self._reserve = reserve
        # A dict keeps the order of insertion, and a connection that changes its phase goes to the
        # end: the first one is the one that has waited longest.
        self._since: dict[Phase, dict[C, float]] = {phase: {} for phase in Phase}
        self._spares: dict[C, None] = {}
        self._of_network: Counter[str] = Counter()

    def __len__(self) -> int:
        return sum(len(connections) for connections in self._since.values())

    def add(self, connection: C, now: float) -> C | None:
        """Adds a new connection; returns the one that has to be closed for it, if any.

        A connection that is over the limits, with nothing to close in its favour, becomes one of a
        few spare ones.
        """
        victim, connection.spare = self._make_room(connection.network, now)
        if connection.spare:
            if len(self._spares) >= self._reserve:
                victim = next(iter(self._spares))
            self._spares[connection] = None
        else:
            self._of_network[connection.network] += 1
        if victim is not None:
            self.remove(victim)
        connection.phase = Phase.HEAD
        self._since[Phase.HEAD][connection] = now
        return victim

    def _make_room(self, network: str, now: float) -> tuple[C | None, bool]:
        """The connection to close, and whether the limits are exceeded without one."""
        if self._of_network[network] >= self._limit_of_network:
            victim = self._longest_waiting(now, network)
        elif len(self) - len(self._spares) >= self.limit:
            victim = self._longest_waiting(now)
        else:
            return None, False
        return victim, victim is None

    def _longest_waiting(self, now: float, network: str | None = None) -> C | None:
        """A connection that costs its client nothing or little when it is closed.

        Clients that send no request go first. Closing an idle connection may meet a request that
        is on its way, closing one that has just been accepted certainly does.
        """
        since = self._since
        waiting: Iterator[C] = (
            connection
            for connections in (
                since[Phase.LINGER],
                (c for c, at in since[Phase.HEAD].items() if now - at > _SETTLED),
                since[Phase.IDLE],
                since[Phase.WRITE],
                since[Phase.HEAD],
            )
            for connection in connections
            if not connection.spare and network in (None, connection.network)
        )
        return next(waiting, None)

    def enter(self, connection: C, phase: Phase, now: float) -> None:
        """Notes that a connection has entered a phase; nothing changes if it is in it already."""
        if connection.phase is None or connection.phase is phase:
            return
        del self._since[connection.phase][connection]
        connection.phase = phase
        self._since[phase][connection] = now

    def remove(self, connection: C) -> None:
        """Forgets a connection; it may have been removed before."""
        if connection.phase is None:
            return
        del self._since[connection.phase][connection]
        connection.phase = None
        if connection.spare:
            del self._spares[connection]
            return
        self._of_network[connection.network] -= 1
        if not self._of_network[connection.network]:
            del self._of_network[connection.network]

    def overdue(self, now: float) -> Iterable[tuple[C, Phase]]:
        """The connections that have been in their phase for longer than its time limit."""
        found: list[tuple[C, Phase]] = []
        for phase, limit in self._time_limits.items():
            for connection, since in self._since[phase].items():
                if now - since < limit:
                    break
                found.append((connection, phase))
        return found


def default_limit() -> int:
    """Half of the files that this process may open: a turn opens another one to Hermes."""
    return int(max(1, min(open_files_limit() // 2, _MOST_BY_DEFAULT)))


def open_files_limit() -> float:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if files == resource.RLIM_INFINITY else files


def network_of(host: str) -> str:
    """What counts as one address: an IPv4 address, or the /64 network that one IPv6 client has."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
