"""Finds out why the plugin is not bound.

Hermes binds the plugin only if its package is installed, `plugins.enabled` names it, and a stanza
or the environment enables its platform. Hermes reports none of these causes itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from molecule_hermes.config import Settings
from molecule_hermes.confined_files import read_part, read_regular
from molecule_hermes.errors import StartError
from molecule_hermes.hermes.api import platform_in, platform_state
from molecule_hermes.hermes.credentials import Credentials, public_environment
from molecule_hermes.hermes.home import HermesHome
from molecule_hermes.plugin.settings import ENTRY_POINT, PLATFORM, enabled_by_env
from molecule_hermes.text import redact

__all__ = ["Hermes", "NotBoundError", "diagnose", "diagnose_running"]

_ENABLE = "molecule-hermes plugin enable"
_TRUE = frozenset({"1", "true", "yes", "on"})
_NOT_FOUND = 9
_TAIL = 200_000
_FIND = (
    "import importlib.metadata as m, sys;"
    "found = m.entry_points(group='hermes_agent.plugins', name=sys.argv[1]);"
    f"sys.exit(0 if list(found) else {_NOT_FOUND})"
)


class NotBoundError(StartError):
    """The plugin is not bound; `cause` is one word for programs."""

    def __init__(self, cause: str, message: str, hint: str) -> None:
        super().__init__(f"the plugin is not bound: {message}", hint)
        self.cause = cause


@dataclass(frozen=True, slots=True)
class Hermes:
    """The Hermes to examine: its folder, its interpreter and its environment."""

    home: HermesHome
    environ: Mapping[str, str]
    python: str = sys.executable
    logs: Sequence[Path] = ()
    url: str = ""
    """Where the bridge expects the plugin."""

    @property
    def settings(self) -> Mapping[str, str]:
        """The environment as Hermes sees it: its .env file wins (hermes_cli/env_loader.py)."""
        return {**self.environ, **self.home.read_env()}


async def diagnose_running(settings: Settings, credentials: Credentials) -> NotBoundError:
    """Why the plugin is not bound in a Hermes that was not started by this process."""
    home = HermesHome(settings.home)
    state = await platform_state(settings.hermes_api_base, credentials.api_key)
    if state is None:
        state = await asyncio.to_thread(_recorded_state, home)
    hermes = await asyncio.to_thread(_running_hermes, home, settings.platform_url)
    error = await asyncio.to_thread(diagnose, hermes, state)
    if settings.platform_enabled is None:
        error.hint += " (or set MOLECULE_A2A_PLATFORM_ENABLED=false to do without the plugin)"
    return error


def _recorded_state(home: HermesHome) -> Mapping[str, Any] | None:
    """The platform's state from Hermes's own file, which needs no API key."""
    try:
        return platform_in(json.loads(read_regular(home.path / "gateway_state.json")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _running_hermes(home: HermesHome, url: str) -> Hermes:
    """The gateway that runs on the folder, with its own interpreter and environment."""
    logs = [home.path / "logs" / name for name in ("gateway.log", "agent.log", "errors.log")]
    environ = public_environment(os.environ)
    try:
        process = psutil.Process(home.running_gateway() or -1)
        python = process.cmdline()[0]
        # The environment of a Hermes that `up` runs is unreadable; ours stands in for it.
        with contextlib.suppress(psutil.AccessDenied):
            environ = process.environ()
        return Hermes(home, environ, python, logs, url)
    except (psutil.Error, ValueError, IndexError):
        return Hermes(home, environ, logs=logs, url=url)


def diagnose(hermes: Hermes, state: Mapping[str, Any] | None) -> NotBoundError:
    """The first cause that explains why the plugin is not bound.

    `state` is the platform's state as Hermes reports it, if it does.
    """
    config = hermes.home.read_config()
    return (
        _not_installed(hermes)
        or _safe_mode(hermes)
        or _not_enabled(hermes.home, config)
        or _fatal(state)
        or _no_stanza(hermes, config)
        or _not_running(hermes)
        or _other_port(hermes, config, state)
        # After the causes that certainly hold now: the log also has lines of earlier processes.
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
    if found.returncode != _NOT_FOUND:
        return None
    return NotBoundError(
        "not_installed",
        f"molecule-hermes is not installed in Hermes's environment ({hermes.python})",
        f"run `{hermes.python} -m pip install molecule-hermes` with the path of a checkout or "
        "wheel (no registry has it yet), then restart Hermes",
    )


def _safe_mode(hermes: Hermes) -> NotBoundError | None:
    if hermes.settings.get("HERMES_SAFE_MODE", "").strip().lower() not in _TRUE:
        return None
    return NotBoundError(
        "safe_mode",
        "HERMES_SAFE_MODE is set, so Hermes loads no plugins",
        "unset it, then restart Hermes",
    )


def _not_enabled(home: HermesHome, config: Mapping[str, Any]) -> NotBoundError | None:
    plugins = config.get("plugins")
    plugins = plugins if isinstance(plugins, Mapping) else {}
    if ENTRY_POINT in (plugins.get("disabled") or ()):
        return NotBoundError(
            "disabled",
            f"{home.config_file} lists {ENTRY_POINT} in plugins.disabled",
            f"remove it there, or run `{_ENABLE}`; then restart Hermes",
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
    if isinstance(stanza, Mapping) and stanza.get("enabled", False):
        return None
    if stanza is None and enabled_by_env(hermes.settings) is not None:
        return None
    verb = "has no" if stanza is None else "disables the"
    return NotBoundError(
        "no_stanza",
        f"{hermes.home.config_file} {verb} stanza platforms.{PLATFORM}",
        f"run `{_ENABLE}`, then restart Hermes",
    )


def _load_error(hermes: Hermes) -> NotBoundError | None:
    for log in hermes.logs:
        try:
            lines = read_part(log, -_TAIL, _TAIL).decode("utf-8", "replace").splitlines()
        except OSError:
            continue
        for line in reversed(lines):
            if f"'{ENTRY_POINT}'" in line and ("Failed to load" in line or "no register()" in line):
                return NotBoundError(
                    "load_error",
                    f"Hermes could not load it: {redact(line.strip())}",
                    "reinstall it with `pip install --force-reinstall` and the path of a checkout "
                    "or wheel, then restart Hermes",
                )
    return None


def _fatal(state: Mapping[str, Any] | None) -> NotBoundError | None:
    if not state or state.get("state") not in ("fatal", "retrying"):
        return None
    reason = redact(str(state.get("error_message") or "Hermes gives no reason"))
    code = str(state.get("error_code") or "")
    if "port" in code or "in use" in reason or "taken" in reason:
        hint = "stop the process that holds it, or set MOLECULE_A2A_PLATFORM_PORT to another port"
        return NotBoundError("port_taken", reason, hint)
    return NotBoundError("fatal", reason, "see the files in the `logs` folder of HERMES_HOME")


def _not_running(hermes: Hermes) -> NotBoundError | None:
    if hermes.home.running_gateway() is not None:
        return None
    return NotBoundError(
        "not_running",
        f"no Hermes runs on {hermes.home.path}",
        "start it with `molecule-hermes up`, or set HERMES_HOME to the folder of the one that runs",
    )


def _other_port(
    hermes: Hermes, config: Mapping[str, Any], state: Mapping[str, Any] | None
) -> NotBoundError | None:
    try:
        port = int(config["platforms"][PLATFORM]["extra"]["port"])
        expected = urlsplit(hermes.url).port
    except (KeyError, TypeError, ValueError):
        return None
    if not expected or port == expected or not state or state.get("state") != "connected":
        return None
    return NotBoundError(
        "elsewhere",
        f"the bridge expects it on port {expected}, but {hermes.home.config_file} says {port}",
        f"set MOLECULE_A2A_PLATFORM_PORT={port}, or run `{_ENABLE}` and restart Hermes",
    )


def _unknown(state: Mapping[str, Any] | None) -> NotBoundError:
    known = f"Hermes reports {json.dumps(dict(state))}" if state else "Hermes does not know it"
    return NotBoundError(
        "unknown",
        f"it is enabled, but {known}",
        "restart Hermes if it was started before the plugin was enabled; otherwise see the files "
        "in the `logs` folder of HERMES_HOME",
    )
