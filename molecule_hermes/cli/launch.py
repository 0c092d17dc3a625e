"""`up` and `serve`: runs the parts together until a signal comes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from molecule_hermes import __version__
from molecule_hermes.client.terminal import command_name
from molecule_hermes.config import Settings, unknown_variables
from molecule_hermes.errors import AuthFailure, ConfigError, Draining, StartError, TurnFailure
from molecule_hermes.hermes.api import open_first_session, platform_state
from molecule_hermes.hermes.credentials import (
    SHARED_TOOLSETS,
    Credentials,
    create_credentials,
    create_handover,
    known_credentials,
    public_environment,
)
from molecule_hermes.hermes.demo_model import demo_model
from molecule_hermes.hermes.diagnosis import Hermes, NotBoundError, diagnose
from molecule_hermes.hermes.home import HermesHome
from molecule_hermes.hermes.home_setup import api_address, configure
from molecule_hermes.hermes.plugin_setup import enable
from molecule_hermes.hermes.process import Gateway
from molecule_hermes.hermes.providers import (
    ModelChoice,
    choose_model,
    demo_choice,
    keys_that_are_set,
)
from molecule_hermes.net.ports import require_free_port
from molecule_hermes.plugin.settings import API_KEY, SECRET
from molecule_hermes.server.assembly import (
    TransportName,
    address_of,
    create_transport,
    transport_to_running_hermes,
)
from molecule_hermes.server.bridge import Bridge
from molecule_hermes.storage.state_dir import make_private
from molecule_hermes.transports.base import Transport

__all__ = ["serve", "up"]

logger = logging.getLogger(__name__)

Say = Callable[[str], None]


async def up(
    settings: Settings,
    environ: Mapping[str, str],
    say: Say,
    *,
    way: TransportName | None = None,
    keep_config: bool = False,
) -> None:
    """Runs Hermes and the bridge until SIGINT or SIGTERM.

    With `keep_config` Hermes's folder is used as it is. In smoke mode there is no Hermes.
    """
    if settings.smoke_mode:
        await serve(settings, environ, say)
        return
    settings.require_safe_exposure()
    make_private(settings.state_dir)
    home = HermesHome(settings.home)
    gateway = Gateway(
        home,
        settings.state_dir / "hermes-gateway.log",
        environ=environ,
        max_restarts=settings.max_restarts,
        restart_window=settings.restart_window,
        on_change=say,
    )
    way = way or ("chat" if settings.platform_enabled is False else "plugin")
    async with contextlib.AsyncExitStack() as stack:
        signals = stack.enter_context(_Signals())
        gateway.require_alone()
        _require_free_ports(settings)
        home.create()
        stack.enter_context(home.held())
        model, foreign = await _model(home, settings, environ, stack, keep_config)
        credentials = create_credentials(settings, keep_config=keep_config)
        if not keep_config:
            configure(home, settings, None if foreign else model)
            if way != "chat":
                enable(home, settings)
        _introduce(settings, environ, model, home, say)
        gateway.handover = create_handover(settings, credentials, environ)
        await stack.enter_async_context(gateway)
        run = _Run(settings, environ, model, credentials, gateway, signals, say)
        await run.on_the_way(way)


@dataclass(frozen=True, slots=True)
class _Run:
    """What `up` has put together, ready to serve."""

    settings: Settings
    environ: Mapping[str, str]
    model: ModelChoice
    credentials: Credentials
    gateway: Gateway
    signals: _Signals
    say: Say

    async def on_the_way(self, way: TransportName) -> None:
        """With `auto`, a plugin that is not bound is a warning, and chat completions the way."""
        try:
            await self._serve("chat" if way == "chat" else "plugin", [])
        except NotBoundError as error:
            if way != "auto":
                raise
            self.say(f"  warning  {error}")
            self.say("  warning  going on over chat completions")
            await self._serve("chat", [f"{error.message}; going on over chat completions"])

    async def _serve(self, way: TransportName, warnings: list[str]) -> None:
        transport = create_transport(way, self.settings, self.credentials, patient=True)
        checks = {"gateway": self.gateway.check}
        async with Bridge(
            self.settings,
            transport,
            demo=self.model.is_demo,
            checks=checks,
            warnings=warnings,
        ) as bridge:
            self.gateway.watch(transport.check)
            bridge.metrics.watch(
                "hermes_restarts", "Restarts of Hermes so far", lambda: self.gateway.restarts
            )
            self.signals.again = [bridge.hasten.set, self.gateway.hasten.set]
            waits = [self._until_ready(bridge, way), self.gateway.failed()]
            if way == "plugin":
                waits.append(self._until_not_bound(transport))
            try:
                if await self.signals.first(*waits):
                    tokens = bool(self.settings.peer_tokens)
                    self.say(_banner(bridge.url, way, self.model, tokens=tokens))
                    await self.signals.first(self.gateway.failed())
            except StartError:
                bridge.hasten.set()  # turns that wait for Hermes wait in vain
                raise
            self.say(_stopping(bridge, self.settings))

    async def _until_ready(self, bridge: Bridge, way: TransportName) -> None:
        """Returns when the bridge is ready; tells every two seconds what it still waits for."""
        began = told = time.monotonic()
        while True:
            report = await bridge.health.ready()
            now = time.monotonic()
            if report.ready and (way == "chat" or await self._is_ours()):
                await open_first_session(self.settings.hermes_api_base, self.credentials.api_key)
                self.say(f"  Hermes   ready after {now - began:.1f} s")
                return
            reason = report.reason or "the plugin is not bound yet"
            if now - began > self.settings.ready_budget:
                raise await self._too_late(way, reason)
            if now - told >= 2.0:
                self.say(f"  Hermes   starting, {now - began:.0f} s … ({reason})")
                told = now
            await asyncio.sleep(0.1)

    async def _too_late(self, way: TransportName, reason: str) -> StartError:
        """The plugin's cause, where Hermes has no API to ask; else the end of Hermes's log."""
        if way == "plugin":
            cause = await self._diagnosis(None)
            if cause.cause not in ("unknown", "not_running"):
                return cause
        return StartError(
            f"Hermes was not ready after {self.settings.ready_budget:g} s ({reason})",
            f"its log is {self.gateway.log_file}; the last lines:\n{self.gateway.log_tail()}",
        )

    async def _is_ours(self) -> bool:
        """Whether Hermes says so, too: at the port another Hermes's plugin may answer."""
        if not self.gateway.home.read_env().get("API_SERVER_ENABLED"):
            return True
        state = await self._state()
        return state is not None and state.get("state") == "connected"

    async def _state(self) -> Mapping[str, object] | None:
        return await platform_state(self.settings.hermes_api_base, self.credentials.api_key)

    async def _until_not_bound(self, transport: Transport) -> None:
        """Raises `NotBoundError` once Hermes runs without the plugin; never returns."""
        seen = 0
        state: Mapping[str, object] | None = None
        while seen < 4:
            await asyncio.sleep(0.5)
            state = await self._state()
            seen = seen + 1 if state is not None and not await _bound(state, transport) else 0
        raise await self._diagnosis(state)

    async def _diagnosis(self, state: Mapping[str, object] | None) -> NotBoundError:
        logs = [self.gateway.log_file, *(self.gateway.home.path / "logs").glob("*.log")]
        environ = public_environment(self.environ)
        hermes = Hermes(self.gateway.home, environ, logs=logs, url=self.settings.platform_url)
        return await asyncio.to_thread(diagnose, hermes, state)


