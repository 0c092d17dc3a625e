"""Starts Hermes for a bridge: `python -m molecule_hermes.plugin.launcher hermes gateway run`.

The words after the module are Hermes's own command line; with `hermes` among them Hermes
recognises the process as its gateway (gateway/status.py:345).
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable
from typing import Any

from molecule_hermes.plugin.handover import Handover, HandoverError, receive
from molecule_hermes.plugin.hardening import forbid_inspection
from molecule_hermes.plugin.settings import API_KEY, PLATFORM

__all__ = ["main"]

_PEERS = frozenset({PLATFORM, "api_server"})
"""The platforms of agents that peers talk to; subagents inherit (tools/delegate_tool.py:1166)."""


def main() -> int:
    # Before anything is read that others should not read.
    forbid_inspection()
    try:
        handover = Handover.read(sys.stdin.buffer)
    except HandoverError as error:
        # Without the secret anybody on this machine could command the agent.
        sys.stderr.write(f"molecule-hermes: {error}; start Hermes with `molecule-hermes up`\n")
        return 2
    _forget_standard_input()
    receive(handover)
    os.environ.update(handover.environ)
    sys.argv = sys.argv[1:]
    return _run(handover)


def _run(handover: Handover) -> int:
    # First: it sets up paths and the environment that the others read when they are imported.
    from hermes_cli.main import main as hermes

    from molecule_hermes.plugin.tool_environment import keep_from_tools

    keep_from_tools(handover.environ)
    if handover.api_key:
        _lend_api_key(handover.api_key)
    if handover.disabled_toolsets:
        _withhold_toolsets(handover.disabled_toolsets)
    return int(hermes() or 0)


def _forget_standard_input() -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def _lend_api_key(key: str) -> None:
    """Has the key in the environment only while Hermes reads its configuration from there.

    The API server gets it from the configuration (gateway/config.py:2007), also when it is
    started again; nothing needs the variable later.
    """
    from gateway import config

    load = config.load_gateway_config

    @functools.wraps(load)
    def load_gateway_config() -> Any:
        os.environ[API_KEY] = key
        try:
            return load()
        finally:
            os.environ.pop(API_KEY, None)

    # gateway.run, which takes the name when it is imported, is not yet.
    config.load_gateway_config = load_gateway_config


def _withhold_toolsets(names: Iterable[str]) -> None:
    """Makes agents for peers without these toolsets, and without Hermes's memory in the prompt.

    In the process, not in config.yaml: that also holds for the operator's own use of Hermes, and
    tools can write to it.
    """
    import run_agent

    withheld = list(names)
    init = run_agent.AIAgent.__init__

    @functools.wraps(init)
    def narrowed(self: Any, *args: Any, **given: Any) -> None:
        if given.get("platform") in _PEERS:
            given["disabled_toolsets"] = [*(given.get("disabled_toolsets") or ()), *withheld]
            # Without the toolset Hermes still shows MEMORY.md and USER.md to the model
            # (agent/system_prompt.py:483) and has them written after turns.
            given["skip_memory"] = given.get("skip_memory") or "memory" in withheld
        init(self, *args, **given)

    run_agent.AIAgent.__init__ = narrowed


if __name__ == "__main__":
    sys.exit(main())
