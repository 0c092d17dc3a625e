"""The way to Hermes: which transport, where it leads, and with which credentials."""

from __future__ import annotations

from typing import Literal

from molecule_hermes.config import Settings
from molecule_hermes.hermes.home import HermesHome
from molecule_hermes.hermes.process import Credentials
from molecule_hermes.plugin.settings import API_KEY, SECRET
from molecule_hermes.transports.base import Transport
from molecule_hermes.transports.chat.transport import ChatTransport
from molecule_hermes.transports.plugin.transport import PluginTransport
from molecule_hermes.transports.smoke import SmokeTransport

__all__ = ["Way", "address_of", "known_credentials", "transport_for", "way_to_running_hermes"]

Way = Literal["plugin", "chat", "auto"]


def way_to_running_hermes(settings: Settings) -> Way:
    """Towards a Hermes that somebody else runs, the plugin is used only if it is asked for."""
    return "plugin" if settings.platform_enabled else "chat"


def address_of(way: Way, settings: Settings) -> str:
    return settings.platform_url if way == "plugin" else settings.hermes_api_base


def known_credentials(settings: Settings) -> Credentials:
    """The environment's, else what Hermes's own folder has; nothing is made up."""
    key, secret = settings.api_server_key, settings.shared_secret
    kept = HermesHome(settings.home).read_env()
    return Credentials(
        key.get_secret_value() if key else kept.get(API_KEY, ""),
        secret.get_secret_value() if secret else kept.get(SECRET, ""),
    )


def transport_for(
    way: Way, settings: Settings, credentials: Credentials, *, patient: bool = False
) -> Transport:
    """`patient`: turns wait for a Hermes that is being started again."""
    if settings.smoke_mode:
        return SmokeTransport()
    if way == "plugin":
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
        system_prompt=settings.system_prompt,
        patient=patient,
    )
