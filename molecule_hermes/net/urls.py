"""URLs of this bridge: the public one, and those made of a host and a port."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

__all__ = ["RESERVED_NAMES", "base_url", "host_in_url", "parse_public_url"]

_PUBLIC_URL = re.compile(
    r"(?i:https?)://(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?((?:/[A-Za-z0-9._~-]+)*)/*"
)
RESERVED_NAMES = frozenset(
    {
        ".",
        "..",
        ".well-known",
        "agent-card.json",
        "agent.json",
        "card",
        "console",
        "extendedAgentCard",
        "healthz",
        "livez",
        "metrics",
        "readyz",
        "startupz",
        "tasks",
    }
)
"""Path segments that the bridge serves itself, and `.` and `..`."""


def parse_public_url(value: object) -> str:
    """Returns the URL without a trailing slash. Raises `ValueError` if peers could not call it.

    JSON-RPC and REST are mounted at its path. The path consists of plain segments only: Starlette
    would read others as parameters, and a proxy might rewrite them.
    """
    found = _PUBLIC_URL.fullmatch(str(value))
    if found is None:
        raise ValueError("not an address that peers can call")
    if RESERVED_NAMES.intersection(found[1].split("/")):
        raise ValueError("a path that the bridge serves itself")
    url = found[0].rstrip("/")
    parts = urlsplit(url)
    if not parts.hostname or parts.port == 0:
        raise ValueError("no host or port")
    return url


def host_in_url(host: str) -> str:
    """The host with brackets if it is an IPv6 address."""
    host = host.strip("[]")
    return f"[{host}]" if ":" in host else host


def base_url(host: str, port: int) -> str:
    return f"http://{host_in_url(host)}:{port}"
