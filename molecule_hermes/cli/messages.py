"""What `up` and `serve` print."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from molecule_hermes import __version__
from molecule_hermes.client.terminal import command_name
from molecule_hermes.config import Configuration, Settings, unknown_variables
from molecule_hermes.hermes.confinement import require_confinement, start_lines
from molecule_hermes.hermes.credentials import SHARED_TOOLSETS
from molecule_hermes.hermes.home import HermesHome
from molecule_hermes.hermes.model_choice import ModelChoice
from molecule_hermes.hermes.providers import HERMES_API_KEY_NOTE, keys_that_are_set
from molecule_hermes.hermes.workspace import has_mcp_client
from molecule_hermes.plugin.settings import API_KEY, SECRET
from molecule_hermes.server.bridge import Bridge
from molecule_hermes.turns.features import TransportName

__all__ = [
    "Say",
    "introduce",
    "introduce_agents",
    "ready",
    "report_confinement",
    "report_kept_worker",
    "report_mcp_servers",
    "report_work_folder",
    "stopping",
    "warn_of_unknown_variables",
]

Say = Callable[[str], None]


def introduce(
    settings: Settings,
    environ: Mapping[str, str],
    model: ModelChoice,
    home: HermesHome,
    say: Say,
) -> None:
    """What `up` is about to run, and warnings about it."""
    say(f"molecule-hermes {__version__}")
    name = "the built-in demo model, not a real one" if model.is_demo else model.label
    say(f"  model    {name} ({model.source})")
    if keys := keys_that_are_set(environ):
        say(f"  keys     {', '.join(keys)} (set)")
    if "HERMES_API_KEY" in keys:
        say(f"  note     {HERMES_API_KEY_NOTE}")
    say(f"  home     {home.path}")
    if settings.peer_tokens:
        say(f"  peers    {', '.join(settings.peer_tokens)}")
    if not settings.owns_home and {API_KEY, SECRET} & home.read_env().keys():
        say(f"  warning  {home.env_file} contains {API_KEY} or {SECRET}, and the agent's tools can")
        say("           read it; remove these lines, and `up` generates new ones at each start")
    warn_of_unknown_variables(environ, say)


def report_confinement(settings: Settings, say: Say) -> None:
    """What agents can reach although they should not. Raises `StartError` if that is refused."""
    if settings.confine == "require":
        require_confinement()
    for line in start_lines(settings.confine):
        say(f"  warning  {line}")


def report_work_folder(
    settings: Settings, config: Mapping[str, object], own: Collection[Path], say: Say
) -> None:
    """A working directory in Hermes's configuration that a confined Hermes cannot use.

    It is not granted by itself: the agent can write to that configuration.
    """
    terminal = config.get("terminal")
    cwd = terminal.get("cwd") if isinstance(terminal, Mapping) else None
    if settings.confine == "off" or not isinstance(cwd, str) or not Path(cwd).is_absolute():
        return
    granted = [folder.resolve() for folder in (*own, *settings.writable)]
    if not any(Path(cwd).resolve().is_relative_to(folder) for folder in granted):
        say(
            f"  warning  the agent's tools cannot use {cwd} (terminal.cwd in Hermes's config.yaml);"
        )
        say(f"           MOLECULE_HERMES_WRITABLE={cwd} lets them")


def report_mcp_servers(names: Sequence[str], say: Say) -> None:
    """The MCP servers that the workspace gives to Hermes."""
    if names:
        say(f"  mcp      {', '.join(names)} (from the workspace's config.yaml)")
    if names and not has_mcp_client():
        say("  warning  Hermes ignores MCP servers: its environment has no package `mcp`; install")
        say("           molecule-hermes[mcp]")


def report_kept_worker(
    settings: Settings, adopted: int | None, model: ModelChoice, say: Say
) -> None:
    """What MOLECULE_HERMES_KEEP_WORKER does at this start."""
    if adopted is not None:
        say(f"  Hermes   runs already (process {adopted}); its turns go on")
    if settings.keep_worker and model.is_demo:
        say(
            "  warning  the demo model ends with the bridge: a turn that needs it fails, unless the"
        )
        say("           next start comes within seconds")


def introduce_agents(settings: Settings, configuration: Configuration, say: Say) -> None:
    """The agents, if there are several, and what their peers share."""
    several = len(configuration.agents) > 1
    for name, agent in configuration.agents.items():
        if agent.hermes is not None:
            say(f"  agent    {name}: at {agent.hermes.plugin or agent.hermes.api}")
            continue
        if several:
            say(f"  agent    {name}")
        if settings.has_several_peers:
            isolation = configuration.isolation(name, settings)
            for line in _APART if isolation == "peer" else _shared(settings):
                say(line)


_APART = ("  isolated each peer has a Hermes of its own: memory, sessions, files and shell",)


def _shared(settings: Settings) -> list[str]:
    """What one peer can learn of another."""
    toolsets = ", ".join(SHARED_TOOLSETS)
    warning = "  warning  all peers share one Hermes: its files and its shell"
    if settings.shared_memory:
        return [f"{warning},", f"           and {toolsets}: one may learn what another said"]
    setting = "MOLECULE_HERMES_SHARED_MEMORY=true enables them"
    return [warning, f"  isolated {toolsets} are disabled ({setting})"]


def warn_of_unknown_variables(environ: Mapping[str, str], say: Say) -> None:
    for name, nearest in unknown_variables(environ).items():
        suggestion = f"; did you mean {nearest}?" if nearest else " and has no effect"
        say(f"  warning  {name} is not a setting{suggestion}")


def ready(url: str, transport: TransportName, model: ModelChoice, *, tokens: bool) -> str:
    command = command_name()
    token = " --token TOKEN" if tokens else ""
    through = "the plugin" if transport == "plugin" else "chat completions"
    demo = "\nSet a model key (such as OPENROUTER_API_KEY) for a real model.\n"
    return (
        f"\nThe agent is ready: {url} (Hermes through {through})\n"
        f"  card     {url}/.well-known/agent-card.json\n"
        f'  talk     {command} send --url {url}{token} "Hello"\n'
        f"  check    {command} doctor --url {url}{token}\n"
        f"  stop     Ctrl-C\n" + (demo if model.is_demo else "")
    )


def stopping(bridge: Bridge, settings: Settings) -> str:
    if not bridge.turns:
        return "stopping…"
    turns = "1 turn has" if bridge.turns == 1 else f"{bridge.turns} turns have"
    return f"stopping… {turns} {settings.drain_timeout:g} s to end (Ctrl-C again stops at once)"
