"""`molecule-hermes up`: runs Hermes and the bridge together until a signal arrives."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from molecule_hermes.agents.connections import TransportChoice
from molecule_hermes.agents.workers import MainHermes, Workers
from molecule_hermes.cli.messages import (
    Say,
    introduce,
    introduce_agents,
    ready,
    report_kept_worker,
    report_mcp_servers,
    stopping,
)
from molecule_hermes.cli.progress import progress
from molecule_hermes.cli.serve import serve
from molecule_hermes.cli.signals import Signals
from molecule_hermes.config import (
    Configuration,
    Settings,
    isolation_of,
    load_configuration,
    with_peers,
)
from molecule_hermes.errors import ConfigError, StartError
from molecule_hermes.hermes.credentials import create_credentials
from molecule_hermes.hermes.demo_model import demo_model
from molecule_hermes.hermes.diagnosis import NotBoundError
from molecule_hermes.hermes.home import HermesHome
from molecule_hermes.hermes.home_setup import api_address, configure
from molecule_hermes.hermes.model_choice import (
    ModelChoice,
    choose_model,
    demo_choice,
    require_demo_allowed,
    why_demo,
)
from molecule_hermes.hermes.plugin_setup import enable
from molecule_hermes.hermes.process import Gateway
from molecule_hermes.hermes.workspace import merge_mcp_servers
from molecule_hermes.net.ports import require_free_port
from molecule_hermes.server.bridge import Bridge
from molecule_hermes.storage.state_dir import make_private
from molecule_hermes.turns.features import TransportName
from molecule_hermes.wire import MAIN_AGENT

__all__ = ["up"]


async def up(
    settings: Settings,
    environ: Mapping[str, str],
    say: Say,
    *,
    transport: TransportChoice | None = None,
    keep_config: bool = False,
) -> None:
    """Runs Hermes and the bridge until SIGINT or SIGTERM.

    With `keep_config`, Hermes's folder is used as it is. In smoke mode there is no Hermes.
    """
    if settings.smoke_mode:
        await serve(settings, environ, say)
        return
    configuration = load_configuration(settings)
    settings = with_peers(settings, configuration)
    settings.require_safe_exposure()
    settings.require_lasting_secrets()
    make_private(settings.state_dir)
    transport = transport or ("chat" if settings.platform_enabled is False else "plugin")
    async with contextlib.AsyncExitStack() as stack:
        signals = stack.enter_context(Signals())
        setup = _Setup(settings, configuration, environ, say, keep_config)
        main = await setup.prepare(stack, transport)
        run = _Run(settings, configuration, environ, main, signals, say)
        await run.serve(transport)
        async with progress(say, "stopping Hermes"):
            await stack.aclose()


@dataclass(frozen=True, slots=True)
class _Setup:
    """Makes the main Hermes ready to start, if the main agent's peers share it."""

    settings: Settings
    configuration: Configuration
    environ: Mapping[str, str]
    say: Say
    keep_config: bool

    async def prepare(
        self, stack: contextlib.AsyncExitStack, transport: TransportChoice
    ) -> MainHermes:
        settings, say = self.settings, self.say
        home = HermesHome(settings.home)
        gateway = self._gateway(home)
        host, port = settings.host, settings.port
        require_free_port(host, port, "MOLECULE_HERMES_PORT", "8001")
        if self._is_used:
            gateway.require_alone()
            self._require_free_api_port(adopted=gateway.adoptable is not None)
            home.create()
            stack.enter_context(home.held())
        elif self.keep_config:
            raise ConfigError(
                "--keep-config uses one Hermes folder, but each peer gets a Hermes of its own",
                "set MOLECULE_HERMES_ISOLATION=shared",
            )
        model, is_users = await _choose_model(home, settings, self.environ, stack, self.keep_config)
        credentials = create_credentials(settings, keep_config=self.keep_config)
        servers = self._write(home, None if is_users else model, transport) if self._is_used else []
        introduce(settings, self.environ, model, home, say)
        introduce_agents(settings, self.configuration, say)
        report_mcp_servers(servers, say)
        report_kept_worker(settings, gateway.adoptable, model, say)
        return MainHermes(home, credentials, model, is_users, gateway)

    @property
    def _is_used(self) -> bool:
        main = self.configuration.agents.get(MAIN_AGENT)
        peers = len(self.settings.peer_tokens)
        return (
            main is not None
            and main.hermes is None
            and isolation_of(main, self.settings, peers=peers) == "shared"
        )

    def _gateway(self, home: HermesHome) -> Gateway:
        settings = self.settings
        return Gateway(
            home,
            settings.state_dir / "hermes-gateway.log",
            environ=self.environ,
            keep=settings.keep_worker,
            max_restarts=settings.max_restarts,
            restart_window=settings.restart_window,
            on_change=self.say,
        )

    def _require_free_api_port(self, *, adopted: bool) -> None:
        host, port = api_address(self.settings)
        if not adopted:
            require_free_port(host, port, "HERMES_API_BASE", f"http://127.0.0.1:{port + 1}/v1")

    def _write(
        self, home: HermesHome, model: ModelChoice | None, transport: TransportChoice
    ) -> list[str]:
        """Merges what the bridge needs into the folder; returns the names of the MCP servers."""
        if self.keep_config:
            return []
        configure(home, self.settings, model)
        if transport != "chat":
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


