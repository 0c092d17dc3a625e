"""Two agents and three peers at once: what belongs to one pair of them is never seen by another.

Everything that is told to an agent carries a marker that names the agent and the peer.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from a2a.client import Client
from a2a.types import GetTaskRequest, ListTasksRequest
from a2a.utils.errors import TaskNotFoundError

from tests.support.fleets import Deployment, deployment, model_at
from tests.support.peers import Turn, ask
from tests.support.recorded_model import RecordedModel, recorded_model
from tests.support.stack import Stack, up

pytestmark = pytest.mark.asyncio(loop_scope="module")

AGENTS, PEERS = ("main", "research"), ("ann", "bob", "eve")
_MARKER = re.compile(r"mk-(main|research)-(soul|ann|bob|eve)-([a-z]+)")
_LONG = 120.0


@dataclass
class Pair:
    """A peer's conversations with an agent, and all that the peer got to see of them."""

    agent: str
    peer: str
    client: Client
    other: Path
    """The work folder of another pair."""
    gets_files: bool
    turns: list[Turn] = field(default_factory=list)

    def mark(self, kind: str) -> str:
        return f"mk-{self.agent}-{self.peer}-{kind}"

    async def tell(self, text: str, context: str) -> Turn:
        async with asyncio.timeout(_LONG):
            turn = await ask(self.client, f"{self.mark('turn')}\n{text}", context)
        self.turns.append(turn)
        assert turn.states[-1] == "COMPLETED", turn.events
        return turn

    async def call(self, tool: str, context: str, **arguments: Any) -> Turn:
        return await self.tell(f"demo:call={tool} {json.dumps(arguments)}", context)

    @property
    def seen(self) -> str:
        return "\n".join(str(event) for turn in self.turns for event in turn.events)


def strangers(text: str, agent: str, peer: str) -> set[str]:
    """The markers in the text that belong to another agent or another peer."""
    mine = {"soul", peer}
    return {m[0] for m in _MARKER.finditer(text) if m[1] != agent or m[2] not in mine}


def owners(text: str) -> set[tuple[str, str]]:
    """The agents, and the pairs of an agent and a peer, whose markers are in the text."""
    return {(m[1], m[2]) for m in _MARKER.finditer(text)}


