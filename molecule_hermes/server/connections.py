"""The table of open connections: the phase of each one, and which one is closed first.

It does no I/O: `http.py` reports the events of sockets and closes the connections that the table
selects.
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
"""Seconds within which an ordinary client sends the headers of its request."""


class Phase(Enum):
    HEAD = "head"
    """The headers of a request are incomplete."""
    BODY = "body"
    """The headers are complete, the body is not."""
    RESPONSE = "response"
    """The request is complete, and the response is not. It lasts as long as its turn."""
    WRITE = "write"
    """The client does not read its response."""
    LINGER = "linger"
    """The response is complete. The client may still be sending an unread body, or be slow to read
    the last bytes."""
    IDLE = "idle"
    """Between two requests."""


TIME_LIMITS: Mapping[Phase, float] = {
    Phase.HEAD: 10.0,
    # BodyMiddleware responds with 408 after 30 s; this limit is for bodies that it does not read.
    Phase.BODY: 40.0,
    Phase.WRITE: 60.0,
    Phase.LINGER: 10.0,
    # Longer than clients keep a connection (httpx 5 s, aiohttp 15 s): a message that a client sends
    # while the server closes the connection is lost.
    Phase.IDLE: 75.0,
}
"""Seconds. RESPONSE has no limit, because the turn has one."""


class Connection(Protocol):
    network: str
    phase: Phase | None
    """None before the connection is in the table and after it has left."""
    spare: bool
    """The connection is over the limits: it may only call the probes."""


C = TypeVar("C", bound=Connection)


class ConnectionTable(Generic[C]):
    """Counts connections in total and per network, and orders those in a phase by their age."""

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
        # A dict keeps the insertion order, and a connection that enters a phase goes to the end:
        # the first one has been in its phase for the longest time.
        self._since: dict[Phase, dict[C, float]] = {phase: {} for phase in Phase}
        self._spares: dict[C, None] = {}
        self._of_network: Counter[str] = Counter()

    def __len__(self) -> int:
        return sum(len(connections) for connections in self._since.values())

    def add(self, connection: C, now: float) -> C | None:
        """Adds a new connection; returns the one that must be closed for it, if any.

        If the limits are reached and no other connection can be closed, the new one becomes one of
        a few spare connections.
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
        """The connection whose closing harms its client least.

        Connections without a request come first. A request may be on its way to an idle connection,
        and is almost certainly on its way to one that was just accepted.
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
        """Records the phase of a connection; its time begins when the phase changes."""
        if connection.phase is None or connection.phase is phase:
            return
        del self._since[connection.phase][connection]
        connection.phase = phase
        self._since[phase][connection] = now

    def remove(self, connection: C) -> None:
        """Removes a connection, unless it has been removed before."""
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
    """Half of the files that this process may open: each turn opens a connection to Hermes, too."""
    return int(max(1, min(open_files_limit() // 2, _MOST_BY_DEFAULT)))


def open_files_limit() -> float:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if files == resource.RLIM_INFINITY else files


def network_of(host: str) -> str:
    """The unit of the per-address limit: an IPv4 address, or the /64 network of an IPv6 address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
