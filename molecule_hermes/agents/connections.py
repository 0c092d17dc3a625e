"""Creates the transport to a Hermes."""

from __future__ import annotations

from typing import Literal, TypeAlias

from molecule_hermes.agents.roster import Roster
from molecule_hermes.config import Configuration, RemoteHermes, Settings
from molecule_hermes.errors import BadRequest, StartError, TurnFailure
from molecule_hermes.hermes.credentials import Credentials
from molecule_hermes.transports.base import Transport
from molecule_hermes.transports.chat.transport import ChatTransport
from molecule_hermes.transports.plugin.transport import PluginTransport
from molecule_hermes.transports.smoke import SmokeTransport
from molecule_hermes.turns.features import TransportName

__all__ = [
    "RemoteTransports",
    "TransportChoice",
    "address_of",
    "create_transport",
    "require_profiles",
    "transport_to_running_hermes",
]

TransportChoice: TypeAlias = TransportName | Literal["auto"]
"""With `auto`, the plugin is used if Hermes has bound it, else chat completions."""


def transport_to_running_hermes(settings: Settings) -> TransportName:
    """A Hermes that somebody else runs is reached through the plugin only on request."""
    return "plugin" if settings.platform_enabled else "chat"


def address_of(name: TransportName, settings: Settings) -> str:
    return settings.platform_url if name == "plugin" else settings.hermes_api_base


def create_transport(
    name: TransportName,
    settings: Settings,
    credentials: Credentials,
    *,
    patient: bool = False,
    holds_toolsets: bool = False,
) -> Transport:
    """With `patient`, turns wait for a Hermes that is being restarted. With `holds_toolsets`, it
    serves one peer, and its own configuration has only that peer's toolsets."""
    if settings.smoke_mode:
        return SmokeTransport()
    if name == "plugin":
        return PluginTransport(
            settings.platform_url,
            secret=credentials.secret,
            callback_host=settings.callback_host,
            callback_port=settings.callback_port,
            patient=patient,
        )
    return ChatTransport(
        settings.hermes_api_base,
        credentials.api_key,
        model=settings.model,
        patient=patient,
        holds_toolsets=holds_toolsets,
    )


class RemoteTransports:
    """Creates the transports of agents whose Hermes runs elsewhere.

    With `callback_port_is_taken`, the bridge's own Hermes uses the port for callbacks; else the
    first of these does. All others get callbacks at a port that the kernel chooses.
    """

    def __init__(self, settings: Settings, *, callback_port_is_taken: bool) -> None:
        self._settings = settings
        self._port = 0 if callback_port_is_taken else settings.callback_port

    def create(self, hermes: RemoteHermes) -> Transport:
        settings = self._settings
        if settings.smoke_mode:
            return SmokeTransport()
        secret = hermes.secret.get_secret_value() if hermes.secret else ""
        if hermes.api:
            return ChatTransport(hermes.api, secret, model=settings.model, profile=hermes.profile)
        port, self._port = self._port, 0
        return PluginTransport(
            hermes.plugin,
            secret=secret,
            callback_host=settings.callback_host,
            callback_port=port,
            profile=hermes.profile,
        )


async def require_profiles(configuration: Configuration, roster: Roster) -> None:
    """Raises `StartError` if a Hermes answers that it does not serve an agent's profile.

    One that does not answer yet is asked again at each turn.
    """
    for name, agent in configuration.agents.items():
        if agent.hermes is None or not agent.hermes.profile:
            continue
        try:
            await roster[name].transport.check()
        except BadRequest as failure:
            raise StartError(f"agents.{name}: {failure.message}", failure.hint) from failure
        except TurnFailure:
            pass
