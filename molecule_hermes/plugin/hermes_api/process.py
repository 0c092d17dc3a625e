"""The process, before Hermes runs."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from typing import Any

__all__ = ["lend_api_key", "strip_from_tools", "withhold_toolsets"]


def strip_from_tools(always: Iterable[str], names: Iterable[str] = ()) -> None:
    """Keeps variables out of the environment of what Hermes's tools start.

    Hermes strips the variables in `_HERMES_PROVIDER_ENV_BLOCKLIST`
    (tools/environments/local.py:332): API_SERVER_KEY and most model keys, but not a plugin's
    secret. Agents of other vendors that Hermes starts (`inherit_credentials`) lose only those in
    `_ALWAYS_STRIP_KEYS` (local.py:504).
    """
    from tools.environments import local

    # Any: both are read before they are replaced, so that a Hermes without them fails loudly.
    hermes: Any = local
    hermes._HERMES_PROVIDER_ENV_BLOCKLIST |= {*always, *names}
    hermes._ALWAYS_STRIP_KEYS |= {*always}


def lend_api_key(variable: str, key: str) -> None:
    """Sets the variable only while Hermes reads its configuration from the environment.

    The API server gets its key from the configuration (gateway/config.py:2007), also when it is
    started again, so nothing needs the variable later. Replaces `load_gateway_config`
    (config.py:1187). gateway.run takes the name when it is imported, so it must not have been.
    """
    from gateway import config

    load = config.load_gateway_config

    @functools.wraps(load)
    def load_gateway_config() -> Any:
        os.environ[variable] = key
        try:
            return load()
        finally:
            os.environ.pop(variable, None)

    config.load_gateway_config = load_gateway_config


def withhold_toolsets(names: Iterable[str], platforms: frozenset[str]) -> None:
    """Makes agents for these platforms without the toolsets, and without memory in the prompt.

    Replaces `AIAgent.__init__` (run_agent.py:423); subagents inherit
    (tools/delegate_tool.py:1166). This is done in the process, not in config.yaml, because that
    also holds for the operator's own use of Hermes, and tools can write to it.
    """
    import run_agent

    withheld = list(names)
    init = run_agent.AIAgent.__init__

    @functools.wraps(init)
    def narrowed(self: Any, *args: Any, **given: Any) -> None:
        if given.get("platform") in platforms:
            given["disabled_toolsets"] = [*(given.get("disabled_toolsets") or ()), *withheld]
            # Without the toolset Hermes still shows MEMORY.md and USER.md to the model
            # (agent/system_prompt.py:483) and has them written after turns.
            given["skip_memory"] = given.get("skip_memory") or "memory" in withheld
        init(self, *args, **given)

    run_agent.AIAgent.__init__ = narrowed
