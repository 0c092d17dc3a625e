"""The configuration: the only package that reads the environment and the configuration file."""

from molecule_hermes.config.agents import (
    AgentConfig,
    Configuration,
    Limits,
    PeerConfig,
    RemoteHermes,
    RouteConfig,
)
from molecule_hermes.config.fields import PREFIX
from molecule_hermes.config.settings import Settings
from molecule_hermes.config.variables import (
    secret_variables,
    settings_table,
    unknown_variables,
)

__all__ = [
    "PREFIX",
    "AgentConfig",
    "Configuration",
    "Limits",
    "PeerConfig",
    "RemoteHermes",
    "RouteConfig",
    "Settings",
    "secret_variables",
    "settings_table",
    "unknown_variables",
]