@dataclass(frozen=True, slots=True)
class _Run:
    """Everything that the bridge and its workers need."""

    settings: Settings
    configuration: Configuration
    environ: Mapping[str, str]
    main: MainHermes
    signals: Signals
    say: Say

    async def serve(self, transport: TransportChoice) -> None:
        """With `auto`, a plugin that is not bound is a warning, and chat completions are used."""
        try:
            await self._serve("chat" if transport == "chat" else "plugin", [])
        except NotBoundError as error:
            if transport != "auto":
                raise
            self.say(f"  warning  {error}")
            self.say("  warning  continuing over chat completions")
            await self._serve("chat", [f"{error.message}; continuing over chat completions"])

    async def _serve(self, name: TransportName, warnings: list[str]) -> None:
        workers = Workers(
            self.settings,
            self.configuration,
            self.main,
            name,
            environ=self.environ,
            say=self._say_of_hermes,
        )
        default = self.configuration.agents[self.configuration.default]
        demo = self.main.model.is_demo
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(workers.fleet)
            transport = workers.transport_of(default)
            bridge = await stack.enter_async_context(
                Bridge(self.settings, transport, demo=demo, warnings=warnings)
            )
            workers.measure(bridge.metrics)
            self.signals.on_second = [bridge.hasten.set, workers.hasten]
            try:
                await self._until_stopped(bridge, name, workers)
            except StartError:
                bridge.hasten.set()  # turns that wait for Hermes wait in vain
                raise
            self.say(stopping(bridge, self.settings))
            async with progress(self.say, "stopping"):
                await stack.aclose()

    def _say_of_hermes(self, line: str) -> None:
        self.say(f"  Hermes   {line}")

    async def _until_stopped(self, bridge: Bridge, name: TransportName, workers: Workers) -> None:
        if await self.signals.wait(self._until_ready(bridge, workers)):
            tokens = bool(self.settings.peer_tokens)
            self.say(ready(bridge.url, name, self.main.model, tokens=tokens))
            await self.signals.wait()

    async def _until_ready(self, bridge: Bridge, workers: Workers) -> None:
        """Starts the first worker, and the others in the background."""
        for key in [*workers.eager[1:], *workers.kept]:
            workers.fleet.start_soon(key)
        for key in workers.eager[:1]:
            await workers.fleet.start(key)
        async with progress(self.say, "waiting for the bridge"):
            while not (await bridge.health.ready()).ready:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.1)
