"""What a thread that works on a turn can find out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = [
    "can_show_image",
    "cost_of",
    "current_message_id",
    "enter_folder",
    "hermes_home",
    "is_background_review",
    "is_interrupted",
    "path_for_tools",
    "working_directory",
]


def current_message_id() -> str:
    """The message that this thread or task works on; empty outside of a turn.

    `get_session_env` (gateway/session_context.py:304).
    """
    from gateway.session_context import get_session_env

    return str(get_session_env("HERMES_SESSION_MESSAGE_ID") or "")


def is_background_review() -> bool:
    """Whether this thread runs Hermes's review of a turn that has ended.

    `is_background_review` (tools/skill_provenance.py:75), set at agent/turn_context.py:308.
    """
    from tools.skill_provenance import is_background_review as reviews

    return bool(reviews())


def cost_of(model: str, provider: str, base_url: str, usage: Mapping[str, Any]) -> float | None:
    """What a model call cost in US dollars; None if Hermes does not know the price.

    `estimate_usage_cost` (agent/usage_pricing.py:1202), which Hermes itself has just called with
    the same figures (agent/conversation_loop.py:2311), so that it knows the prices by now.
    """
    from agent.usage_pricing import CanonicalUsage, estimate_usage_cost

    kinds = ("input", "output", "cache_read", "cache_write", "reasoning")
    counts = {f"{kind}_tokens": int(usage.get(f"{kind}_tokens") or 0) for kind in kinds}
    cost = estimate_usage_cost(
        model, CanonicalUsage(**counts), provider=provider, base_url=base_url
    ).amount_usd
    return None if cost is None else float(cost)


def enter_folder(folder: Path, session_id: str) -> None:
    """Makes the folder the working directory of the turn that begins.

    `set_session_cwd` (agent/runtime_cwd.py:44) is for the prompt and the files that are read
    into it; Hermes runs the agent in a copy of this context. The terminal looks the folder up
    under the session's key (tools/terminal_tool.py:2454), the file tools and execute_code under
    its id (`record_session_cwd`, terminal_tool.py:1090). A folder below, where a `cd` of an
    earlier turn led, stays.
    """
    from agent.runtime_cwd import set_session_cwd
    from gateway.session_context import get_session_env
    from tools.terminal_tool import get_session_cwd, record_session_cwd

    set_session_cwd(str(folder))
    for key in (get_session_env("HERMES_SESSION_KEY"), session_id):
        if not Path(get_session_cwd(key) or "").is_relative_to(folder):
            record_session_cwd(key, str(folder))


def is_interrupted() -> bool:
    """Whether Hermes wants the tool that runs in this thread to stop.

    `is_interrupted` (tools/interrupt.py:62).
    """
    from tools.interrupt import is_interrupted as interrupted

    return bool(interrupted())


def working_directory() -> Path:
    """The agent's working directory; outside of a turn this is `terminal.cwd`.

    `resolve_agent_cwd` (agent/runtime_cwd.py:60).
    """
    from agent.runtime_cwd import resolve_agent_cwd

    return Path(resolve_agent_cwd())


def hermes_home() -> Path:
    """`get_hermes_home` (hermes_constants.py:107)."""
    from hermes_constants import get_hermes_home

    return Path(get_hermes_home())


def path_for_tools(path: Path) -> str:
    """The path of something in a cache as the agent's tools see it, which may be in a container.

    `to_agent_visible_cache_path` (tools/credential_files.py:473).
    """
    from tools.credential_files import to_agent_visible_cache_path

    return str(to_agent_visible_cache_path(str(path)))


def can_show_image(path: Path) -> bool:
    """Whether Hermes can turn the image into one that models accept; otherwise it drops it.

    `_file_to_data_url` (agent/image_routing.py:615).
    """
    from agent.image_routing import _file_to_data_url

    return _file_to_data_url(path) is not None
