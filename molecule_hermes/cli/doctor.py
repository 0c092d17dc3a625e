"""`molecule-hermes doctor`: finds problems and says how to solve them."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx

from molecule_hermes.cli.progress import progress
from molecule_hermes.client.connection import connect, fetch_card, message
from molecule_hermes.config import (
    Settings,
    load_configuration,
    uses_main_hermes,
    with_peers,
)
from molecule_hermes.errors import (
    AuthFailure,
    BridgeError,
    ConfigError,
    StartError,
    TurnFailure,
    Unreachable,
)
from molecule_hermes.hermes.confinement import missing, require_confinement
from molecule_hermes.hermes.credentials import known_credentials
from molecule_hermes.hermes.diagnosis import diagnose_running
from molecule_hermes.hermes.home import HermesHome
from molecule_hermes.net.ports import listens, port_owner
from molecule_hermes.plugin import landlock
from molecule_hermes.storage.state_dir import holder
from molecule_hermes.text import is_loopback
from molecule_hermes.transports.chat.transport import ChatTransport
from molecule_hermes.transports.plugin.client import CallbackRefused
from molecule_hermes.transports.plugin.transport import PluginTransport

__all__ = ["Finding", "examine", "plugin_finding"]

_HERMES = "0.19.0"
_TIMEOUT = 90.0
_LOG = "see the output of the bridge (`up` or `serve`)"


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    ok: bool
    detail: str
    hint: str = ""

    def __str__(self) -> str:
        line = f"{'ok  ' if self.ok else 'FAIL'}  {self.what:<10} {self.detail}"
        return f"{line}\n      {'':<10} → {self.hint}" if self.hint and not self.ok else line


Check = Callable[[], Awaitable[str]]
Say = Callable[[str], None]


async def examine(
    settings: Settings, url: str, token: str, say: Say
) -> AsyncGenerator[Finding, None]:
    """Runs all checks in order, even if some fail. `say` reports checks that take long."""
    apart = ""
    if settings.config is not None:
        finding = await _finding("config", lambda: _config(settings), say)
        yield finding
        if not finding.ok:
            return  # the others would judge something else than what the file means
    with contextlib.suppress(ConfigError):
        apart = _apart(settings)
    checks: dict[str, Check] = {
        "python": _python,
        "packages": _packages,
        "folder": lambda: _folder(settings),
        "confine": lambda: _confine(settings),
        "ports": lambda: _ports({"bridge": url, **_hermes_api(settings, apart)}),
        "hermes": lambda: _hermes(settings, apart),
        "key": lambda: _key(settings, url, apart),
        "plugin": lambda: _plugin(settings, url, apart),
        "bridge": lambda: _bridge(url, token),
        "card": lambda: _card(url),
        "turn": lambda: _turn(url, token),
    }
    for what, check in checks.items():
        yield await _finding(what, check, say)


async def plugin_finding(settings: Settings, url: str, say: Say) -> Finding:
    """Only the check of the plugin. The bridge at `url` may know a secret that we do not."""
    return await _finding("plugin", lambda: _plugin(settings, url, _apart(settings)), say)


def _apart(settings: Settings) -> str:
    """Why there is no main Hermes to judge: a running `up` has a Hermes for each peer or agent,
    and nobody else knows their addresses and keys. Empty if there is one. Raises `ConfigError`.

    `serve` uses the one at HERMES_API_BASE, whatever the isolation.
    """
    configuration = load_configuration(settings)
    if uses_main_hermes(with_peers(settings, configuration), configuration):
        return ""
    pid = holder(settings.state_dir)
    return f"`up` (pid {pid}) runs a Hermes for each peer or agent" if pid else ""


async def _finding(what: str, check: Check, say: Say) -> Finding:
    try:
        async with asyncio.timeout(_TIMEOUT), progress(say, f"…     {what:<10} checking"):
            return Finding(what, True, await check())
    except (StartError, TurnFailure) as error:
        return Finding(what, False, error.message, error.hint or _LOG)
    except TimeoutError:
        return Finding(what, False, f"no result within {_TIMEOUT:g} s", _LOG)
    except (BridgeError, httpx.HTTPError, OSError) as error:
        return Finding(what, False, str(error) or type(error).__name__, _LOG)


async def _python() -> str:
    """Never fails: an older Python cannot parse this file. The version helps in a report."""
    return f"{'.'.join(map(str, sys.version_info[:3]))} at {sys.prefix}"


async def _packages() -> str:
    found = []
    for name in ("molecule-hermes", "hermes-agent", "a2a-sdk", "aiohttp"):
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            raise StartError(f"{name} is not installed", "run `scripts/bootstrap`") from None
    if f"hermes-agent {_HERMES}" not in found:
        raise StartError(
            f"hermes-agent must be {_HERMES}: {', '.join(found)}",
            f"run `pip install hermes-agent=={_HERMES}`",
        )
    return ", ".join(found)


async def _config(settings: Settings) -> str:
    configuration = load_configuration(settings)
    with_peers(settings, configuration)
    return f"{settings.config}: the agents {', '.join(configuration.agents)}"


async def _folder(settings: Settings) -> str:
    home = HermesHome(settings.home)
    if not home.path.exists():
        return f"{home.path} (`up` will create it)"
    home.read_config()
    pid = home.running_gateway()
    return f"{home.path}" + (f", in use by a gateway (pid {pid})" if pid else "")


async def _confine(settings: Settings) -> str:
    """Fails only if `up` would not start. What cannot be enforced is told in any case."""
    if settings.confine == "off":
        return "Hermes and its tools are not confined (MOLECULE_HERMES_CONFINE=off)"
    if settings.confine == "require":
        require_confinement()
    held = "in part" if (lacks := missing()) else "files, ports, signals and other processes"
    return " ".join([f"{held} (Landlock {landlock.abi()}).", *lacks, "Never:", *landlock.limits()])


def _hermes_api(settings: Settings, apart: str) -> dict[str, str]:
    return {} if apart else {"Hermes API": settings.hermes_api_base}


async def _ports(urls: Mapping[str, str]) -> str:
    found = []
    for name, address in urls.items():
        parts = urlsplit(address)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        listener = await asyncio.to_thread(_listener, parts.hostname or "127.0.0.1", port)
        found.append(f"{name} {port}: {listener}")
    return "; ".join(found)


def _listener(host: str, port: int) -> str:
    owner = port_owner(port) if is_loopback(host) else None
    if owner is None and listens(host, port):
        return f"open on {host}"
    return owner or "no process listens"


async def _hermes(settings: Settings, apart: str) -> str:
    if apart:
        return f"{apart}; `bridge` says whether they work"
    root = settings.hermes_api_base.rsplit("/v1", 1)[0]
    try:
        async with httpx.AsyncClient(timeout=5.0, trust_env=False) as http:
            answer = (await http.get(f"{root}/health")).json()
    except httpx.HTTPError as error:
        raise StartError(
            f"nothing answers at {root}/health",
            "run `molecule-hermes up`, or start Hermes (hermes gateway run) with "
            "API_SERVER_ENABLED=true and an API_SERVER_KEY of 16 characters or more in its .env",
        ) from error
    except ValueError as error:
        raise StartError(f"the server at {root} is not Hermes", "check HERMES_API_BASE") from error
    if not isinstance(answer, dict) or answer.get("platform") != "hermes-agent":
        raise StartError(f"the server at {root} is not Hermes", "check HERMES_API_BASE")
    return f"hermes-agent {answer.get('version')} at {root}"


async def _key(settings: Settings, url: str, apart: str) -> str:
    if apart:
        return "each Hermes has its own, and only the bridge knows it"
    key = known_credentials(settings).api_key
    if not key:
        await _bridge_knows("API_SERVER_KEY", url)
        return f"only the bridge knows it, and the bridge is ready at {url}"
    async with ChatTransport(settings.hermes_api_base, key) as transport:
        await transport.check()
    return "Hermes accepts API_SERVER_KEY" + ("" if settings.api_server_key else " (from its .env)")


async def _plugin(settings: Settings, url: str, apart: str) -> str:
    """Whether the plugin itself says that it is bound; otherwise raises the cause."""
    if settings.platform_enabled is False:
        return "not used (MOLECULE_A2A_PLATFORM_ENABLED=false)"
    if apart:
        await _bridge(url, "")
        return f"{apart}, and the bridge is ready at {url}"
    credentials = known_credentials(settings)
    transport = PluginTransport(settings.platform_url, secret=credentials.secret)
    async with transport:
        try:
            await transport.check()
        except Unreachable:
            raise await diagnose_running(settings, credentials) from None
        except CallbackRefused:
            pass  # it accepted the secret, and does not need to call this command back
        except AuthFailure:
            if credentials.secret or not url:
                raise
            await _bridge_knows("MOLECULE_A2A_PLATFORM_SHARED_SECRET", url)
            return f"bound at {settings.platform_url}, for the bridge that is ready at {url}"
    return f"bound at {settings.platform_url}"


async def _bridge_knows(variable: str, url: str) -> None:
    """Raises `StartError` unless a bridge is ready there: then Hermes accepts its credentials."""
    try:
        await _bridge(url, "")
    except StartError as error:
        raise StartError(
            f"{variable} is not set, and the bridge at {url} cannot help: {error.message}",
            f"set {variable} to the value of this Hermes, or run `molecule-hermes up`, which "
            "generates one",
        ) from error


async def _bridge(url: str, token: str) -> str:
    # With a token, /readyz shows addresses and paths to other machines, too.
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        async with httpx.AsyncClient(headers=headers, timeout=10.0, trust_env=False) as http:
            response = await http.get(f"{url}/readyz")
            report = response.json()
    except httpx.HTTPError as error:
        raise StartError(f"nothing answers at {url}", "run `molecule-hermes up`") from error
    except ValueError as error:
        raise StartError(f"the server at {url} is not the bridge", "check --url") from error
    parts = report.get("parts", {}) if isinstance(report, dict) else {}
    bad = {n: p for n, p in parts.items() if not p.get("ok")}
    if response.status_code != 200:
        reasons = "; ".join(f"{n}: {p.get('reason')}" for n, p in bad.items())
        hints = "; ".join(p["hint"] for p in bad.values() if p.get("hint"))
        raise StartError(f"not ready — {reasons}", hints)
    return f"ready at {url}"


async def _card(url: str) -> str:
    card = await fetch_card(url)
    bindings = sorted(
        {f"{i.protocol_binding} {i.protocol_version}" for i in card.supported_interfaces}
    )
    return f"{card.name} {card.version}: {', '.join(bindings)}"


async def _turn(url: str, token: str) -> str:
    from a2a.helpers import get_stream_response_text
    from a2a.types import TaskState
    from a2a.utils.errors import A2AError

    last = TaskState.TASK_STATE_UNSPECIFIED
    text = ""
    try:
        async with connect(url, token, timeout=80) as client:
            async for event in client.send_message(message("ping (from molecule-hermes doctor)")):
                if event.HasField("status_update"):
                    last = event.status_update.status.state
                    text = get_stream_response_text(event) or text
    except (A2AError, httpx.HTTPError) as error:
        raise StartError(
            " ".join(str(error).split()),
            "check the token" if token else "pass a peer's token with --token",
        ) from error
    if last != TaskState.TASK_STATE_COMPLETED:
        raise StartError(f"the turn ended as {TaskState.Name(last)}: {text}", _LOG)
    return "a message was answered"
