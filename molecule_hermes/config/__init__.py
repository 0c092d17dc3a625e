"""The configuration: the only package that reads the environment and the configuration file."""

from molecule_hermes.config.agents import (
    AgentConfig,
    Configuration,
    Isolation,
    Limits,
    OAuthClient,
    PeerConfig,
    RemoteHermes,
    RouteConfig,
    Webhook,
    isolation_of,
    uses_main_hermes,
)
from molecule_hermes.config.fields import PREFIX
from molecule_hermes.config.file import load_configuration, with_peers
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
    "Isolation",
    "Limits",
    "OAuthClient",
    "PeerConfig",
    "RemoteHermes",
    "RouteConfig",
    "Settings",
    "Webhook",
    "isolation_of",
    "load_configuration",
    "secret_variables",
    "settings_table",
    "unknown_variables",
    "uses_main_hermes",
    "with_peers",
]
