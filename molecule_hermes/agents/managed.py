"""Workers with folders of their own below STATE_DIR: their addresses, secrets and files."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Self

from pydantic import SecretStr

from molecule_hermes.agents.connections import create_transport
from molecule_hermes.config import AgentConfig, PeerConfig, Settings
from molecule_hermes.confined_files import read_below
from molecule_hermes.hermes.credentials import Credentials
from molecule_hermes.hermes.home import HermesHome, write_atomically
from molecule_hermes.hermes.home_setup import api_address
from molecule_hermes.hermes.model_choice import ModelChoice
from molecule_hermes.hermes.pid_record import PidRecord
from molecule_hermes.hermes.process import Gateway
from molecule_hermes.hermes.providers import keys_that_are_set
from molecule_hermes.hermes.seat import WorkerKey
from molecule_hermes.hermes.worker import Worker, WorkerPlan
from molecule_hermes.hermes.worker_folders import WorkerFolders, make_folder
from molecule_hermes.hermes.worker_home import PLANTED, WorkerHome, template_variables
from molecule_hermes.net.ports import choose_port
from molecule_hermes.plugin.handover import Handover
from molecule_hermes.text import safe_name
from molecule_hermes.turns.features import TransportName

__all__ = ["ManagedWorkers", "Whose", "folder_name"]

_HOST = "127.0.0.1"
_RECORD = "worker.json"
_PROCESS = "gateway.json"
_MAX_JOBS = 4 * 2**20
_SHAPING = ("model", "soul", "skills", "toolsets", "mcp_servers", "hermes_config")
"""What an agent's section says of its Hermes, besides its environment."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Whose:
    """The agent and the peer of a worker, and the model that it gets."""

    agent: AgentConfig
    peer: PeerConfig | None
    model: ModelChoice | None
    """None: that of the template's own config.yaml."""
    soul: str = ""
    """A digest of its text."""
    disabled_toolsets: tuple[str, ...] = ()
    """Those through which peers that share it would reach each other."""


