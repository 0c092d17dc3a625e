"""The workers of the agents that this bridge runs: whose they are, and what they are made from."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import get_args

from molecule_hermes.agents.connections import RemoteTransports, create_transport
from molecule_hermes.agents.fleet_transport import FleetTransport
from molecule_hermes.agents.managed import ManagedWorkers, Whose, folder_name
from molecule_hermes.config import (
    AgentConfig,
    Configuration,
    Settings,
    uses_main_hermes,
    with_peers,
)
from molecule_hermes.errors import ConfigError, Unreachable
from molecule_hermes.hermes.credentials import Credentials, create_handover, withheld_toolsets
from molecule_hermes.hermes.fleet import Fleet
from molecule_hermes.hermes.home import HermesHome
from molecule_hermes.hermes.home_setup import api_address
from molecule_hermes.hermes.model_choice import ModelChoice, choose_model
from molecule_hermes.hermes.process import Gateway
from molecule_hermes.hermes.seat import State, WorkerKey
from molecule_hermes.hermes.worker import Worker, WorkerPlan
from molecule_hermes.hermes.worker_folders import WorkerFolders
from molecule_hermes.plugin.handover import Handover
from molecule_hermes.telemetry.metrics import Metrics
from molecule_hermes.transports.base import Transport
from molecule_hermes.transports.deliveries import Receiver
from molecule_hermes.turns.features import TransportName
from molecule_hermes.wire import MAIN_AGENT

__all__ = ["MainHermes", "Workers"]

logger = logging.getLogger(__name__)

NOBODY = ""
"""No peer has this name where there are tokens."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class MainHermes:
    """The Hermes of HERMES_HOME: the main agent's worker, if all peers share that agent. To all
    other workers its folder is a template."""

    home: HermesHome
    folders: WorkerFolders
    credentials: Credentials
    model: ModelChoice
    model_is_users: bool
    """Whether the model is the one in the folder's own config.yaml."""
    gateway: Gateway
    """Not started."""
    has_api: bool = True
    """Whether it serves its API; a folder that is used as it is may say no."""


