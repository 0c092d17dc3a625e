"""The profiles of a Hermes that serves several."""

from __future__ import annotations

from typing import Any

__all__ = ["agent_key_of", "answer_for_profile", "has_profiles", "profiles"]


def has_profiles(runner: Any) -> bool:
    """Whether Hermes serves profiles; otherwise it ignores `SessionSource.profile`.

    `GatewayConfig.multiplex_profiles`, as Hermes itself asks it (gateway/run.py:18758).
    """
    return bool(getattr(getattr(runner, "config", None), "multiplex_profiles", False))


def profiles() -> frozenset[str]:
    """The names of the profiles, as the API server asks for them (api_server.py:1409).

    `profiles_to_serve` (hermes_cli/profiles.py:949) reads the folder each time, so that a new
    profile counts at once.
    """
    from hermes_cli.profiles import profiles_to_serve

    return frozenset(name for name, _ in profiles_to_serve(multiplex=True))


def answer_for_profile(runner: Any, profile: str, adapter: Any) -> None:
    """Has Hermes take the adapter for the profile's, too.

    `GatewayRunner._profile_adapters` (gateway/run.py:3093) holds the adapters of other profiles
    than the first. Without an entry `_authorization_adapter` (gateway/authz_mixin.py:49) drops the
    message as one of an unauthorized user.
    """
    runner._profile_adapters.setdefault(profile, {})[adapter.platform] = adapter


def agent_key_of(runner: Any, source: Any) -> str:
    """The key of the session under which Hermes keeps its agent.

    `GatewayRunner._session_key_for_source` (gateway/run.py:3828). It names the profile
    (`agent:PROFILE:…`), and the key of the platform's base class does not.
    """
    return str(runner._session_key_for_source(source))
