"""The addresses of a profile's API, and whether Hermes really serves profiles.

A Hermes without `gateway.multiplex_profiles` ignores `/p/NAME` in a path and answers as its root
agent (gateway/platforms/api_server.py:1399). It gives itself away by answering for a name that
nobody has given to a profile.
"""

from __future__ import annotations

import secrets

import aiohttp

from molecule_hermes.errors import BadRequest

__all__ = ["base_of", "require_profiles"]

_TIMEOUT = aiohttp.ClientTimeout(total=5.0)


def base_of(base_url: str, profile: str) -> str:
    """The base URL of the profile's API; Hermes's own without a profile."""
    if not profile:
        return base_url
    return f"{base_url.removesuffix('/v1')}/p/{profile}/v1"


async def require_profiles(http: aiohttp.ClientSession, base_url: str, profile: str) -> None:
    """Raises `BadRequest` if Hermes does not serve the profile, and aiohttp's errors."""
    nobody = f"nobody-{secrets.token_hex(8)}"
    if await _status(http, base_of(base_url, nobody)) == 200:
        raise BadRequest(
            f"Hermes does not serve profiles, and would answer as its root in place of {profile!r}",
            hint="set gateway.multiplex_profiles: true in that Hermes's config.yaml and restart it",
        )
    if await _status(http, base_of(base_url, profile)) == 404:
        raise BadRequest(
            f"Hermes has no profile {profile!r}",
            hint="make it with `hermes profile create`, or correct the profile of the agent",
        )


async def _status(http: aiohttp.ClientSession, base_url: str) -> int:
    url = f"{base_url}/models"
    async with http.get(url, timeout=_TIMEOUT, allow_redirects=False) as response:
        return response.status
