"""The plugin that runs inside Hermes: the platform `molecule_a2a`.

Hermes finds it by the entry point `molecule-a2a` in the group `hermes_agent.plugins` and calls
`register`. No module of Hermes is imported before that.
"""

from __future__ import annotations

from typing import Any

from molecule_hermes.plugin.settings import (
    ENTRY_POINT,
    PLATFORM,
    PluginSettings,
    enabled_by_env,
    hermes_settings,
)

__all__ = ["ENTRY_POINT", "PLATFORM", "PluginSettings", "hermes_settings", "register"]

_HINT = (
    "You are talking with another agent over the A2A protocol. It sees your final answer as "
    "Markdown and the files you hand over. It cannot use slash commands: never suggest one."
)


def register(ctx: Any) -> None:
    """Called by Hermes with its plugin context (hermes_cli/plugins.py)."""
    from molecule_hermes.plugin.hooks import Hooks
    from molecule_hermes.plugin.model_requests import ModelRequests
    from molecule_hermes.plugin.tools import workspace
    from molecule_hermes.plugin.tools.peers import PeerTools

    hooks = Hooks()
    peer_tools = PeerTools(hooks.current_turn)

    def adapter(config: Any) -> Any:
        from molecule_hermes.plugin.adapter import MoleculeAdapter

        return MoleculeAdapter(config, hooks, peer_tools)

    ctx.register_platform(
        name=PLATFORM,
        label="Molecule A2A",
        adapter_factory=adapter,
        check_fn=_has_aiohttp,
        install_hint="pip install aiohttp",
        is_connected=_is_configured,
        env_enablement_fn=enabled_by_env,
        emoji="🔗",
        platform_hint=_HINT,
        allow_update_command=False,
    )
    hooks.register(ctx)
    hooks.policy.register(ctx)
    ModelRequests(hooks.current_turn).register(ctx)
    workspace.register(ctx)
    peer_tools.register(ctx)


def _has_aiohttp() -> bool:
    try:
        import aiohttp  # noqa: F401
    except ImportError:
        return False
    return True


def _is_configured(config: Any) -> bool:
    extra = config.extra or {}
    return bool(extra.get("port") or extra.get("host") or extra.get("enabled_by_env"))
