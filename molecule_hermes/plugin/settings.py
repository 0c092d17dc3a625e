"""The plugin's settings, and the settings of Hermes that the plugin needs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from molecule_hermes.plugin.handover import received
from molecule_hermes.plugin.kept_files import Bounds
from molecule_hermes.text import is_loopback
from molecule_hermes.wire import DEFAULT_PLATFORM_PORT, MAX_BODY_BYTES, MAX_FILE_BYTES

__all__ = [
    "API_KEY",
    "ENTRY_POINT",
    "PLATFORM",
    "SECRET",
    "SECRETS",
    "PluginSettings",
    "enabled_by_env",
    "hermes_settings",
    "restart_settings",
]

ENTRY_POINT = "molecule-a2a"
# With an underscore, because Hermes's `/api/platforms/NAME/events` turns `-` into `_`.
PLATFORM = "molecule_a2a"

API_KEY = "API_SERVER_KEY"
SECRET = "MOLECULE_A2A_PLATFORM_SHARED_SECRET"  # noqa: S105 - the name of a variable
SECRETS = (API_KEY, SECRET)
"""Variables that nothing Hermes starts may see."""
_HOST = "MOLECULE_A2A_PLATFORM_HOST"
_PORT = "MOLECULE_A2A_PLATFORM_PORT"
_CALLBACKS = "MOLECULE_A2A_PLATFORM_CALLBACKS"
_ENABLED = "MOLECULE_A2A_PLATFORM_ENABLED"
_NUMBERS = (
    "max_body",
    "max_file",
    "max_chats",
    "max_threads",
    "max_waiting",
    "max_deliveries",
    "max_deliveries_of_chat",
    "journal_for",
    "journal_bytes",
    "flush_for",
    "keep_files_days",
    "keep_files_bytes",
    "keep_files_bytes_of_chat",
)
_MAY_BE_ZERO = ("keep_files_days",)
_KEPT = Bounds()


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """From `platforms.molecule_a2a.extra` in config.yaml, else from the environment.

    The secret of the bridge that started this Hermes takes precedence over both, and its address
    is added to the callbacks. `from_extra` raises a ValueError that names the setting.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PLATFORM_PORT
    secret: str = field(default="", repr=False)
    callbacks: tuple[str, ...] = ()
    """`host` or `host:port` of bridges that may be called back; empty: any on loopback."""
    folder_per_chat: bool = False
    """Whether each chat has its own working folder and delivers files only from there."""
    system_prompt: str = ""
    max_body: int = MAX_BODY_BYTES
    max_file: int = MAX_FILE_BYTES
    max_chats: int = 1024
    max_threads: int = 10
    max_waiting: int = 64
    max_deliveries: int = 256
    """Deliveries that run, or that no bridge has acknowledged."""
    max_deliveries_of_chat: int = 16
    journal_for: float = 3600.0
    """Seconds for which an ended turn can be attached to, after a bridge has acknowledged it."""
    journal_bytes: int = 64 * 2**20
    """Bytes of all turns that can be attached to."""
    flush_for: float = 4.0
    keep_files_days: float = _KEPT.days
    """0 means that files are removed at the end of their turn."""
    keep_files_bytes: int = _KEPT.in_all
    keep_files_bytes_of_chat: int = _KEPT.of_chat

    @property
    def kept(self) -> Bounds:
        return Bounds(self.keep_files_days, self.keep_files_bytes, self.keep_files_bytes_of_chat)

    @classmethod
    def from_extra(cls, extra: Mapping[str, Any], env: Mapping[str, str] | None = None) -> Self:
        env = os.environ if env is None else env
        defaults = cls()
        given: dict[str, Any] = {
            "host": str(extra.get("host") or env.get(_HOST) or defaults.host),
            "port": _port(extra.get("port") or env.get(_PORT) or defaults.port),
            "secret": str(received().secret or extra.get("secret") or env.get(SECRET) or ""),
            "callbacks": received().callbacks
            + _hosts(extra.get("callbacks") or env.get(_CALLBACKS) or ()),
            "folder_per_chat": bool(extra.get("folder_per_chat", False)),
            "system_prompt": str(extra.get("system_prompt") or ""),
        }
        for name in _NUMBERS:
            if name in extra:
                given[name] = _number(name, extra[name], type(getattr(defaults, name)))
        if not given["secret"] and not is_loopback(given["host"]):
            raise ValueError(f"host {given['host']} of {PLATFORM} needs a shared secret ({SECRET})")
        return cls(**given)


