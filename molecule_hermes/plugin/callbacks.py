"""Which addresses the plugin calls back.

Whoever may choose the address gets all that a turn says, so it has to be the bridge's: one that
was handed over or allowed, else one on this machine.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from urllib.parse import urlsplit

from molecule_hermes.text import is_loopback
from molecule_hermes.wire import Inbound

__all__ = [
    "CallbackRefusedError",
    "ForbiddenError",
    "OtherBridgeError",
    "require_allowed",
    "require_same_bridge",
]


class ForbiddenError(Exception):
    """The request has the secret, and is refused all the same; `kind` is for programs."""

    kind = "forbidden"


class CallbackRefusedError(ForbiddenError):
    """The message names an address that is not a bridge's."""

    kind = "callback_refused"


class OtherBridgeError(ForbiddenError):
    """The request does not come from the bridge that sent the message."""

    kind = "other_bridge"


def require_allowed(url: str, callbacks: Sequence[str]) -> None:
    """Raises `CallbackRefusedError` unless the URL is at one of the hosts, or on loopback if
    there are none."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if not callbacks and is_loopback(host):
        return
    if not any(_matches(entry, host, port) for entry in callbacks):
        raise CallbackRefusedError("the callback address is not among those that are allowed")


def require_same_bridge(inbound: Inbound, bridge: str) -> None:
    """A message that names its bridge takes answers and cancels from that one only."""
    if inbound.bridge and not hmac.compare_digest(inbound.bridge.encode(), bridge.encode()):
        raise OtherBridgeError("the message is another bridge's")


def _matches(entry: str, host: str, port: int) -> bool:
    # A bare IPv6 address has colons and no port.
    bare = entry.count(":") > 1 and not entry.startswith("[")
    try:
        allowed = urlsplit(f"//[{entry}]" if bare else f"//{entry}")
        return allowed.hostname == host and allowed.port in (None, port)
    except ValueError:
        return False
