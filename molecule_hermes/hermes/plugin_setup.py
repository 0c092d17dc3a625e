"""Writes the plugin into Hermes's configuration."""

from __future__ import annotations

import math
from typing import Any

from molecule_hermes.config import Settings
from molecule_hermes.hermes.home import HermesHome
from molecule_hermes.plugin.settings import ENTRY_POINT, PLATFORM, hermes_settings

__all__ = ["enable", "plugin_config"]


def enable(home: HermesHome, settings: Settings, *, even_if_disabled: bool = False) -> None:
    """Merges the platform's stanza and `plugins.enabled` into config.yaml. Idempotent.

    With `even_if_disabled`, the plugin is also removed from `plugins.disabled`.
    """
    home.create()
    home.merge_config(*plugin_config(settings, folder_per_chat=settings.has_several_peers))
    home.change_list(("plugins", "enabled"), add=ENTRY_POINT)
    if even_if_disabled:
        home.change_list(("plugins", "disabled"), remove=ENTRY_POINT)


def plugin_config(
    settings: Settings, *, folder_per_chat: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the plugin requires in config.yaml, and what it sets where nothing is set."""
    host, port = settings.platform_host, settings.platform_port
    extra = {
        "host": host,
        "port": port,
        "system_prompt": settings.system_prompt,
        "max_threads": settings.max_running + settings.max_questions,
        # A single peer expects to find the files of one conversation in the next.
        "folder_per_chat": folder_per_chat,
        "journal_for": settings.keep_turns,
        "journal_bytes": settings.keep_turns_bytes,
        "keep_files_days": settings.keep_files_days,
        "keep_files_bytes": settings.keep_files_bytes,
        "keep_files_bytes_of_chat": settings.keep_files_bytes_of_conversation,
    }
    required = {"platforms": {PLATFORM: {"enabled": True, "extra": extra}}}
    # The bridge answers for a peer that does not, so Hermes must wait longer than the bridge.
    approval_timeout = math.ceil(settings.question_timeout) + 60
    return required, hermes_settings(host, port, approval_timeout=approval_timeout)
