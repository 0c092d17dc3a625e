"""`molecule-hermes up` with several agents and peers: its configuration file and its workers."""

from __future__ import annotations

import hashlib
import hmac
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import yaml
from a2a.client import Client

from molecule_hermes.agents.managed import folder_name
from molecule_hermes.hermes.home import HermesHome
from molecule_hermes.hermes.pid_record import PidRecord
from molecule_hermes.hermes.seat import WorkerKey
from tests.support.peers import peer
from tests.support.stack import Stack, environment

__all__ = ["Deployment", "deployment", "tokens"]

SECRET = "a-shared-secret-of-the-tests"
API_KEY = "an-api-key-of-the-tests"


def tokens(*peers: str) -> dict[str, str]:
    return {name: f"{name}-token-0123456789" for name in peers}


class Deployment:
    """A folder with the configuration, and the environment of its `up`."""

    def __init__(self, folder: Path, peers: tuple[str, ...], environ: dict[str, str]) -> None:
        self.tokens = tokens(*peers)
        self.environ = environ
        self.file = folder / "agents.yaml"
        self.state = Path(environ["MOLECULE_HERMES_STATE_DIR"])

    def write(self, agents: Mapping[str, Mapping[str, Any]], **sections: Any) -> None:
        """Writes the configuration file. An agent's `soul` is its text."""
        made = {}
        for name, given in agents.items():
            agent = dict(given)
            if "soul" in agent:
                path = self.file.with_name(f"{name}.md")
                path.write_text(agent["soul"])
                agent["soul"] = path.name
            made[name] = agent
        self.file.write_text(yaml.safe_dump({"agents": made, **sections}, sort_keys=False))

    def folder(self, agent: str, peer: str | None) -> Path:
        """The folder of a worker."""
        return self.state / "workers" / folder_name(WorkerKey(agent, peer))

    def secret(self, agent: str, peer: str | None) -> str:
        """That of the worker's plugin."""
        purpose = f"plugin:{self.folder(agent, peer).name}"
        return hmac.new(SECRET.encode(), purpose.encode(), hashlib.sha256).hexdigest()

    @asynccontextmanager
    async def client(self, stack: Stack, name: str, agent: str = "") -> AsyncIterator[Client]:
        url = f"{stack.url}/agents/{agent}" if agent else stack.url
        async with peer(url, token=self.tokens[name]) as client:
            yield client


def deployment(folder: Path, *peers: str, **environ: str) -> Deployment:
    """For an `up` whose peers are named. `environ` is added to its environment."""
    (folder / "conf").mkdir(parents=True, exist_ok=True)
    given = ",".join(f"{name}:{token}" for name, token in tokens(*peers).items())
    made = environment(
        folder / "state",
        MOLECULE_HERMES_CONFIG=str(folder / "conf" / "agents.yaml"),
        MOLECULE_HERMES_PEER_TOKENS=given,
        MOLECULE_A2A_PLATFORM_SHARED_SECRET=SECRET,
        API_SERVER_KEY=API_KEY,
        **environ,
    )
    return Deployment(folder / "conf", peers, made)


def model_at(url: str) -> dict[str, str]:
    """The environment that leads Hermes to a demo model or to a recorded one."""
    return {
        "HERMES_CUSTOM_BASE_URL": url,
        "HERMES_INFERENCE_MODEL": "molecule-demo",
        "HERMES_CUSTOM_API_KEY": "a-key-of-the-tests",
    }


async def workers(stack: Stack) -> dict[str, dict[str, Any]]:
    """The workers that run, as the bridge itself has written them down."""
    state = stack.log.parent
    records = {
        record.parent.name: PidRecord(record).read()
        for record in (state / "workers").glob("*/gateway.json")
    }
    records["main"] = records.get("main") or HermesHome(state / "hermes").running_gateway()
    return {
        # Without the digest of the peer's name.
        name.rsplit("-", 1)[0] if "@" in name else name: {"state": "ready", "pid": pid}
        for name, pid in records.items()
        if pid is not None
    }


async def worker_pid(stack: Stack, name: str) -> int:
    return int((await workers(stack))[name]["pid"])


def ports_of(*pids: int) -> list[int]:
    """The TCP ports that these processes listen on."""
    found = {
        connection.laddr.port
        for pid in pids
        for connection in psutil.Process(pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    return sorted(found)


def reload(stack: Stack) -> None:
    stack.process.send_signal(signal.SIGHUP)
