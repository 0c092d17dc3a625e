"""`molecule-hermes up`: runs Hermes and the bridge together until a signal arrives."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass

from molecule_hermes.cli.messages import (
    Say,
    introduce,
    ready,
    report_kept_worker,
    report_mcp_servers,
    stopping,
)
from molecule_hermes.cli.progress import INTERVAL, progress
from molecule_hermes.cli.serve import serve
from molecule_hermes.cli.signals import Signals
from molecule_hermes.config import Settings
from molecule_hermes.errors import AuthFailure, ConfigError, Draining, StartError, TurnFailure
from molecule_hermes.hermes.api import FirstSession, platform_state
from molecule_hermes.hermes.credentials import (
    Credentials,
    create_credentials,
    create_handover,
    public_environment,
)
from molecule_hermes.hermes.demo_model import demo_model
from molecule_hermes.hermes.diagnosis import Hermes, NotBoundError, diagnose
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
from molecule_hermes.server.assembly import TransportChoice, create_transport
from molecule_hermes.server.bridge import Bridge
from molecule_hermes.storage.state_dir import make_private
from molecule_hermes.transports.base import Transport
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
    settings.require_safe_exposure()
    settings.require_lasting_secrets()
    make_private(settings.state_dir)
    transport = transport or ("chat" if settings.platform_enabled is False else "plugin")
    home = HermesHome(settings.home)
    gateway = _gateway(home, settings, environ, say)
    async with contextlib.AsyncExitStack() as stack:
        signals = stack.enter_context(Signals())
        gateway.require_alone()
        _require_free_ports(settings, adopted=gateway.adoptable is not None)
        home.create()
        stack.enter_context(home.held())
        model, is_users = await _choose_model(home, settings, environ, stack, keep_config)
        credentials = create_credentials(settings, keep_config=keep_config)
        servers: list[str] = []
        if not keep_config:
            configure(home, settings, None if is_users else model)
            if transport != "chat":
                enable(home, settings)
            servers = merge_mcp_servers(home, settings)
        introduce(settings, environ, model, home, say)
        report_mcp_servers(servers, say)
        report_kept_worker(settings, gateway.adoptable, model, say)
        gateway.handover = create_handover(settings, credentials, environ)
        await stack.enter_async_context(gateway)
        run = _Run(settings, environ, model, credentials, gateway, signals, say)
        await run.serve(transport)
        if settings.keep_worker:
            say(f"Hermes goes on (process {gateway.pid}); the next such `up` adopts it")
        async with progress(say, "stopping Hermes"):
            await stack.aclose()


def _gateway(home: HermesHome, settings: Settings, environ: Mapping[str, str], say: Say) -> Gateway:
    return Gateway(
        home,
        settings.state_dir / "hermes-gateway.log",
        environ=environ,
        keep=settings.keep_worker,
        max_restarts=settings.max_restarts,
        restart_window=settings.restart_window,
        on_change=say,
    )


def _require_free_ports(settings: Settings, *, adopted: bool) -> None:
    host, port = api_address(settings)
    require_free_port(settings.host, settings.port, "MOLECULE_HERMES_PORT", "8001")
    if not adopted:
        require_free_port(host, port, "HERMES_API_BASE", f"http://127.0.0.1:{port + 1}/v1")


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
    """A started Hermes, and everything that the bridge in front of it needs."""

    settings: Settings
    environ: Mapping[str, str]
    model: ModelChoice
    credentials: Credentials
    gateway: Gateway
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
        transport = create_transport(name, self.settings, self.credentials, patient=True)
        checks = {"gateway": self.gateway.check, "session": self._first_session().check}
        demo = self.model.is_demo
        async with contextlib.AsyncExitStack() as stack:
            bridge = await stack.enter_async_context(
                Bridge(self.settings, transport, demo=demo, checks=checks, warnings=warnings)
            )
            self.gateway.watch(transport.check)
            bridge.metrics.watch(
                "hermes_restarts", "Restarts of Hermes so far", lambda: self.gateway.restarts
            )
            self.signals.on_second = [bridge.hasten.set, self.gateway.hasten.set]
            try:
                await self._until_stopped(bridge, name, transport)
            except StartError:
                bridge.hasten.set()  # turns that wait for Hermes wait in vain
                raise
            self.say(stopping(bridge, self.settings))
            async with progress(self.say, "stopping the bridge"):
                await stack.aclose()

    async def _until_stopped(
        self, bridge: Bridge, name: TransportName, transport: Transport
    ) -> None:
        waits = [self._until_ready(bridge, name), self.gateway.failed()]
        if name == "plugin":
            waits.append(self._until_not_bound(transport))
        if await self.signals.wait(*waits):
            tokens = bool(self.settings.peer_tokens)
            self.say(ready(bridge.url, name, self.model, tokens=tokens))
            await self.signals.wait(self.gateway.failed())

    async def _until_ready(self, bridge: Bridge, name: TransportName) -> None:
        """Returns when the bridge is ready; says every two seconds what it still waits for."""
        began = reported = time.monotonic()
        while True:
            report = await bridge.health.ready()
            now = time.monotonic()
            if report.ready and (name == "chat" or await self._is_ours()):
                self.say(f"  Hermes   ready after {now - began:.1f} s")
                return
            pause = self.gateway.respawn_pause()
            reason = str(pause or report.reason or "the plugin is not bound yet")
            budget = self.settings.ready_budget + (pause.seconds if pause else 0)
            if now - began > budget:
                raise await self._not_ready(name, budget, reason)
            if now - reported >= INTERVAL:
                self.say(f"  Hermes   starting, {now - began:.0f} s … ({reason})")
                reported = now
            await asyncio.sleep(0.1)

    async def _not_ready(self, name: TransportName, budget: float, reason: str) -> StartError:
        """Why the plugin is not bound, if Hermes has no API to ask; else the end of its log."""
        if name == "plugin":
            error = await self._diagnose(None)
            if error.cause not in ("unknown", "not_running"):
                return error
        return StartError(
            f"Hermes was not ready after {budget:g} s ({reason})",
            "raise HERMES_GATEWAY_READY_BUDGET_SEC if it needs longer; its log is "
            f"{self.gateway.log_file}; the last lines:\n{self.gateway.log_tail()}",
        )

    async def _is_ours(self) -> bool:
        """Whether Hermes confirms the plugin: another Hermes's plugin may answer at the port."""
        if not self.gateway.home.read_env().get("API_SERVER_ENABLED"):
            return True
        state = await self._state()
        return state is not None and state.get("state") == "connected"

    def _first_session(self) -> FirstSession:
        # Without an API, nobody can open a session in Hermes.
        has_api = bool(self.gateway.home.read_env().get("API_SERVER_ENABLED"))
        return FirstSession(self.settings.hermes_api_base, self.credentials.api_key, needed=has_api)

    async def _state(self) -> Mapping[str, object] | None:
        return await platform_state(self.settings.hermes_api_base, self.credentials.api_key)

    async def _until_not_bound(self, transport: Transport) -> None:
        """Raises `NotBoundError` once Hermes runs without the plugin; never returns."""
        seen = 0
        state: Mapping[str, object] | None = None
        while seen < 4:
            await asyncio.sleep(0.5)
            state = await self._state()
            seen = seen + 1 if state is not None and not await _is_bound(state, transport) else 0
        raise await self._diagnose(state)

    async def _diagnose(self, state: Mapping[str, object] | None) -> NotBoundError:
        logs = [self.gateway.log_file, *(self.gateway.home.path / "logs").glob("*.log")]
        environ = public_environment(self.environ)
        hermes = Hermes(self.gateway.home, environ, logs=logs, url=self.settings.platform_url)
        return await asyncio.to_thread(diagnose, hermes, state)


async def _is_bound(state: Mapping[str, object], transport: Transport) -> bool:
    """A state of `connected` is not enough: Hermes keeps it after it was killed."""
    if state.get("state") == "fatal":
        return False
    try:
        await transport.check()
    except AuthFailure as error:
        raise NotBoundError("wrong_secret", error.message, error.hint) from error
    except Draining:
        return True
    except TurnFailure:
        return False
    return True