class Workers:
    """Knows the configuration. `fleet` is opened and closed by its owner."""

    def __init__(
        self,
        settings: Settings,
        configuration: Configuration,
        main: MainHermes,
        transport: TransportName,
        *,
        environ: Mapping[str, str],
        say: Say,
    ) -> None:
        self._own_settings = settings
        self._settings = settings = with_peers(settings, configuration)
        require_enforceable(settings, configuration, transport)
        self._configuration = configuration
        self._known = configuration
        """Also has the agents that are no longer configured, but have turns."""
        self._environ = environ
        self._receivers: dict[str, Receiver] = {}
        """Of the agents' deliveries."""
        self._main = main
        self._transport: TransportName = transport
        self._say = say
        self.fleet: Fleet[Worker] = Fleet(
            self._make,
            self._origin,
            max_workers=settings.max_workers,
            max_of_peer=workers_of_peer(settings),
            idle=settings.worker_idle,
        )
        self._managed = ManagedWorkers(
            environ, main.home, transport, protected=self._protected, say=say
        )
        self._models = models_of(settings, configuration, main, environ)
        self._souls = souls_of(configuration)
        runs_main = uses_main_hermes(settings, configuration)
        self._remote = RemoteTransports(settings, callback_port_is_taken=runs_main)

    # Agents.

    def open_transport(self, agent: AgentConfig) -> Transport:
        """The agent's transport, not entered yet."""
        if agent.hermes is not None:
            return self._remote.create(agent.hermes)
        name = agent.name
        return FleetTransport(
            self.fleet,
            partial(self.key, name),
            self._transport,
            check=partial(self._check, name),
            on_close=partial(self._closed, name),
            on_receiver=partial(self._take_deliveries, name),
        )

    def _take_deliveries(self, agent: str, receiver: Receiver) -> None:
        self._receivers[agent] = receiver
        for key, worker in self.fleet.seated:
            if key.agent == agent:
                worker.transport.take_deliveries(receiver.of_peer(key.peer))

    def _closed(self, agent: str) -> None:
        if agent not in self._configuration.agents:
            left = {name: each for name, each in self._known.agents.items() if name != agent}
            self._known = replace(self._known, agents=left)
            self.fleet.revise()

    def key(self, agent: str, peer: str) -> WorkerKey:
        return WorkerKey(agent, peer if self.is_kept_apart(agent) else None)

    def is_kept_apart(self, agent: str) -> bool:
        """Whether each peer of the agent has a worker of its own."""
        return self._known.isolation(agent, self._settings) == "peer"

    @property
    def eager(self) -> list[WorkerKey]:
        """The workers to start at once, one of the default agent's first.

        If each peer has its own, the default agent's is started for nobody: whether Hermes can be
        started at all is known at once, and no peer can change the result.
        """
        managed = [name for name, a in self._configuration.agents.items() if a.hermes is None]
        default = self._configuration.default
        keys = [WorkerKey(name) for name in managed if not self.is_kept_apart(name)]
        if default in managed and self.is_kept_apart(default):
            keys.append(WorkerKey(default, NOBODY))
        return sorted(keys, key=lambda key: key.agent != default)

    @property
    def kept(self) -> list[WorkerKey]:
        """The workers that an earlier bridge has left running."""
        return [key for key in self._managed.kept(self._settings) if self._is_wanted(key)]

    @property
    def planned(self) -> list[WorkerKey]:
        """The workers whose agents have cron jobs, which run only where Hermes runs. No more than
        leave room for a peer that calls."""
        folders = self._managed.planned(self._settings)
        agents = {folder.partition("@")[0] for folder in folders} & {*self._configuration.agents}
        keys = [WorkerKey(agent, peer) for agent in agents for peer in self._settings.peer_tokens]
        found = [key for key in keys if folder_name(key) in folders and self._may_start(key)]
        room = self._settings.max_workers - len(self.eager) - 1
        if len(found) > room:
            logger.warning("there is no room for all %d workers with cron jobs", len(found))
        return found[: max(0, room)]

    def hasten(self) -> None:
        """Has workers killed instead of waited for, when they are stopped."""
        for worker in self.fleet.workers:
            worker.gateway.hasten.set()

    def measure(self, metrics: Metrics) -> None:
        """Adds figures about the workers. They name no peer."""

        def restarts() -> int:
            return sum(worker.gateway.restarts for worker in self.fleet.workers)

        def watch(state: State) -> None:
            name, text = f"workers_{state}", f"Hermes processes that are {state}"
            metrics.watch(name, text, lambda: self.fleet.states().count(state))

        metrics.watch("hermes_restarts", "Restarts of Hermes so far", restarts)
        for state in get_args(State):
            watch(state)

    def configure(self, configuration: Configuration) -> None:
        """Takes a new configuration. Workers whose agent has changed are replaced when idle.

        Raises `ConfigError`, and then changes nothing.
        """
        settings = with_peers(self._own_settings, configuration)
        require_enforceable(settings, configuration, self._transport)
        self._models |= models_of(settings, configuration, self._main, self._environ)
        self._souls |= souls_of(configuration)
        self._settings, self._configuration = settings, configuration
        agents = {**self._known.agents, **configuration.agents}
        self._known = replace(configuration, agents=agents)
        self.fleet.max_of_peer = workers_of_peer(settings)
        self.fleet.revise()

    def require_room(self) -> None:
        """Raises `ConfigError` if the workers that run all the time leave no room for others."""
        shared = [key for key in self.eager if key.peer is None]
        apart = any(self.is_kept_apart(name) for name in self._configuration.agents)
        if (needed := len(shared) + apart) > self._settings.max_workers:
            raise ConfigError(
                f"MOLECULE_HERMES_MAX_WORKERS={self._settings.max_workers} is less than the agents "
                "need",
                f"set it to {needed} or more",
            )

    def start_others(self) -> None:
        """Starts the workers that are to run at once, but for the first, in the background."""
        for key in dict.fromkeys([*self.eager[1:], *self.kept, *self.planned]):
            self.fleet.start_soon(key)

    async def _check(self, agent: str) -> None:
        """Raises the `TurnFailure` that a new turn of the agent would end with now."""
        if not self.is_kept_apart(agent):
            await self.fleet.worker(WorkerKey(agent)).check()
        elif (failure := self.fleet.failure(WorkerKey(agent, NOBODY))) is not None:
            raise Unreachable(f"Hermes did not start: {failure.message}", hint=failure.hint)

    # Workers.

    def _origin(self, key: WorkerKey) -> Whose:
        """Raises `KeyError` if nobody needs the worker any more."""
        agent = self._known.agents[key.agent]
        if agent.hermes is not None or self.is_kept_apart(key.agent) is (key.peer is None):
            raise KeyError(key)
        peer = None if key.peer is None else self._configuration.peer(key.peer)
        withheld = withheld_toolsets(self._settings) if peer is None else ()
        model, soul = self._models[agent.name], self._souls[agent.name]
        return Whose(agent, peer, model, soul, withheld)

    def _may_start(self, key: WorkerKey) -> bool:
        return self._is_wanted(key) and self._configuration.peer(key.peer or "").may_reach(
            key.agent
        )

    def _is_wanted(self, key: WorkerKey) -> bool:
        try:
            self._origin(key)
        except KeyError:
            return False
        return True

    def _make(self, key: WorkerKey) -> Worker:
        worker = self._make_worker(key)
        if receiver := self._receivers.get(key.agent):
            worker.transport.take_deliveries(receiver.of_peer(key.peer))
        return worker

    def _make_worker(self, key: WorkerKey) -> Worker:
        whose = self._origin(key)
        if key == WorkerKey(MAIN_AGENT) and uses_main_hermes(self._settings, self._known):
            return self._make_main(whose)
        taken = {port for worker in self.fleet.workers for port in worker.ports}
        return self._managed.make(key, whose, self._settings, taken)

    def _make_main(self, whose: Whose) -> Worker:
        settings, main = self._settings, self._main
        plan = WorkerPlan(
            settings=settings,
            environ=self._environ,
            credentials=main.credentials,
            transport=self._transport,
            prepare=partial(self._prepare_main, settings, whose.disabled_toolsets),
            clear=main.folders.clear,
            repair=main.folders.repair,
            origin=whose,
            has_api=main.has_api,
        )
        transport = create_transport(self._transport, settings, main.credentials, patient=True)
        return Worker(plan, main.gateway, transport, self._say)

    def _protected(self) -> list[Path]:
        """What no agent may see, besides the bridge's state."""
        configured = [self._settings.config] if self._settings.config is not None else []
        return [*configured, *self._configuration.secret_files]

    def _prepare_main(self, settings: Settings, disabled_toolsets: tuple[str, ...]) -> Handover:
        folders, credentials = self._main.folders, self._main.credentials
        folders.create()
        handover = create_handover(settings, credentials, self._environ, disabled_toolsets)
        alone = len(self._configuration.agents) == 1
        ports = (settings.platform_port, api_address(settings)[1])
        # The platform's functions, which are tools of the agent, read its configuration.
        readable = [settings.workspace_config_path] if settings.workspace_id else []
        confinement = folders.confinement(
            settings, protected=self._protected(), readable=readable, ports=None if alone else ports
        )
        return replace(handover, confinement=confinement)


