"""The plugin in Hermes's configuration: enabling it, and why it is not bound.

Hermes binds it only if the package is installed beside it, `plugins.enabled` names it, and a
stanza (or the environment) switches its platform on. Whatever is missing, Hermes says nothing.
"""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil

from molecule_hermes.config import Settings
from molecule_hermes.errors import StartError
from molecule_hermes.hermes.home import HermesHome
from molecule_hermes.plugin.settings import (
    ENTRY_POINT,
    PLATFORM,
    enabled_by_env,
    hermes_settings,
)
from molecule_hermes.text import redact

__all__ = [
    "Hermes",
    "NotBoundError",
    "diagnose",
    "enable",
    "open_first_session",
    "platform_state",
    "recorded_state",
    "running_hermes",
    "system_prompt_of",
]

_ENABLE = "molecule-hermes plugin enable"
_FIND = (
    "import importlib.metadata as m, sys;"
    "found = m.entry_points(group='hermes_agent.plugins', name=sys.argv[1]);"
    "sys.exit(0 if list(found) else 9)"
)


class NotBoundError(StartError):
    """The plugin is not bound; `cause` is one word for programs."""

    def __init__(self, cause: str, message: str, hint: str) -> None:
        super().__init__(f"the plugin is not bound: {message}", hint)
        self.cause = cause


@dataclass(frozen=True, slots=True)
class Hermes:
    """A Hermes to look at: where it lives and what runs it."""

    home: HermesHome
    environ: Mapping[str, str]
    python: str = sys.executable
    logs: Sequence[Path] = ()
    url: str = ""
    """Where the bridge looks for the plugin."""

    @property
    def settings(self) -> Mapping[str, str]:
        """The environment as Hermes sees it: its .env wins (hermes_cli/env_loader.py)."""
        return {**self.environ, **self.home.read_env()}


def running_hermes(home: HermesHome, environ: Mapping[str, str], url: str = "") -> Hermes:
    """The gateway that runs on the home, with its own interpreter and environment."""
    logs = [home.path / "logs" / name for name in ("gateway.log", "agent.log", "errors.log")]
    try:
        process = psutil.Process(home.running_gateway() or -1)
        python = process.cmdline()[0]
        # Of a Hermes that `up` runs it cannot be read: taken as that of this command.
        with contextlib.suppress(psutil.AccessDenied):
            environ = process.environ()
        return Hermes(home, environ, python, logs, url)
    except (psutil.Error, ValueError, IndexError):
        return Hermes(home, environ, logs=logs, url=url)


def enable(home: HermesHome, settings: Settings, *, even_if_disabled: bool = False) -> None:
    """Merges the stanza and `plugins.enabled`; can be run again and again."""
    home.create()
    host, port = settings.platform_host, settings.platform_port
    extra = {
        "host": host,
        "port": port,
        "system_prompt": settings.system_prompt,
        "max_threads": settings.max_running + settings.max_questions,
        # A single peer expects to find the files of one conversation in the next.
        "folder_per_chat": settings.has_several_peers,
    }
    required = {"platforms": {PLATFORM: {"enabled": True, "extra": extra}}}
    # Hermes must wait longer than the bridge, which answers for a peer that does not.
    waits = math.ceil(settings.question_timeout) + 60
    home.merge_config(required, hermes_settings(host, port, approval_timeout=waits))
    home.change_list(("plugins", "enabled"), add=ENTRY_POINT)
    if even_if_disabled:
        home.change_list(("plugins", "disabled"), remove=ENTRY_POINT)


def system_prompt_of(home: HermesHome) -> str:
    """The prompt that the plugin gives Hermes with each message, from its stanza."""
    try:
        return str(home.read_config()["platforms"][PLATFORM]["extra"]["system_prompt"])
    except (KeyError, TypeError, StartError):
        return ""


async def platform_state(api_base: str, api_key: str) -> Mapping[str, Any] | None:
    """What Hermes says of our platform: its state, {} if it knows none, None if it cannot say.

    `status` stays "ok" whatever happens to a platform: only `platforms` tells, and it also holds
    what an earlier life of Hermes left there.
    """
    try:
        async with _hermes_api(api_base, api_key) as http:
            return _platform_in((await http.get("/health/detailed")).json())
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError):
        return None


