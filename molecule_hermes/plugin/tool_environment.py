"""Keeps variables out of the environment of what Hermes's tools start."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from molecule_hermes.plugin.settings import API_KEY, SECRET

__all__ = ["keep_from_tools"]


def keep_from_tools(names: Iterable[str] = ()) -> None:
    """Adds our secrets and the given variables to what Hermes strips.

    Hermes strips the variables it knows, API_SERVER_KEY and most model keys among them, but not
    a plugin's secret (tools/environments/local.py:332), and leaves the API's key to agents of
    other makers that it runs (local.py:504, `inherit_credentials`).
    """
    from tools.environments import local

    # Any: both are read before they are replaced, so that a Hermes without them fails loudly.
    hermes: Any = local
    hermes._HERMES_PROVIDER_ENV_BLOCKLIST |= {API_KEY, SECRET, *names}
    hermes._ALWAYS_STRIP_KEYS |= {API_KEY, SECRET}