def workers_of_peer(settings: Settings) -> int:
    """With several peers, no single peer may use all workers, however many agents it reaches."""
    return max(1, settings.max_workers - 1) if settings.has_several_peers else 0


def require_enforceable(
    settings: Settings, configuration: Configuration, transport: TransportName
) -> None:
    """Raises `ConfigError` for a rule that the transport cannot enforce."""
    for peer in configuration.peers.values() if transport == "chat" else ():
        for name in configuration.agents:
            shared = configuration.isolation(name, settings) == "shared"
            if peer.toolsets is not None and shared and peer.may_reach(name):
                raise ConfigError(
                    f"peers.{peer.name}.toolsets does not hold for agents.{name}, whose peers "
                    "share a Hermes that is reached over chat completions",
                    "use the plugin, or isolation: peer",
                )


def souls_of(configuration: Configuration) -> dict[str, str]:
    """A digest of each agent's SOUL, so that a change of the file's text is one of the agent."""
    return {
        name: hashlib.sha256(agent.soul.read_bytes()).hexdigest() if agent.soul else ""
        for name, agent in configuration.agents.items()
    }


def models_of(
    settings: Settings, configuration: Configuration, main: MainHermes, environ: Mapping[str, str]
) -> dict[str, ModelChoice | None]:
    """The model of each agent; None is that of the template's own config.yaml.

    Raises `ConfigError` if no key fits a model that an agent names.
    """
    default = None if main.model_is_users else main.model
    return {
        agent.name: _model_of(agent, settings, default, {**environ, **main.home.read_env()})
        for agent in configuration.agents.values()
        if agent.hermes is None
    }


def _model_of(
    agent: AgentConfig, settings: Settings, default: ModelChoice | None, keys: Mapping[str, str]
) -> ModelChoice | None:
    if not agent.model and not agent.env:
        return default
    own = {name: value.get_secret_value() for name, value in agent.env.items()}
    if agent.model:
        settings = settings.model_copy(
            update={"inference_model": agent.model, "inference_provider": ""}
        )
    try:
        return choose_model(settings, {**keys, **own}) or default
    except ConfigError as error:
        raise ConfigError(f"agents.{agent.name}: {error.message}", error.hint) from error