async def _bound(state: Mapping[str, object], transport: Transport) -> bool:
    """Not by `connected` alone, which Hermes keeps from a life that was cut short."""
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


async def serve(
    settings: Settings, environ: Mapping[str, str], say: Say, *, way: TransportName | None = None
) -> None:
    """Runs the bridge alone, against a Hermes that somebody else runs."""
    way = way or transport_to_running_hermes(settings)
    if way == "auto":
        raise ConfigError("`serve` needs to know the way", "use --transport plugin or chat")
    transport = create_transport(way, settings, known_credentials(settings))
    where = "nowhere (smoke mode)" if settings.smoke_mode else address_of(way, settings)
    _warn_of_typos(environ, say)
    make_private(settings.state_dir)
    if settings.has_several_peers and not settings.shared_memory:
        say(
            "  warning  whether the peers' agents share a memory is up to that Hermes's config.yaml"
        )
    with _Signals() as signals:
        async with Bridge(settings, transport) as bridge:
            say(f"the agent is at {bridge.url}; Hermes is expected at {where}")
            report = await bridge.health.ready()
            if not report.ready:
                say(f"not ready yet — {report.reason}")
            signals.again = [bridge.hasten.set]
            await signals.first()
            say(_stopping(bridge, settings))


def _require_free_ports(settings: Settings) -> None:
    host, port = api_address(settings)
    require_free_port(settings.host, settings.port, "MOLECULE_HERMES_PORT", "8001")
    require_free_port(host, port, "HERMES_API_BASE", f"http://127.0.0.1:{port + 1}/v1")


