"""What `up` does to the Hermes of HERMES_HOME before it starts, and which model it chooses."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from molecule_hermes.agents.workers import MainHermes
from molecule_hermes.cli.messages import (
    Say,
    introduce,
    introduce_agents,
    report_confinement,
    report_kept_worker,
    report_mcp_servers,
    report_work_folder,
)
from molecule_hermes.config import Configuration, Settings, uses_main_hermes
from molecule_hermes.errors import ConfigError
from molecule_hermes.hermes.confinement import tmp_folder
from molecule_hermes.hermes.credentials import create_credentials
from molecule_hermes.hermes.demo_model import demo_model
from molecule_hermes.hermes.home import HermesHome
from molecule_hermes.hermes.home_setup import api_address, configure, work_folder
from molecule_hermes.hermes.model_choice import (
    ModelChoice,
    choose_model,
    demo_choice,
    require_demo_allowed,
    why_demo,
)
from molecule_hermes.hermes.plugin_setup import enable
from molecule_hermes.hermes.process import Gateway
from molecule_hermes.hermes.worker_folders import WorkerFolders
from molecule_hermes.hermes.workspace import merge_mcp_servers
from molecule_hermes.net.ports import require_free_port

__all__ = ["MainSetup"]

_TMP = "hermes-tmp"


@dataclass(frozen=True, slots=True)
class MainSetup:
    """Makes the main Hermes ready to start, if the main agent's peers share it."""

    settings: Settings
    configuration: Configuration
    environ: Mapping[str, str]
    say: Say
    keep_config: bool

    async def prepare(self, stack: contextlib.AsyncExitStack) -> MainHermes:
        settings, say = self.settings, self.say
        home = HermesHome(settings.home)
        folders = WorkerFolders(
            home.path, work_folder(settings), tmp_folder(settings.state_dir / _TMP)
        )
        gateway = self._gateway(home, folders)
        host, port = settings.host, settings.port
        require_free_port(host, port, "MOLECULE_HERMES_PORT", "8001")
        if self._is_used:
            gateway.require_alone()
            self._require_free_api_port(adopted=gateway.adoptable is not None)
            home.create()
            if settings.confine != "off":
                home.require_inside()
            stack.enter_context(home.held())
        elif self.keep_config:
            raise ConfigError(
                "--keep-config uses one Hermes folder, but the main agent has others",
                "set MOLECULE_HERMES_ISOLATION=shared, name no soul, skills, model or other "
                "configuration of Hermes for the agent main, and no other agent that `up` runs",
            )
        model, is_users = await _choose_model(home, settings, self.environ, stack, self.keep_config)
        credentials = create_credentials(settings, keep_config=self.keep_config)
        servers = self._write(home, None if is_users else model) if self._is_used else []
        introduce(settings, self.environ, model, home, say)
        introduce_agents(settings, self.configuration, say)
        report_confinement(settings, say)
        report_mcp_servers(servers, say)
        if self._is_used:
            report_kept_worker(settings, gateway.adoptable, model, say)
            own = (folders.home, folders.work, folders.tmp)
            report_work_folder(settings, home.read_config(), own, say)
        has_api = not self._is_used or bool(home.read_env().get("API_SERVER_ENABLED"))
        return MainHermes(home, folders, credentials, model, is_users, gateway, has_api)

    @property
    def _is_used(self) -> bool:
        return uses_main_hermes(self.settings, self.configuration)

    def _gateway(self, home: HermesHome, folders: WorkerFolders) -> Gateway:
        settings = self.settings
        return Gateway(
            home,
            settings.state_dir / "hermes-gateway.log",
            environ={**self.environ, **folders.environment(settings)},
            keep=settings.keep_worker,
            max_restarts=settings.max_restarts,
            restart_window=settings.restart_window,
            on_change=self.say,
        )

    def _require_free_api_port(self, *, adopted: bool) -> None:
        host, port = api_address(self.settings)
        if not adopted:
            require_free_port(host, port, "HERMES_API_BASE", f"http://127.0.0.1:{port + 1}/v1")

    def _write(self, home: HermesHome, model: ModelChoice | None) -> list[str]:
        """Merges what the bridge needs into the folder; returns the names of the MCP servers."""
        if self.keep_config:
            return []
        configure(home, self.settings, model)
        # Over chat completions, too: it warms Hermes up, and lets it run as many turns at once.
        enable(home, self.settings)
        return merge_mcp_servers(home, self.settings)


async def _choose_model(
    home: HermesHome,
    settings: Settings,
    environ: Mapping[str, str],
    stack: contextlib.AsyncExitStack,
    keep_config: bool,
) -> tuple[ModelChoice, bool]:
    """The demo model if it is asked for, else the model in the settings, else the folder's own,
    else that of a provider whose key is set, else the demo model if it may answer.

    Also returns whether it is the folder's own, which must not be overwritten.
    """
    if keep_config:
        block = home.read_config().get("model")
        return ModelChoice(block if isinstance(block, Mapping) else {}, "kept as it is"), True
    foreign = home.foreign_model()
    if settings.demo == "always":
        return await _demo(foreign, home, settings, stack), False
    in_settings = (
        settings.custom_base_url or settings.inference_model or settings.inference_provider
    )
    if not in_settings and foreign:
        return ModelChoice(foreign, f"{home.config_file}"), True
    keys = {**environ, **home.read_env()}
    if chosen := choose_model(settings, keys, home.logins()):
        return chosen, False
    require_demo_allowed(settings, keys)
    return demo_choice(await _serve_demo(home, settings, stack), why_demo(keys)), False


async def _serve_demo(
    home: HermesHome, settings: Settings, stack: contextlib.AsyncExitStack
) -> str:
    """A kept Hermes goes on with its turns at the address that it knows."""
    port = home.demo_port() if settings.keep_worker else 0
    try:
        return await stack.enter_async_context(demo_model(port))
    except OSError:  # another process has it now
        return await stack.enter_async_context(demo_model())


async def _demo(
    foreign: Mapping[str, object] | None,
    home: HermesHome,
    settings: Settings,
    stack: contextlib.AsyncExitStack,
) -> ModelChoice:
    if foreign:
        raise ConfigError(
            f"MOLECULE_HERMES_DEMO=always would replace the model in {home.config_file}",
            "remove its model: block, or use another HERMES_HOME",
        )
    url = await _serve_demo(home, settings, stack)
    return demo_choice(url, "MOLECULE_HERMES_DEMO=always")
