"""`molecule-hermes up`: runs Hermes and the bridge together until a signal arrives."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from molecule_hermes.agents.connections import TransportChoice, require_profiles
from molecule_hermes.agents.workers import MainHermes, Workers
from molecule_hermes.cli.main_hermes import MainSetup
from molecule_hermes.cli.messages import (
    Say,
    ready,
    stopping,
)
from molecule_hermes.cli.progress import progress
from molecule_hermes.cli.reload import Reload
from molecule_hermes.cli.serve import serve
from molecule_hermes.cli.signals import Signals
from molecule_hermes.config import (
    Configuration,
    Settings,
    load_configuration,
    uses_main_hermes,
    with_peers,
)
from molecule_hermes.errors import ConfigError, StartError
from molecule_hermes.hermes.diagnosis import NotBoundError
from molecule_hermes.server.bridge import Bridge
from molecule_hermes.storage.state_dir import held, make_private
from molecule_hermes.turns.features import TransportName

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
    configuration = await asyncio.to_thread(load_configuration, settings)
    for warning in configuration.warnings:
        say(f"  warning  {warning}")
    own, settings = settings, with_peers(settings, configuration)
    settings.require_safe_exposure()
    settings.require_lasting_secrets()
    make_private(settings.state_dir)
    transport = transport or ("chat" if settings.platform_enabled is False else "plugin")
    async with contextlib.AsyncExitStack() as stack:
        signals = stack.enter_context(Signals())
        stack.enter_context(held(settings.state_dir))
        setup = MainSetup(settings, configuration, environ, say, keep_config)
        main = await setup.prepare(stack)
        run = _Run(own, configuration, environ, main, signals, say)
        await run.serve(transport)
        async with progress(say, "stopping Hermes"):
            await stack.aclose()


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
        workers.require_room()
        demo = self.main.model.is_demo
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(workers.fleet)
            bridge = await stack.enter_async_context(
                Bridge(
                    self.settings,
                    configuration=self.configuration,
                    open_transport=workers.open_transport,
                    demo=demo,
                    warnings=warnings,
                )
            )
            workers.measure(bridge.metrics)
            bridge.health.workers = workers.fleet.describe
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
        def configure(configuration: Configuration) -> None:
            self._require_no_restart(configuration)
            workers.configure(configuration)

        reload = Reload(
            self.settings,
            self.configuration,
            bridge,
            self.say,
            configure=configure,
            after=workers.start_others,
        )
        with self.signals.on_reload(reload.begin):
            await self._until_signal(bridge, name, workers)
        await reload.aclose()

    def _require_no_restart(self, configuration: Configuration) -> None:
        """Raises `ConfigError` if the main Hermes would have to be started or stopped."""
        before, now = (
            uses_main_hermes(with_peers(self.settings, each), each)
            for each in (self.configuration, configuration)
        )
        if now is not before:
            raise ConfigError(
                "it changes whether the main agent runs on HERMES_HOME",
                "restart `molecule-hermes up` for that",
            )

    async def _until_signal(self, bridge: Bridge, name: TransportName, workers: Workers) -> None:
        if await self.signals.wait(self._until_ready(bridge, workers)):
            tokens = bool(with_peers(self.settings, self.configuration).peer_tokens)
            self.say(ready(bridge.url, name, self.main.model, tokens=tokens))
            await self.signals.wait()

    async def _until_ready(self, bridge: Bridge, workers: Workers) -> None:
        """Starts the first worker, and the others in the background."""
        workers.start_others()
        await require_profiles(self.configuration, bridge.roster)
        for key in workers.eager[:1]:
            await workers.fleet.start(key)
        async with progress(self.say, "waiting for the bridge"):
            while not (await bridge.health.ready()).ready:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.1)
