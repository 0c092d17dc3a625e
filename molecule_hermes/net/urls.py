"""URLs and hosts in settings, and the URLs of this bridge."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

__all__ = [
    "RESERVED_NAMES",
    "base_url",
    "call_url",
    "host_in_url",
    "http_url",
    "local_base_url",
    "parse_hosts",
    "parse_public_url",
    "plain_url",
]

_HOST = re.compile(
    r"([\w.-]+|\[[0-9a-f:.]+\])(:\d{1,5})?|[0-9a-f:.]*:[0-9a-f:.]*:[0-9a-f:.]*", re.I
)
_VISIBLE = re.compile(r"[!-~]{1,2048}")
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
        "deliveries",
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


def local_base_url(host: str, port: int) -> str:
    """Where a client on this machine reaches a server that listens on the host."""
    everywhere = host.strip("[]") in ("0.0.0.0", "::")  # noqa: S104 - compared only
    return base_url("127.0.0.1" if everywhere else host.strip("[]"), port)


def http_url(value: object) -> str:
    """Returns the URL without trailing slashes. Raises `ValueError`."""
    text = str(value).rstrip("/")
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("not a URL")
    _ = parts.port  # raises ValueError if it is not a number
    return text


def call_url(value: object) -> str:
    """Returns the URL as it is. Raises `ValueError` if it has a user or a fragment."""
    text = str(value)
    http_url(text)
    if not _VISIBLE.fullmatch(text) or "@" in urlsplit(text).netloc or "#" in text:
        raise ValueError("not a URL to call")
    return text


def plain_url(value: object) -> str:
    """Returns a URL that says only where something is, without trailing slashes.

    Raises `ValueError`.
    """
    text = call_url(value)
    if "?" in text:
        raise ValueError("a URL with a query")
    return http_url(text)


def parse_hosts(value: object) -> object:
    """Returns the `host` and `host:port` entries between commas. Raises `ValueError`."""
    if not isinstance(value, str):
        return value
    hosts = tuple(filter(None, (entry.strip() for entry in value.split(","))))
    if not all(_HOST.fullmatch(host) for host in hosts):
        raise ValueError("bad entry")
    return hosts
