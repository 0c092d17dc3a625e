"""Creates the transport to a Hermes."""

from __future__ import annotations

from typing import Literal, TypeAlias

from molecule_hermes.config import Settings
from molecule_hermes.hermes.credentials import Credentials
from molecule_hermes.transports.base import Transport
from molecule_hermes.transports.chat.transport import ChatTransport
from molecule_hermes.transports.plugin.transport import PluginTransport
from molecule_hermes.transports.smoke import SmokeTransport
from molecule_hermes.turns.features import TransportName

__all__ = ["TransportChoice", "address_of", "create_transport", "transport_to_running_hermes"]

TransportChoice: TypeAlias = TransportName | Literal["auto"]
"""With `auto`, the plugin is used if Hermes has bound it, else chat completions."""


def transport_to_running_hermes(settings: Settings) -> TransportName:
    """A Hermes that somebody else runs is reached through the plugin only on request."""
    return "plugin" if settings.platform_enabled else "chat"


def address_of(name: TransportName, settings: Settings) -> str:
    return settings.platform_url if name == "plugin" else settings.hermes_api_base


def create_transport(
    name: TransportName, settings: Settings, credentials: Credentials, *, patient: bool = False
) -> Transport:
    """With `patient`, turns wait for a Hermes that is being restarted."""
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
    )
