"""Which addresses the plugin calls back, and which bridge may control a message.

All output of a turn goes to its callback address. So the address must be the bridge's that started
this Hermes, or one that the operator allows; if there is neither, it must be on this machine.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from urllib.parse import urlsplit

from molecule_hermes.text import is_loopback

__all__ = [
    "CallbackRefusedError",
    "ForbiddenError",
    "OtherBridgeError",
    "require_allowed",
    "require_same_bridge",
]


class ForbiddenError(Exception):
    """The request has the right secret but is not allowed; `kind` is for programs."""

    kind = "forbidden"


class CallbackRefusedError(ForbiddenError):
    """The callback address of the message is not allowed."""

    kind = "callback_refused"


class OtherBridgeError(ForbiddenError):
    """The request does not come from the bridge that sent the message."""

    kind = "other_bridge"


def require_allowed(url: str, callbacks: Sequence[str]) -> None:
    """Raises `CallbackRefusedError` unless one of `callbacks` matches the URL; without any, the
    URL must be on loopback."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if not callbacks and is_loopback(host):
        return
    if not any(_matches(entry, host, port) for entry in callbacks):
        raise CallbackRefusedError("the callback address is not allowed")


def require_same_bridge(sender: str, bridge: str, former: Sequence[str] = ()) -> None:
    """Raises `OtherBridgeError` if the message came from a bridge with another name."""
    names = [hmac.compare_digest(name.encode(), bridge.encode()) for name in (sender, *former)]
    if sender and not any(names):
        raise OtherBridgeError("the message was sent by another bridge")


def _matches(entry: str, host: str, port: int) -> bool:
    # A bare IPv6 address has colons and no port.
    bare = entry.count(":") > 1 and not entry.startswith("[")
    try:
        allowed = urlsplit(f"//[{entry}]" if bare else f"//{entry}")
        return allowed.hostname == host and allowed.port in (None, port)
    except ValueError:
        return False
