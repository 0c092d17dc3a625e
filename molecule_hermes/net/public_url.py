"""The address that peers call: which values of PUBLIC_URL are one."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

__all__ = ["RESERVED_NAMES", "parse_public_url"]

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
"""Names in the paths that the bridge serves itself, and those that mean another folder."""


def parse_public_url(value: object) -> str:
    """The URL without a slash at its end; raises `ValueError`.

    JSON-RPC and REST are mounted at its path, so the path consists of plain names: nothing that
    Starlette would read as a parameter, or a proxy as another path.
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
