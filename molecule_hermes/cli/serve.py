"""`molecule-hermes serve`: runs the bridge alone until a signal arrives."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from molecule_hermes.agents.connections import (
    RemoteTransports,
    address_of,
    create_transport,
    require_profiles,
    transport_to_running_hermes,
)
from molecule_hermes.agents.roster import OpenTransport
from molecule_hermes.cli.messages import Say, stopping, warn_of_unknown_variables
from molecule_hermes.cli.progress import progress
from molecule_hermes.cli.reload import Reload
from molecule_hermes.cli.signals import Signals
from molecule_hermes.config import (
    AgentConfig,
    Configuration,
    Settings,
    load_configuration,
    with_peers,
)
from molecule_hermes.errors import ConfigError
from molecule_hermes.hermes.credentials import known_credentials
from molecule_hermes.server.bridge import Bridge
from molecule_hermes.storage.state_dir import make_private
from molecule_hermes.transports.base import Transport
from molecule_hermes.turns.features import TransportName

__all__ = ["serve"]


async def serve(
    settings: Settings, environ: Mapping[str, str], say: Say, transport: TransportName | None = None
) -> None:
    """Serves Hermes that run elsewhere, until SIGINT or SIGTERM."""
    configuration = await asyncio.to_thread(load_configuration, settings)
    for warning in configuration.warnings:
        say(f"  warning  {warning}")
    name = transport or transport_to_running_hermes(settings)
    warn_of_unknown_variables(environ, say)
    make_private(settings.state_dir)
    if with_peers(settings, configuration).has_several_peers and not settings.shared_memory:
        say("  warning  Hermes's own config.yaml decides whether the peers share its memory")
    async with contextlib.AsyncExitStack() as stack:
        signals = stack.enter_context(Signals())
        open_transport = _transports(settings, configuration, name)
        bridge = await stack.enter_async_context(
            Bridge(settings, configuration=configuration, open_transport=open_transport)
        )
        await require_profiles(configuration, bridge.roster)
        signals.on_second = [bridge.hasten.set]
        where = _where(settings, configuration, name)
        say(f"the agent is at {bridge.url}; Hermes is expected at {where}")
        reload = Reload(settings, configuration, bridge, say)
        with signals.on_reload(reload.begin):
            if await signals.wait(_report_readiness(bridge, say)):
                await signals.wait()
        await reload.aclose()
        say(stopping(bridge, settings))
        async with progress(say, "stopping"):
            await stack.aclose()


def _transports(
    settings: Settings, configuration: Configuration, name: TransportName
) -> OpenTransport:
    """The Hermes that the environment names is that of the only agent without one of its own."""
    own = [a.name for a in configuration.agents.values() if a.hermes is None]
    remote = RemoteTransports(settings, callback_port_is_taken=bool(own) and name == "plugin")

    def open_transport(agent: AgentConfig) -> Transport:
        if agent.hermes is not None:
            return remote.create(agent.hermes)
        if [agent.name] != own[:1]:
            raise ConfigError(
                f"agents.{agent.name} has no `hermes`, and `serve` runs none itself",
                "say where it runs, or use `molecule-hermes up`",
            )
        return create_transport(name, settings, known_credentials(settings))

    return open_transport


def _where(settings: Settings, configuration: Configuration, name: TransportName) -> str:
    if settings.smoke_mode:
        return "nowhere (smoke mode)"
    own = address_of(name, settings)
    hermes = [agent.hermes for agent in configuration.agents.values()]
    return ", ".join(dict.fromkeys(h.plugin or h.api if h else own for h in hermes))


async def _report_readiness(bridge: Bridge, say: Say) -> None:
    """Says whether Hermes is ready; if it is not, also when it becomes so."""
    async with progress(say, "checking Hermes"):
        report = await bridge.health.ready()
    if not report.ready:
        say(f"not ready yet — {report.reason}; `molecule-hermes doctor` says what to do")
    while not report.ready:
        await asyncio.sleep(1.0)
        report = await bridge.health.ready()
    say("Hermes is ready")
