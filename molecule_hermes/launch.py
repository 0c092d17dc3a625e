"""`up` and `serve`: runs the parts together until a signal comes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shlex
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from molecule_hermes import __version__
from molecule_hermes.config import Settings, unknown_variables
from molecule_hermes.demo_model import demo_model
from molecule_hermes.errors import StartError
from molecule_hermes.gateway import Gateway, api_address, configure, require_free_port
from molecule_hermes.hermes_home import HermesHome
from molecule_hermes.providers import ModelChoice, choose_model, demo_choice, keys_that_are_set
from molecule_hermes.server import Bridge
from molecule_hermes.transports.chat import ChatTransport

__all__ = ["api_key_for", "serve", "up"]

logger = logging.getLogger(__name__)

Say = Callable[[str], None]


async def up(settings: Settings, environ: Mapping[str, str], say: Say) -> None:
    """Runs Hermes and the bridge until SIGINT or SIGTERM."""
    settings.require_safe_exposure()
    host, api_port = api_address(settings)
    home = HermesHome(settings.home)
    gateway = Gateway(
        home, settings.state_dir / "hermes-gateway.log", environ=environ, on_change=say
    )
    async with contextlib.AsyncExitStack() as stack:
        signals = stack.enter_context(_Signals())
        gateway.require_alone()
        require_free_port(settings.host, settings.port, "MOLECULE_HERMES_PORT", "8001")
        example = f"http://127.0.0.1:{api_port + 1}/v1"
        require_free_port(host, api_port, "HERMES_API_BASE", example)
        home.create()
        model, foreign = await _model(home, settings, environ, stack)
        api_key = configure(home, settings, None if foreign else model)
        _introduce(settings, environ, model, home, say)
        await stack.enter_async_context(gateway)
        bridge = await stack.enter_async_context(
            Bridge(
                settings,
                _transport(settings, api_key),
                demo=model.is_demo,
                checks={"gateway": gateway.check},
            )
        )
        signals.again = [bridge.hasten.set, gateway.hasten.set]
        stack.callback(say, "stopping…")
        if await signals.first(_until_ready(bridge, settings, gateway, say), gateway.failed()):
            say(_banner(bridge.url, model))
            await signals.first(gateway.failed())


async def serve(settings: Settings, environ: Mapping[str, str], say: Say) -> None:
    """Runs the bridge alone, against a Hermes that somebody else runs."""
    api_key = api_key_for(settings)
    _warn_of_typos(environ, say)
    with _Signals() as signals:
        async with Bridge(settings, _transport(settings, api_key)) as bridge:
            say(f"the agent is at {bridge.url}; Hermes is expected at {settings.hermes_api_base}")
            report = await bridge.health.ready()
            if not report.ready:
                say(f"not ready yet — {report.reason}")
            signals.again = [bridge.hasten.set]
            await signals.first()
            say("stopping…")


def api_key_for(settings: Settings) -> str:
    """The key of the environment, else the one in Hermes's own folder."""
    if settings.api_server_key:
        return settings.api_server_key.get_secret_value()
    return HermesHome(settings.home).read_env().get("API_SERVER_KEY", "")


def _transport(settings: Settings, api_key: str) -> ChatTransport:
    return ChatTransport(
        settings.hermes_api_base,
        api_key,
        model=settings.model,
        system_prompt=settings.system_prompt,
    )


async def _model(
    home: HermesHome,
    settings: Settings,
    environ: Mapping[str, str],
    stack: contextlib.AsyncExitStack,
) -> tuple[ModelChoice, bool]:
    """What was asked for, else what the folder has, else a key's provider, else the demo."""
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
    _warn_of_typos(environ, say)


def _warn_of_typos(environ: Mapping[str, str], say: Say) -> None:
    for name, nearest in unknown_variables(environ).items():
        say(f"  warning  {name} means nothing" + (f"; did you mean {nearest}?" if nearest else ""))


async def _until_ready(bridge: Bridge, settings: Settings, gateway: Gateway, say: Say) -> None:
    """Returns when the bridge is ready; tells every two seconds what it still waits for."""
    began = told = time.monotonic()
    while True:
        report = await bridge.health.ready()
        now = time.monotonic()
        if report.ready:
            say(f"  Hermes   ready after {now - began:.1f} s")
            return
        if now - began > settings.ready_budget:
            raise StartError(
                f"Hermes was not ready after {settings.ready_budget:g} s ({report.reason})",
                f"its log is {gateway.log_file}; the last lines:\n{gateway.log_tail()}",
            )
        if now - told >= 2.0:
            say(f"  Hermes   starting, {now - began:.0f} s … ({report.reason})")
            told = now
        await asyncio.sleep(0.1)


def _banner(url: str, model: ModelChoice) -> str:
    command = _command()
    demo = "\nSet a model key (such as OPENROUTER_API_KEY) for a real model.\n"
    return (
        f"\nThe agent is ready: {url}\n"
        f"  card     {url}/.well-known/agent-card.json\n"
        f'  talk     {command} send --url {url} "Hello"\n'
        f"  check    {command} doctor\n"
        f"  stop     Ctrl-C\n" + (demo if model.is_demo else "")
    )


def _command() -> str:
    """How this command was reached, so that the hint can be pasted."""
    path = Path(sys.argv[0])
    if path.name != "molecule-hermes":
        return "molecule-hermes"
    with contextlib.suppress(ValueError):
        path = path.absolute().relative_to(Path.cwd())
    return shlex.quote(str(path))


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
