"""What the first turn of a gateway waits for."""

from __future__ import annotations

__all__ = ["MODULES", "probe_environment"]

MODULES = (
    "run_agent",
    "model_tools",
    "openai",
    "openai.resources.chat",
    "hermes_cli.commands",
)
"""What Hermes imports only when an agent begins."""


def probe_environment() -> None:
    """Finds out about Python on this machine, which the system prompt says.

    `get_environment_probe_line` (tools/env_probe.py:258) waits for a few subprocesses, at most for
    its own limit. `agent.environment_probe: false` in config.yaml keeps Hermes from asking
    (agent/agent_init.py:1556).
    """
    from tools.env_probe import get_environment_probe_line

    get_environment_probe_line()
