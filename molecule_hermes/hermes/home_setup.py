"""Writes what the bridge needs into Hermes's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from molecule_hermes.config import Settings
from molecule_hermes.errors import StartError
from molecule_hermes.hermes.home import HermesHome
from molecule_hermes.hermes.model_choice import ModelChoice
from molecule_hermes.plugin.settings import API_KEY, SECRET, restart_settings
from molecule_hermes.text import is_loopback

__all__ = ["api_address", "configure", "work_folder"]


def configure(home: HermesHome, settings: Settings, model: ModelChoice | None) -> None:
    """Merges the API server, limits and the model into Hermes's folder. Secrets are not written.

    With `model=None` the folder keeps the model that it has.
    """
    host, port = api_address(settings)
    home.create()
    if model is not None:
        home.set_model(model.block)
    limits = {"api_server": {"max_concurrent_runs": settings.max_running}}
    home.merge_config({"gateway": limits}, restart_settings() | _terminal(settings))
    home.merge_env(
        {"API_SERVER_ENABLED": "true", "API_SERVER_HOST": host, "API_SERVER_PORT": str(port)},
        # Tools can read the file, so a folder of ours must not keep secrets.
        drop=(API_KEY, SECRET) if settings.owns_home else (),
    )


def work_folder(settings: Settings) -> Path:
    """What the tools of a Hermes that is the bridge's own work in."""
    if settings.workspace is not None and settings.workspace.is_dir():
        return settings.workspace
    return (settings.state_dir / "work").absolute()


def _terminal(settings: Settings) -> dict[str, Any]:
    """Where the agent's tools work, and the files are that it delivers.

    By default Hermes uses the user's home. In a Hermes folder of their own, users choose, unless
    they name a workspace: its files are the ones that peers speak of.
    """
    folder = work_folder(settings)
    if folder != settings.workspace and not settings.owns_home:
        return {}
    folder.mkdir(parents=True, exist_ok=True)
    return {"terminal": {"cwd": str(folder)}}


def api_address(settings: Settings) -> tuple[str, int]:
    """Host and port for the API server of a Hermes that `up` starts."""
    parts = urlsplit(settings.hermes_api_base)
    host = parts.hostname or "127.0.0.1"
    if not is_loopback(host):
        raise StartError(
            f"HERMES_API_BASE={settings.hermes_api_base!r} is not on this machine",
            "`up` runs its own Hermes on loopback; use `molecule-hermes serve` for a remote one",
        )
    return ("127.0.0.1" if host == "localhost" else host), parts.port or 80