def recorded_state(home: HermesHome) -> Mapping[str, Any] | None:
    """The same from the file where Hermes keeps it, for those who do not know the API's key."""
    try:
        return _platform_in(json.loads((home.path / "gateway_state.json").read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _platform_in(report: Any) -> Mapping[str, Any] | None:
    if report["gateway_state"] != "running":
        return None
    state = report["platforms"].get(PLATFORM, {})
    if state and _is_left_over(state["updated_at"], report["pid"]):
        return {}
    return state if isinstance(state, Mapping) else {}


def _is_left_over(written: str, pid: int) -> bool:
    try:
        return datetime.fromisoformat(written).timestamp() < psutil.Process(pid).create_time() - 1.0
    except psutil.Error:
        return False


async def open_first_session(api_base: str, api_key: str) -> None:
    """Where no session exists, Hermes appends a note for newcomers to the first peer's message."""
    with contextlib.suppress(httpx.HTTPError, ValueError, AttributeError):
        async with _hermes_api(api_base, api_key) as http:
            if not (await http.get("/api/sessions")).json().get("data"):
                await http.post("/api/sessions", json={})


def _hermes_api(api_base: str, api_key: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=api_base.removesuffix("/v1"),
        headers={"Authorization": f"Bearer {api_key}"},
        timeout=5.0,
        trust_env=False,
    )


def diagnose(hermes: Hermes, state: Mapping[str, Any] | None) -> NotBoundError:
    """Why the plugin is not bound, the first cause that explains it."""
    config = hermes.home.read_config()
    return (
        _not_installed(hermes)
        or _safe_mode(hermes)
        or _not_enabled(hermes.home, config)
        or _fatal(state)
        or _no_stanza(hermes, config)
        or _not_running(hermes)
        or _elsewhere(hermes, config, state)
        # After what is known to hold now: the log also has the lines of earlier lives.
        or _load_error(hermes)
        or _unknown(state)
    )


def _not_installed(hermes: Hermes) -> NotBoundError | None:
    try:
        command = [hermes.python, "-c", _FIND, ENTRY_POINT]
        found = subprocess.run(  # noqa: S603 - Hermes's own interpreter
            command, env=dict(hermes.environ), timeout=30, check=False, capture_output=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    if found.returncode != 9:
        return None
    return NotBoundError(
        "not_installed",
        f"molecule-hermes is not installed in Hermes's environment ({hermes.python})",
        f"{hermes.python} -m pip install molecule-hermes, from a checkout or wheel: it is in no "
        "registry yet",
    )


def _safe_mode(hermes: Hermes) -> NotBoundError | None:
    if hermes.settings.get("HERMES_SAFE_MODE", "").strip().lower() not in {
        "1",
        "true",
        "yes",
        "on",
    }:
        return None
    return NotBoundError(
        "safe_mode", "HERMES_SAFE_MODE is set, so Hermes loads no plugin", "unset it and restart"
    )


def _not_enabled(home: HermesHome, config: Mapping[str, Any]) -> NotBoundError | None:
    plugins = config.get("plugins")
    plugins = plugins if isinstance(plugins, Mapping) else {}
    if ENTRY_POINT in (plugins.get("disabled") or ()):
        return NotBoundError(
            "disabled",
            f"{home.config_file} lists {ENTRY_POINT} in plugins.disabled",
            f"take it out, or run `{_ENABLE}`; then restart Hermes",
        )
    if ENTRY_POINT in (plugins.get("enabled") or ()):
        return None
    return NotBoundError(
        "not_enabled",
        f"{home.config_file} does not list {ENTRY_POINT} in plugins.enabled",
        f"run `{_ENABLE}`, then restart Hermes",
    )


def _no_stanza(hermes: Hermes, config: Mapping[str, Any]) -> NotBoundError | None:
    platforms = config.get("platforms")
    stanza = platforms.get(PLATFORM) if isinstance(platforms, Mapping) else None
    by_env = enabled_by_env(hermes.settings) is not None
    if isinstance(stanza, Mapping) and stanza.get("enabled", False):
        return None
    if stanza is None and by_env:
        return None
    what = "has no" if stanza is None else "switches off its"
    return NotBoundError(
        "no_stanza",
        f"{hermes.home.config_file} {what} stanza platforms.{PLATFORM}",
        f"run `{_ENABLE}`, then restart Hermes",
    )


def _load_error(hermes: Hermes) -> NotBoundError | None:
    for log in hermes.logs:
        try:
            lines = log.read_text(encoding="utf-8", errors="replace")[-200_000:].splitlines()
        except OSError:
            continue
        for line in reversed(lines):
            if f"'{ENTRY_POINT}'" in line and ("Failed to load" in line or "no register()" in line):
                return NotBoundError(
                    "load_error",
                    f"Hermes could not load it: {redact(line.strip())}",
                    "mend it: pip install --force-reinstall, from a checkout or wheel",
                )
    return None


def _fatal(state: Mapping[str, Any] | None) -> NotBoundError | None:
    if not state or state.get("state") not in ("fatal", "retrying"):
        return None
    reason = redact(str(state.get("error_message") or "no reason given"))
    code = str(state.get("error_code") or "")
    if "port" in code or "in use" in reason or "taken" in reason:
        return NotBoundError(
            "port_taken", reason, "stop who holds it, or set MOLECULE_A2A_PLATFORM_PORT"
        )
    return NotBoundError("fatal", reason, "see Hermes's log")


def _not_running(hermes: Hermes) -> NotBoundError | None:
    if hermes.home.running_gateway() is not None:
        return None
    message, hint = "no Hermes runs on that folder", "start it: `molecule-hermes up`"
    return NotBoundError("not_running", message, hint)


def _elsewhere(
    hermes: Hermes, config: Mapping[str, Any], state: Mapping[str, Any] | None
) -> NotBoundError | None:
    try:
        port = int(config["platforms"][PLATFORM]["extra"]["port"])
        looked_for = urlsplit(hermes.url).port
    except (KeyError, TypeError, ValueError):
        return None
    if not looked_for or port == looked_for or not state or state.get("state") != "connected":
        return None
    return NotBoundError(
        "elsewhere",
        f"the bridge looks for it at port {looked_for}, {hermes.home.config_file} says {port}",
        f"set MOLECULE_A2A_PLATFORM_PORT={port}, or run `{_ENABLE}` and restart Hermes",
    )


def _unknown(state: Mapping[str, Any] | None) -> NotBoundError:
    told = f"Hermes says {json.dumps(dict(state))}" if state else "Hermes does not know it"
    return NotBoundError(
        "unknown",
        f"it is enabled, but {told}",
        "restart Hermes if it was started before the plugin was enabled; else see its log",
    )
