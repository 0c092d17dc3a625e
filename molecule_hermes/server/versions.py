"""The A2A version that a request asks for.

The SDK reads the header only, and its error names neither the operation nor the remedy.
"""

from __future__ import annotations

import re

from a2a.server.context import ServerCallContext
from a2a.server.routes import DefaultServerCallContextBuilder
from a2a.utils.constants import PROTOCOL_VERSION_0_3, PROTOCOL_VERSION_1_0, VERSION_HEADER
from a2a.utils.errors import VersionNotSupportedError
from starlette.requests import HTTPConnection, Request

from molecule_hermes.agents.request_handler import PATH_AGENT

__all__ = ["V03", "V10", "CallContextBuilder", "requested_version", "require_version"]

V03, V10 = PROTOCOL_VERSION_0_3, PROTOCOL_VERSION_1_0

_VERSION = re.compile(r"v?(\d+)(?:\.\d+)*")
_MAX_LENGTH = 32
"""The SDK fails on a version of thousands of digits."""


def requested_version(conn: HTTPConnection) -> str:
    """The version in the header, else in the query string, else an empty string."""
    return conn.headers.get(VERSION_HEADER) or conn.query_params.get(VERSION_HEADER, "")


def require_version(conn: HTTPConnection, served: str, operation: str) -> None:
    """Raises `VersionNotSupportedError` if the request asks for another major version.

    A request without a version counts as 0.3.
    """
    requested = requested_version(conn)
    if _major(requested or V03) == _major(served):
        return
    found = (
        f"asks for A2A-Version {requested[:_MAX_LENGTH]!r}"
        if requested
        else f"has no A2A-Version header, which means {V03}"
    )
    raise VersionNotSupportedError(
        f"{operation} belongs to A2A {served}, but the request {found}; "
        f"send the header A2A-Version: {served}"
        + (f", or use the operations of A2A {V10}" if served == V03 else "")
    )


def _major(version: str) -> str | None:
    if len(version) > _MAX_LENGTH:
        return None
    found = _VERSION.fullmatch(version.strip())
    return found[1] if found else None


class CallContextBuilder(DefaultServerCallContextBuilder):
    """Passes the version in the query string on to the SDK as if it were the header, and the agent
    in the path to the request handler."""

    def build(self, request: Request) -> ServerCallContext:
        context = super().build(request)
        context.state["headers"][VERSION_HEADER.lower()] = requested_version(request)
        context.state[PATH_AGENT] = request.path_params.get("agent", "")
        return context
