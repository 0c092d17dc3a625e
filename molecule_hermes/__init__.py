"""A bridge between A2A peers and the Hermes agent.

What this module exports is the public interface; everything below it may change between versions.
Each name is imported when it is first used, so that the plugin inside Hermes, which imports this
package, too, does not load the server's dependencies.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from molecule_hermes.config import Settings
    from molecule_hermes.embedding import EmbeddedExecutor, ExecutorConfig, create_executor
    from molecule_hermes.errors import BridgeError, ConfigError, StartError, TurnFailure
    from molecule_hermes.executor import HermesAgentProxyExecutor

__all__ = [
    "BridgeError",
    "ConfigError",
    "EmbeddedExecutor",
    "ExecutorConfig",
    "HermesAgentProxyExecutor",
    "Settings",
    "StartError",
    "TurnFailure",
    "__version__",
    "create_executor",
]

__version__ = "0.1.0"

_HOMES = {
    "BridgeError": "errors",
    "ConfigError": "errors",
    "EmbeddedExecutor": "embedding",
    "ExecutorConfig": "embedding",
    "HermesAgentProxyExecutor": "executor",
    "Settings": "config",
    "StartError": "errors",
    "TurnFailure": "errors",
    "create_executor": "embedding",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
