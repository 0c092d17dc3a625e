"""What the first turn of a gateway waits for."""

from __future__ import annotations

__all__ = ["MODULES", "probe_environment"]

MODULES = (
    "run_agent",
    "model_tools",
    "openai",
    "openai.resources.chat",
    "hermes_cli.commands",
    "hermes_cli.models",
    "hermes_cli.tools_config",
    "agent.coding_context",
    "agent.credits_tracker",
    "agent.models_dev",
    "agent.system_prompt",
    "agent.transports",
    "gateway.status_phrases",
    "httpcore",
    "packaging.specifiers",
)
"""What Hermes imports only when an agent begins: all that took 5 ms or more (measured)."""


def probe_environment() -> None:
    """Finds out about Python on this machine, which the system prompt says.

    `get_environment_probe_line` (tools/env_probe.py:258) waits for a few subprocesses, at most for
    its own limit. `agent.environment_probe: false` in config.yaml keeps Hermes from asking
    (agent/agent_init.py:1556).
    """
    from tools.env_probe import get_environment_probe_line

    get_environment_probe_line()