@dataclass
class Running:
    deployment: Deployment
    stack: Stack
    model: RecordedModel

    def others_work(self, agent: str, peer: str) -> Path:
        """The work folder of the same agent for another peer."""
        following = PEERS[(PEERS.index(peer) + 1) % len(PEERS)]
        return self.deployment.folder(agent, following) / "work"


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["plugin", "chat"])
async def running(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[Running]:
    made = _deployment(tmp_path_factory.mktemp("isolation"), request.param, PEERS)
    async with recorded_model() as model:
        made.environ |= model_at(model.url)
        made.write({n: {"isolation": "peer", "soul": f"You are mk-{n}-soul-text."} for n in AGENTS})
        async with up(made.environ) as stack:
            yield Running(made, stack, model)


def _deployment(folder: Path, transport: str, peers: Iterable[str], **more: str) -> Deployment:
    plugin = "true" if transport == "plugin" else "false"
    return deployment(folder, *peers, MOLECULE_A2A_PLATFORM_ENABLED=plugin, **more)


async def learn(pair: Pair) -> None:
    """Leaves the pair's markers wherever an agent can keep something."""
    await pair.tell(f"zebra {pair.mark('session')}", "shared")
    await pair.call("memory", "a", action="add", target="memory", content=pair.mark("memory"))
    await pair.call("memory", "a", action="add", target="user", content=pair.mark("profile"))
    await pair.tell(f"demo:run echo {pair.mark('file')} > note.txt && mkdir -p bin", "b")
    await pair.tell(f"demo:run export MK={pair.mark('env')} PATH=$PWD/bin:$PATH", "b")
    delivered = await pair.tell(f"demo:file=out.txt {pair.mark('delivery')}", "c")
    if pair.gets_files:
        assert [part.raw.decode() for part in delivered.file_parts] == [pair.mark("delivery")]
    told = await pair.tell(f"zebra {pair.mark('later')}", "shared")
    assert pair.mark("session") in told.text


async def pry(pair: Pair, workers: Path) -> dict[str, str]:
    """Looks for what others have left; returns what it found of its own."""
    found = {
        "prompt": await pair.tell("hello", "d"),
        "session": await pair.call("session_search", "e", query="zebra"),
        "env": await pair.tell("demo:run env | grep -aE 'mk-|PATH='", "f"),
        "file": await pair.tell(f"demo:run cat note.txt {workers}/*/work/* {pair.other}/*", "f"),
        "read": await pair.call("read_file", "g", path=str(pair.other / "note.txt")),
        "search": await pair.call("search_files", "g", pattern="mk-", path=str(workers.parent)),
        "grep": await pair.tell(f"demo:run grep -rsa mk- {workers.parent} | head -c 20000", "h"),
        "list": await pair.tell(f"demo:run ls {workers} {pair.other} ..", "h"),
        "media": await pair.tell(f"demo:say MEDIA:{pair.other}/note.txt", "i"),
        "again": await pair.tell("what did I say?", "shared"),
    }
    assert not found["media"].files
    return {name: turn.text for name, turn in found.items()}


async def pairs_of(running: Running, stack: AsyncExitStack, agents: Iterable[str]) -> list[Pair]:
    made = running.deployment
    return [
        Pair(
            agent,
            peer,
            await stack.enter_async_context(made.client(running.stack, peer, agent)),
            running.others_work(agent, peer),
            gets_files=made.environ["MOLECULE_A2A_PLATFORM_ENABLED"] == "true",
        )
        for agent in agents
        for peer in made.tokens
    ]


async def test_nothing_of_a_peer_or_an_agent_reaches_another(running: Running) -> None:
    workers = running.deployment.state / "workers"
    async with AsyncExitStack() as stack:
        pairs = await pairs_of(running, stack, AGENTS)
        await asyncio.gather(*(learn(pair) for pair in pairs))
        told = await asyncio.gather(*(pry(pair, workers) for pair in pairs))
    for pair, found in zip(pairs, told, strict=True):
        # It was there to be found, and its owner finds it.
        assert pair.mark("session") in found["session"]
        assert pair.mark("env") in found["env"]
        assert pair.mark("file") in found["file"]
        assert pair.mark("later") in found["again"]
        assert "/bin:" in found["env"]
        assert pair.mark("memory") in prompts(running.model, pair)
        assert pair.mark("profile") in prompts(running.model, pair)
        assert f"mk-{pair.agent}-soul-text" in prompts(running.model, pair)
        assert not strangers(pair.seen, pair.agent, pair.peer)
        assert "first message ever" not in pair.seen
    assert sum(len(pair.turns) for pair in pairs) >= 100
    require_apart(running)


def prompts(model: RecordedModel, pair: Pair) -> str:
    """The system prompts of the pair's turns."""
    own = [r["messages"] for r in model.requests if pair.mark("turn") in json.dumps(r["messages"])]
    return "\n".join(str(m["content"]) for ms in own for m in ms if m["role"] == "system")


def require_apart(running: Running) -> None:
    """No request to the model, and no folder, holds the markers of several."""
    for request in running.model.requests:
        found = owners(json.dumps(request))
        assert len({agent for agent, _ in found}) <= 1, found
        assert len({peer for _, peer in found} - {"soul"}) <= 1, found
    for agent in AGENTS:
        for peer in PEERS:
            files = [p for p in running.deployment.folder(agent, peer).rglob("*") if p.is_file()]
            text = "\n".join(path.read_bytes().decode("latin-1") for path in files)
            assert f"mk-{agent}-{peer}-file" in text
            assert not strangers(text, agent, peer)


async def test_one_context_id_is_a_conversation_of_each_peer_with_each_agent(
    running: Running,
) -> None:
    async with AsyncExitStack() as stack:
        pairs = await pairs_of(running, stack, AGENTS)
        await asyncio.gather(*(p.tell(f"first {p.mark('one')}", "same") for p in pairs))
        turns = await asyncio.gather(*(p.tell("what did I say?", "same") for p in pairs))
        for pair, turn in zip(pairs, turns, strict=True):
            assert pair.mark("one") in turn.text
            assert not strangers(pair.seen, pair.agent, pair.peer)
            mine = await pair.client.list_tasks(ListTasksRequest(context_id="same"))
            assert {t.id for t in mine.tasks} == {t.task_id for t in pair.turns}
            foreign = next(t for p, t in zip(pairs, turns, strict=True) if p.peer != pair.peer)
            with pytest.raises(TaskNotFoundError):
                await pair.client.get_task(GetTaskRequest(id=foreign.task_id))
    require_apart(running)


@pytest.mark.parametrize("transport", ["plugin", "chat"])
async def test_peers_that_share_a_hermes_do_see_each_other(tmp_path: Path, transport: str) -> None:
    """The same attempts find something where nothing is kept apart."""
    made = _deployment(tmp_path, transport, PEERS[:2], MOLECULE_HERMES_SHARED_MEMORY="true")
    async with recorded_model() as model:
        made.environ |= model_at(model.url)
        made.write({"main": {"isolation": "shared", "soul": "You are mk-main-soul-text."}})
        async with up(made.environ) as stack, AsyncExitStack() as clients:
            running = Running(made, stack, model)
            ann, bob = await pairs_of(running, clients, ["main"])
            await learn(ann)
            workspace = next(made.state.rglob("note.txt")).parent
            ann.other = bob.other = workspace
            found = await pry(bob, made.state / "workers")
    kinds = {"session": "session", "env": "env", "file": "file"}
    assert {name for name, kind in kinds.items() if ann.mark(kind) in found[name]} == kinds.keys()
    assert ann.mark("memory") in prompts(model, bob)
    with pytest.raises(AssertionError):
        require_apart(running)
