"""`molecule-hermes serve`: runs the bridge alone until a signal arrives."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from molecule_hermes.agents.connections import (
    address_of,
    create_transport,
    transport_to_running_hermes,
)
from molecule_hermes.cli.messages import Say, stopping, warn_of_unknown_variables
from molecule_hermes.cli.progress import progress
from molecule_hermes.cli.signals import Signals
from molecule_hermes.config import Settings
from molecule_hermes.hermes.credentials import known_credentials
from molecule_hermes.server.bridge import Bridge
from molecule_hermes.storage.state_dir import make_private
from molecule_hermes.turns.features import TransportName

__all__ = ["serve"]


async def serve(
    settings: Settings, environ: Mapping[str, str], say: Say, transport: TransportName | None = None
) -> None:
    """Serves a Hermes that runs elsewhere, until SIGINT or SIGTERM."""
    name = transport or transport_to_running_hermes(settings)
    address = "nowhere (smoke mode)" if settings.smoke_mode else address_of(name, settings)
    warn_of_unknown_variables(environ, say)
    make_private(settings.state_dir)
    if settings.has_several_peers and not settings.shared_memory:
        say("  warning  Hermes's own config.yaml decides whether the peers share its memory")
    async with contextlib.AsyncExitStack() as stack:
        signals = stack.enter_context(Signals())
        bridge = await stack.enter_async_context(
            Bridge(settings, create_transport(name, settings, known_credentials(settings)))
        )
        signals.on_second = [bridge.hasten.set]
        say(f"the agent is at {bridge.url}; Hermes is expected at {address}")
        if await signals.wait(_report_readiness(bridge, say)):
            await signals.wait()
        say(stopping(bridge, settings))
        async with progress(say, "stopping"):
            await stack.aclose()


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