class ManagedWorkers:
    """`template` is the operator's Hermes folder. No worker sees that, nor what is `protected`."""

    def __init__(
        self,
        environ: Mapping[str, str],
        template: HermesHome,
        transport: TransportName,
        *,
        protected: Callable[[], Collection[Path]],
        say: Say,
    ) -> None:
        self._protected = protected
        self._environ = environ
        self._template = template
        self._transport: TransportName = transport
        self._say = say
        self._master = secrets.token_bytes(32)

    def make(
        self, key: WorkerKey, whose: Whose, settings: Settings, taken: Collection[int]
    ) -> Worker:
        """`taken` are the ports of the other workers. Raises `StartError`."""
        folder = settings.state_dir.absolute() / "workers" / folder_name(key)
        folders = WorkerFolders.below(folder)
        record = _record(folder, key, taken, settings, self._digest(whose, settings))
        own = self._settings(folders, whose.agent, settings, (record.plugin, record.api))
        gateway = Gateway(
            HermesHome(folders.home),
            folder / "hermes-gateway.log",
            environ={**self._environ, **folders.environment(settings)},
            record=PidRecord(folder / _PROCESS),
            keep=settings.keep_worker,
            max_restarts=settings.max_restarts,
            restart_window=settings.restart_window,
            on_change=partial(self._report, key),
        )
        credentials = self._credentials(folder.name, settings)
        home = WorkerHome(whose.agent, whose.peer, self._template, own, whose.model, folders.work)
        plan = WorkerPlan(
            settings=own,
            environ=self._environ,
            credentials=credentials,
            transport=self._transport,
            prepare=partial(self._prepare, folders, home, credentials, whose.disabled_toolsets),
            clear=folders.clear,
            repair=folders.repair,
            lock=folder / "lock",
            # One that is kept, but was made from something else, is replaced when it is idle.
            origin=whose if record.made_from == self._digest(whose, settings) else record,
            eager=whose.peer is None,
        )
        transport = create_transport(
            self._transport,
            own,
            credentials,
            patient=True,
            holds_toolsets=whose.peer is not None,
        )
        return Worker(plan, gateway, transport, partial(self._report, key))

    def kept(self, settings: Settings) -> list[WorkerKey]:
        """Whose workers an earlier bridge has left running."""
        if not settings.keep_worker:
            return []
        records = sorted((settings.state_dir / "workers").glob(f"*/{_RECORD}"))
        running = (r for r in records if PidRecord(r.with_name(_PROCESS)).read() is not None)
        return [known.key for record in running if (known := _Record.read(record))]

    def planned(self, settings: Settings) -> set[str]:
        """The folders of the workers whose Hermes has to run for what its agent has planned."""
        folders = (settings.state_dir.absolute() / "workers").glob("*@*/")
        return {folder.name for folder in folders if _has_cron_jobs(folder / "home")}

    def _report(self, key: WorkerKey, line: str) -> None:
        self._say(f"  {key}: {line}")

    def _settings(
        self,
        folders: WorkerFolders,
        agent: AgentConfig,
        settings: Settings,
        ports: tuple[int, int],
    ) -> Settings:
        """The settings with the worker's folder and addresses."""
        plugin, api = ports
        prompt = settings.system_prompt if agent.system_prompt is None else agent.system_prompt
        return settings.model_copy(
            update={
                "hermes_home": folders.home,
                "hermes_api_base": f"http://{_HOST}:{api}/v1",
                "platform_host": _HOST,
                "platform_port": plugin,
                "callback_port": 0,
                "system_prompt": prompt,
            }
        )

    def _credentials(self, name: str, settings: Settings) -> Credentials:
        """Of this worker alone. With lasting secrets they are the same at each start."""
        return Credentials(
            api_key=self._derive(settings.api_server_key, f"api:{name}"),
            secret=self._derive(settings.shared_secret, f"plugin:{name}"),
        )

    def _digest(self, whose: Whose, settings: Settings) -> str:
        """Of all that a worker is made from, but for what its Hermes reads again at each turn."""
        agent, peer = whose.agent, whose.peer
        said = [getattr(agent, name) for name in _SHAPING]
        env = sorted((name, value.get_secret_value()) for name, value in agent.env.items())
        confined = (settings.confine, settings.readable, settings.writable)
        toolsets = peer.toolsets if peer is not None else None
        model = whose.model.block if whose.model is not None else None
        parts = (said, env, toolsets, model, whose.soul, whose.disabled_toolsets, confined)
        return self._derive(settings.shared_secret, f"made from:{parts}")

    def _derive(self, given: SecretStr | None, purpose: str) -> str:
        master = given.get_secret_value().encode() if given is not None else self._master
        return hmac.new(master, purpose.encode(), hashlib.sha256).hexdigest()

    def _prepare(
        self,
        folders: WorkerFolders,
        home: WorkerHome,
        credentials: Credentials,
        disabled_toolsets: tuple[str, ...],
    ) -> Handover:
        """Makes the folders, and says what the next Hermes is started with."""
        folders.create()
        settings, agent = home.settings, home.agent
        keys = {name: self._environ[name] for name in keys_that_are_set(self._environ)}
        own = {name: value.get_secret_value() for name, value in agent.env.items()}
        return Handover(
            secret=credentials.secret,
            api_key=credentials.api_key,
            callbacks=(settings.callback_address,),
            environ={**keys, **template_variables(self._template), **own},
            disabled_toolsets=disabled_toolsets,
            confinement=folders.confinement(
                settings,
                protected=[*self._protected(), self._template.path],
                readable=home.skill_folders(),
                ports=(settings.platform_port, api_address(settings)[1]),
            ),
            files=home.files(),
            remove=PLANTED,
        )


def _has_cron_jobs(home: Path) -> bool:
    """The file is Hermes's (cron/jobs.py:858), and its tools can write anything into it."""
    try:
        stored = json.loads(read_below(home, "cron/jobs.json", _MAX_JOBS))
        jobs = stored["jobs"] if isinstance(stored, dict) else stored
        return any(job.get("enabled", True) for job in jobs)
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError):
        return False


def folder_name(key: WorkerKey) -> str:
    """Different for different keys, also on a file system that ignores case."""
    if key.peer is None:
        return key.agent
    digest = hashlib.sha256(key.peer.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{key.agent}@{safe_name(key.peer, 'anonymous')[:40]}-{digest}"


@dataclass(frozen=True, slots=True)
class _Record:
    """What another bridge needs to find a kept worker again."""

    key: WorkerKey
    plugin: int
    api: int
    made_from: str = ""
    """A digest of the configuration with which its Hermes was started."""

    @classmethod
    def read(cls, path: Path) -> Self | None:
        try:
            known = json.loads(path.read_text())
            agent, peer = known["key"]
            key = WorkerKey(str(agent), None if peer is None else str(peer))
            made_from = str(known.get("made_from", ""))
            return cls(key, int(known["plugin"]), int(known["api"]), made_from)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, path: Path) -> None:
        write_atomically(path, json.dumps(asdict(self)))


def _record(
    folder: Path, key: WorkerKey, taken: Collection[int], settings: Settings, made_from: str
) -> _Record:
    """The ports of the plugin and of the API. A kept Hermes has those of its start."""
    path = folder / _RECORD
    runs = settings.keep_worker and PidRecord(folder / _PROCESS).read() is not None
    if runs and (kept := _Record.read(path)) is not None:
        return kept
    plugin = choose_port(_HOST, taken)
    record = _Record(key, plugin, choose_port(_HOST, {*taken, plugin}), made_from)
    if settings.keep_worker:
        make_folder(folder)
        record.write(path)
    return record