async def _model(
    home: HermesHome,
    settings: Settings,
    environ: Mapping[str, str],
    stack: contextlib.AsyncExitStack,
    keep_config: bool,
) -> tuple[ModelChoice, bool]:
    """What was asked for, else what the folder has, else a key's provider, else the demo.

    Also whether it is the folder's own, which must not be written over.
    """
    if keep_config:
        block = home.read_config().get("model")
        return ModelChoice(block if isinstance(block, Mapping) else {}, "kept as it is"), True
    asked = settings.custom_base_url or settings.inference_model or settings.inference_provider
    if not asked and (block := home.foreign_model()):
        return ModelChoice(block, f"{home.config_file}"), True
    if chosen := choose_model(settings, environ):
        return chosen, False
    return demo_choice(await stack.enter_async_context(demo_model())), False


def _introduce(
    settings: Settings,
    environ: Mapping[str, str],
    model: ModelChoice,
    home: HermesHome,
    say: Say,
) -> None:
    say(f"molecule-hermes {__version__}")
    what = "the built-in demo model, not a real one" if model.is_demo else model.label
    say(f"  model    {what} ({model.source})")
    if keys := keys_that_are_set(environ):
        say(f"  keys     {', '.join(keys)} (set)")
    say(f"  home     {home.path}")
    if settings.peer_tokens:
        say(f"  peers    {', '.join(settings.peer_tokens)}")
    if settings.has_several_peers:
        say(_sharing(settings))
    if not settings.owns_home and {API_KEY, SECRET} & home.read_env().keys():
        say(f"  warning  {home.env_file} has {API_KEY} or {SECRET}, and the agent's tools can")
        say("           read it; without these lines `up` makes new ones at each start")
    _warn_of_typos(environ, say)


def _sharing(settings: Settings) -> str:
    toolsets = ", ".join(SHARED_TOOLSETS)
    if settings.shared_memory:
        return f"  warning  the peers' agents share {toolsets}: what one is told, another may learn"
    return f"  apart    {toolsets} are off (MOLECULE_HERMES_SHARED_MEMORY=true shares them)"


def _warn_of_typos(environ: Mapping[str, str], say: Say) -> None:
    for name, nearest in unknown_variables(environ).items():
        say(f"  warning  {name} means nothing" + (f"; did you mean {nearest}?" if nearest else ""))


def _banner(url: str, way: TransportName, model: ModelChoice, *, tokens: bool) -> str:
    command = command_name()
    token = " --token TOKEN" if tokens else ""
    through = "the plugin" if way == "plugin" else "chat completions"
    demo = "\nSet a model key (such as OPENROUTER_API_KEY) for a real model.\n"
    return (
        f"\nThe agent is ready: {url} (Hermes through {through})\n"
        f"  card     {url}/.well-known/agent-card.json\n"
        f'  talk     {command} send --url {url}{token} "Hello"\n'
        f"  check    {command} doctor --url {url}{token}\n"
        f"  stop     Ctrl-C\n" + (demo if model.is_demo else "")
    )


def _stopping(bridge: Bridge, settings: Settings) -> str:
    if not bridge.turns:
        return "stopping…"
    turns = "1 turn has" if bridge.turns == 1 else f"{bridge.turns} turns have"
    return f"stopping… {turns} {settings.drain_timeout:g} s to end (Ctrl-C again cuts it short)"


class _Signals:
    """SIGINT and SIGTERM as an event; those in `again` are called for the second one."""

    def __init__(self) -> None:
        self._stop = asyncio.Event()
        self.again: list[Callable[[], None]] = []

    def __enter__(self) -> _Signals:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._arrived)
        return self

    def __exit__(self, *args: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().remove_signal_handler(number)

    def _arrived(self) -> None:
        if self._stop.is_set():
            for hasten in self.again:
                hasten()
        self._stop.set()

    async def first(self, *others: Awaitable[None]) -> bool:
        """Waits for a signal or the first of the others; whether it was one of the others."""
        stop = asyncio.ensure_future(self._stop.wait())
        tasks = [asyncio.ensure_future(other) for other in others]
        try:
            await asyncio.wait({stop, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
                    return True
            return False
        finally:
            for waiter in (stop, *tasks):
                waiter.cancel()
            await asyncio.gather(stop, *tasks, return_exceptions=True)