def enabled_by_env(env: Mapping[str, str] | None = None) -> dict[str, Any] | None:
    """Tells Hermes whether to run the platform without a section in config.yaml.

    The result has no host and no port: Hermes merges it over the section (gateway/config.py:2509),
    and config.yaml must take precedence over the environment.
    """
    env = os.environ if env is None else env
    wanted = env.get(_ENABLED, "").strip().lower()
    if wanted in {"false", "0", "no", "off"}:
        return None
    if wanted or env.get(_PORT, "").strip():
        return {"enabled_by_env": True}
    return None


def hermes_settings(
    host: str = "127.0.0.1",
    port: int = DEFAULT_PLATFORM_PORT,
    *,
    approvals: str = "manual",
    approval_timeout: int = 300,
    drain_timeout: int = 20,
) -> dict[str, Any]:
    """The keys of Hermes's config.yaml that the plugin needs, to be merged over the operator's.

    The secret is not one of them; it belongs in the environment.
    """
    return {
        "plugins": {"enabled": [ENTRY_POINT]},
        "platforms": {PLATFORM: _section(host, port)},
        # Without a cursor a draft is the text itself; 20 drafts per second are enough.
        "streaming": {
            "enabled": True,
            "transport": "auto",
            "cursor": "",
            "edit_interval": 0.05,
            "buffer_threshold": 1,
        },
        "display": {"platforms": {PLATFORM: _display()}},
        "approvals": {"mode": approvals, "timeout": approval_timeout},
        # Otherwise Hermes offers the first peer to build a profile, and rewrites config.yaml.
        "onboarding": {"profile_build": "off"},
        **restart_settings(drain_timeout),
    }


def restart_settings(drain_timeout: int = 20) -> dict[str, Any]:
    """What makes Hermes stop and start predictably, with and without the plugin."""
    return {
        "agent": {
            # If unset, SIGTERM ends a running turn without a reply.
            "restart_drain_timeout": drain_timeout,
            # If unset, Hermes runs every recent session again after an unclean exit.
            "gateway_auto_continue_freshness": 0.01,
        },
        # By default Hermes sends undelivered replies again after a restart as
        # "♻️ Recovered reply…", and silently delays the sixth start in two minutes by up to
        # 160 s; `up` has a backoff of its own.
        "gateway": {"delivery_ledger": False, "respawn_storm": {"max_starts": 0}},
        # Otherwise the first turn may run `pip install`.
        "security": {"allow_lazy_installs": False},
    }


def _section(host: str, port: int) -> dict[str, Any]:
    # Without a home channel every new chat gets a notice about /sethome. If the home channel is
    # on another platform, Hermes silently ignores the whole section.
    home = {"platform": PLATFORM, "chat_id": "home", "name": "home"}
    return {"enabled": True, "home_channel": home, "extra": {"host": host, "port": port}}


def _display() -> dict[str, Any]:
    # The plugin reports tools from hooks; Hermes's own messages would repeat that.
    return {"streaming": True, "tool_progress": "off", "show_reasoning": False}


def _hosts(value: object) -> tuple[str, ...]:
    """Hosts from a list in config.yaml or from comma-separated text."""
    entries = value.split(",") if isinstance(value, str) else value
    if not isinstance(entries, list | tuple) or not all(isinstance(e, str) for e in entries):
        raise ValueError(f"callbacks of {PLATFORM} must be a list of host or host:port")
    return tuple(filter(None, (entry.strip() for entry in entries)))


def _port(value: object) -> int:
    try:
        port = int(str(value))
    except ValueError:
        port = 0
    if not 1 <= port <= 65535 or isinstance(value, bool):
        raise ValueError(f"port {value!r} of {PLATFORM} must be a number from 1 to 65535 ({_PORT})")
    return port


def _number(name: str, value: object, kind: type[int] | type[float]) -> int | float:
    try:
        number = kind(str(value))
    except ValueError:
        number = kind(-1)
    zero = number == 0 and name in _MAY_BE_ZERO
    if not (number > 0 or zero) or isinstance(value, bool):
        least = "of at least 0" if name in _MAY_BE_ZERO else "above 0"
        raise ValueError(f"{name} {value!r} of {PLATFORM} must be a number {least}")
    return number
