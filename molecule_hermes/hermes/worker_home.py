"""The files that make a worker's folder Hermes's: what an agent is.

They are written anew at each start, by the worker itself. What the agent has learnt (memory,
sessions, skills of its own) is in other files, and stays.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from molecule_hermes.config import AgentConfig, PeerConfig, Settings
from molecule_hermes.errors import ConfigError
from molecule_hermes.hermes.home import HermesHome, dump_yaml, merge
from molecule_hermes.hermes.home_setup import api_address
from molecule_hermes.hermes.model_choice import ModelChoice
from molecule_hermes.hermes.plugin_setup import plugin_config
from molecule_hermes.plugin.settings import API_KEY, ENTRY_POINT, PLATFORM, SECRET

__all__ = ["PLANTED", "WorkerHome", "template_variables"]

PLANTED = ("plugins", "hooks")
"""Folders whose content Hermes would run inside its own process at the next start."""

_MAX_SOUL = 256 * 1024
_SOUL = "SOUL.md"
_API = ("API_SERVER_ENABLED", "API_SERVER_HOST", "API_SERVER_PORT")


@dataclass(frozen=True, slots=True)
class WorkerHome:
    agent: AgentConfig
    peer: PeerConfig | None
    """The peer whose worker it is; None if all peers of the agent share it."""
    template: HermesHome
    """The operator's Hermes folder."""
    settings: Settings
    """The worker's own."""
    model: ModelChoice | None
    """None: the template's."""
    work: Path

    def files(self) -> dict[str, str]:
        """The files by name. Raises `StartError`."""
        host, port = api_address(self.settings)
        env = {_API[0]: "true", _API[1]: host, _API[2]: str(port)}
        files = {
            "config.yaml": dump_yaml(self._config()),
            ".env": "".join(f"{name}={value}\n" for name, value in env.items()),
        }
        if (soul := self._soul()) is not None:
            files[_SOUL] = soul
        return files

    def skill_folders(self) -> list[Path]:
        """The folders with the agent's skills, which stay where they are and are only read."""
        folders = [self.agent.skills, self.template.path / "skills"]
        return [folder for folder in folders if folder is not None and folder.is_dir()]

    def _config(self) -> Mapping[str, Any]:
        config = copy.deepcopy(self.template.read_config())
        merge(config, self.agent.hermes_config, replace=True)
        if self.model is not None:
            config["model"] = dict(self.model.block)
        required, defaults = plugin_config(self.settings, folder_per_chat=self.peer is None)
        merge(config, required, replace=True)
        merge(config, defaults, replace=False)
        merge(config, self._own(), replace=True)
        # The plugins of the template are not in this home.
        config["plugins"] = {"enabled": [ENTRY_POINT]}
        return config

    def _own(self) -> dict[str, Any]:
        runs = {"api_server": {"max_concurrent_runs": self.settings.max_running}}
        own: dict[str, Any] = {"gateway": runs, "terminal": {"cwd": str(self.work)}}
        if self.agent.mcp_servers:
            own["mcp_servers"] = dict(self.agent.mcp_servers)
        if folders := self.skill_folders():
            own["skills"] = {"external_dirs": [str(folder) for folder in folders]}
        if (toolsets := self._toolsets()) is not None:
            names = {platform: list(toolsets) for platform in (PLATFORM, "api_server")}
            own["platform_toolsets"] = names
        return own

    def _toolsets(self) -> list[str] | None:
        """Those that the agent has and, if this worker is one peer's, that the peer may use."""
        agent = self.agent.toolsets
        peer = self.peer.toolsets if self.peer is not None else None
        if agent is None or peer is None:
            either = agent if peer is None else peer
            return None if either is None else list(either)
        return [name for name in agent if name in peer]

    def _soul(self) -> str | None:
        path = self.agent.soul or self.template.path / _SOUL
        try:
            with path.open("rb") as file:
                content = file.read(_MAX_SOUL + 1)
        except OSError as error:
            if self.agent.soul is None:
                return None
            raise ConfigError(f"cannot read {path}: {error.strerror}", "check `soul`") from error
        if len(content) > _MAX_SOUL:
            raise ConfigError(f"{path} has more than {_MAX_SOUL} bytes", "shorten it")
        return content.decode("utf-8", "replace")


def template_variables(template: HermesHome) -> dict[str, str]:
    """What the operator has set in the template's .env, such as model keys."""
    own = {*_API, API_KEY, SECRET}
    return {name: value for name, value in template.read_env().items() if name not in own}
