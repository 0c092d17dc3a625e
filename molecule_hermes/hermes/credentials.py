"""The API key and the secret that the bridge shares with Hermes, and how Hermes gets them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from molecule_hermes.config import PREFIX, Settings
from molecule_hermes.hermes.home import HermesHome
from molecule_hermes.hermes.providers import keys_that_are_set
from molecule_hermes.plugin.handover import Handover
from molecule_hermes.plugin.settings import API_KEY, SECRET

__all__ = [
    "SHARED_TOOLSETS",
    "Credentials",
    "create_credentials",
    "create_handover",
    "known_credentials",
    "public_environment",
    "withheld_toolsets",
]

SHARED_TOOLSETS = ("session_search", "memory", "cronjob")
"""The toolsets through which one peer's agent can reach another peer's."""

_SHORTEST_SECRET = 16
"""Hermes refuses a shorter API key."""
_TRUE = frozenset({"true", "1", "yes", "on"})


@dataclass(frozen=True, slots=True)
class Credentials:
    """What authenticates the bridge to Hermes's API and to the plugin; "" means unknown."""

    api_key: str = field(repr=False)
    secret: str = field(repr=False)


def known_credentials(settings: Settings) -> Credentials:
    """The credentials of a running Hermes, from the environment or from its .env file."""
    return _find(settings, HermesHome(settings.home).read_env())


def create_credentials(settings: Settings, *, keep_config: bool = False) -> Credentials:
    """The credentials for a Hermes that is about to start; unknown ones are generated.

    The .env file counts in the user's own folder, and in any folder with `keep_config`. There, a
    key is generated only if the API server is enabled, because a key alone would enable it.
    """
    use_file = keep_config or not settings.owns_home
    env = HermesHome(settings.home).read_env() if use_file else {}
    found = _find(settings, {k: v for k, v in env.items() if len(v) >= _SHORTEST_SECRET})
    needs_key = not keep_config or env.get("API_SERVER_ENABLED", "").lower() in _TRUE
    return Credentials(
        found.api_key or (_generate() if needs_key else ""), found.secret or _generate()
    )


def _find(settings: Settings, env: Mapping[str, str]) -> Credentials:
    key, secret = settings.api_server_key, settings.shared_secret
    return Credentials(
        key.get_secret_value() if key else env.get(API_KEY, ""),
        secret.get_secret_value() if secret else env.get(SECRET, ""),
    )


def _generate() -> str:
    return secrets.token_urlsafe(32)


def withheld_toolsets(settings: Settings) -> tuple[str, ...]:
    """What the agent of a Hermes that all peers share does not get."""
    isolated = settings.has_several_peers and not settings.shared_memory
    return SHARED_TOOLSETS if isolated else ()


def create_handover(
    settings: Settings,
    credentials: Credentials,
    environ: Mapping[str, str],
    disabled_toolsets: tuple[str, ...] = (),
) -> Handover:
    """What the main Hermes receives over its standard input at each start."""
    return Handover(
        secret=credentials.secret,
        api_key=credentials.api_key,
        callbacks=(settings.callback_address,),
        environ={name: environ[name] for name in keys_that_are_set(environ)},
        disabled_toolsets=disabled_toolsets,
    )


def public_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without secrets and without the bridge's own settings.

    Hermes's tools inherit its environment and can print it, so Hermes receives secrets through
    the handover instead.
    """
    private = {API_KEY, SECRET, *keys_that_are_set(environ)}
    return {k: v for k, v in environ.items() if not k.startswith(PREFIX) and k not in private}
