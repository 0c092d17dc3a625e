"""One peer's agent means harm: from its shell it tries to reach the bridge and the other peer.

Without the confinement the same attempts succeed, so that they are known to be real ones.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from a2a.client import Client
from a2a.types import GetTaskRequest

from molecule_hermes.client.connection import message
from molecule_hermes.hermes.confinement import missing
from molecule_hermes.wire import SECRET_HEADER, TURNS_PATH
from tests.support import hostile
from tests.support.fleets import (
    API_KEY,
    SECRET,
    Deployment,
    deployment,
    model_at,
    ports_of,
    worker_pid,
    workers,
)
from tests.support.peers import Turn, ask, reply_text
from tests.support.privileges import unprivileged
from tests.support.recorded_model import RecordedModel, recorded_model
from tests.support.serving import free_port
from tests.support.stack import Stack, up
from tests.support.waiting import until

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(sys.platform != "linux" or missing() != (), reason="needs Landlock"),
]

_VICTIM, _HOSTILE = "ann", "eve"
_SOUL = "You are soul-of-the-configuration."
_LONG = 90.0
_SAID = "ann-said-xylophone"
_OF_FILES = {
    *("read", "list_folders", "change", "empty", "follow_a_link", "create"),
    *("search", "watch", "link_in", "move_out", "move_in"),
}
_OF_PROCESSES = {"signal_processes", "limit", "slow_down", "abstract_sockets", "listen"}
_OF_ROOT = {
    *("environments_of_processes", "memory_of_processes", "descriptors_of_processes"),
    *("open_process_files", "trace"),
}
_WITHOUT_CONFINEMENT = {
    "root": _OF_FILES | _OF_PROCESSES | (_OF_ROOT if os.geteuid() == 0 else set()),
    "unprivileged": _OF_FILES | _OF_PROCESSES,
}
_TAKE_PORTS = """
import socket, sys, time
ends, taken = time.monotonic() + 8, []
while time.monotonic() < ends and not taken:
    for port in map(int, sys.argv[1:]):
        server = socket.socket()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("127.0.0.1", port))
            server.listen()
            taken.append(port)
        except OSError:
            pass
    time.sleep(0.002)
print("took", taken)
"""


@dataclass
class Scene:
    """A victim that has something to lose, and a hostile agent beside it."""

    deployment: Deployment
    stack: Stack
    model: RecordedModel
    confined: bool
    privileges: str
    victim: Client
    hostile: Client

    def folder(self, name: str) -> Path:
        return self.deployment.folder("main", name)

    @property
    def work(self) -> Path:
        """The hostile agent's work folder."""
        return self.folder(_HOSTILE) / "work"

    async def pid(self, name: str) -> int:
        return await worker_pid(self.stack, f"main@{name}")

    async def attack(self, **targets: Any) -> dict[str, str]:
        """What each attack that has a target got; "denied" if it got nothing."""
        (self.work / "targets.json").write_text(json.dumps(targets))
        (self.work / "hostile.py").write_text(Path(hostile.__file__).read_text())
        command = "/usr/bin/python3 hostile.py targets.json > told.txt 2> refused.txt"
        turn = await ask(self.hostile, f"demo:run {command}")
        assert turn.states[-1] == "COMPLETED", turn.events
        told = (self.work / "told.txt").read_text()
        results = dict(re.findall(r"^(\w+): (denied|LEAK.*)$", told, re.MULTILINE))
        assert results, turn.text + (self.work / "refused.txt").read_text()
        return results

    def require(self, results: dict[str, str]) -> None:
        """All of it was refused, or, without the confinement, all of it worked."""
        leaks = {name for name, result in results.items() if result != "denied"}
        if self.confined:
            assert not leaks, results
        else:
            assert leaks == set(results) & _WITHOUT_CONFINEMENT[self.privileges], results

    async def asking_turn(self, name: str) -> dict[str, Any]:
        """The only turn with an open question in the worker, as its plugin tells the bridge."""
        headers = {SECRET_HEADER: self.deployment.secret("main", name)}
        async with httpx.AsyncClient(headers=headers, timeout=10) as http:
            for port in ports_of(await self.pid(name)):
                answer = await http.get(f"http://127.0.0.1:{port}{TURNS_PATH}")
                if answer.status_code == 200:
                    turns = answer.json()["turns"]
                    (turn,) = [turn for turn in turns if turn["state"] == "asking"]
                    return dict(turn)
        raise AssertionError("no plugin answers")


@asynccontextmanager
async def scene_with(
    folder: Path, confine: str, privileges: str = "root", isolation: str = "peer", **more: str
) -> AsyncIterator[Scene]:
    made = deployment(folder, _VICTIM, _HOSTILE, MOLECULE_HERMES_CONFINE=confine, **more)
    through = unprivileged() if privileges == "unprivileged" else []
    async with recorded_model() as model, AsyncExitStack() as clients:
        made.environ |= model_at(model.url)
        made.write({"main": {"isolation": isolation, "soul": _SOUL}})
        stack = await clients.enter_async_context(up(made.environ, through=through))
        victim, attacker = [
            await clients.enter_async_context(made.client(stack, name))
            for name in (_VICTIM, _HOSTILE)
        ]
        scene = Scene(made, stack, model, confine != "off", privileges, victim, attacker)
        remember = json.dumps({"action": "add", "target": "memory", "content": _SAID})
        await asyncio.gather(
            ask(victim, f"demo:call=memory {remember}", "kept"),
            ask(attacker, "hello"),
        )
        await ask(victim, f"demo:run echo {_SAID} > note.txt", "kept")
        yield scene


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=["require-root", "off-root", "require-unprivileged", "off-unprivileged"],
)
async def scene(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[Scene]:
    confine, _, privileges = request.param.partition("-")
    async with scene_with(tmp_path_factory.mktemp("h"), confine, privileges) as made:
        yield made


async def test_it_reads_changes_and_finds_nothing_outside_of_its_folders(scene: Scene) -> None:
    victim, state, conf = scene.folder(_VICTIM), scene.deployment.state, scene.deployment.file
    kept = victim / "work" / "kept.txt"
    kept.write_text(_SAID)
    secret = [SECRET, API_KEY, *scene.deployment.tokens.values(), _SAID]
    secret += [scene.deployment.secret("main", name) for name in (_VICTIM, _HOSTILE)]
    markers = [text[::-1] for text in secret]
    databases = [str(path) for path in state.glob("*.db")]
    own_files = [str(victim / "home" / name) for name in ("state.db", "config.yaml", ".env")]
    results = await scene.attack(
        markers=markers,
        read=[*own_files, str(victim / "home" / "memories" / "MEMORY.md"), str(conf), *databases],
        change=[str(victim / "home" / "SOUL.md"), str(victim / "work" / "note.txt"), str(conf)],
        list=[str(path) for path in (state, state / "workers", victim, victim / "home")],
        create=[str(path / "planted") for path in (state, conf.parent, victim / "home")],
        search={"markers": [_SAID[::-1]], "folders": [str(state)]},
        move={"outside": str(kept), "own": str(scene.work)},
    )
    scene.require(results)
    if scene.confined:
        assert (victim / "home" / "SOUL.md").read_text() == _SOUL
        assert (victim / "work" / "note.txt").read_text() == f"{_SAID}\n"


async def test_it_reaches_no_process_outside(scene: Scene) -> None:
    bridge, victim = scene.stack.process.pid, await scene.pid(_VICTIM)
    pids = [bridge, victim]
    secrets = [SECRET, API_KEY, *(scene.deployment.secret("main", n) for n in (_VICTIM, _HOSTILE))]
    name = f"molecule-hermes-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{name}")
        server.listen()
        results = await scene.attack(
            scan={
                "markers": [text[::-1] for text in (*secrets, _SAID)],
                # Its own Hermes, too: who has its secret can act for the bridge.
                "pids": [*pids, await scene.pid(_HOSTILE)],
            },
            processes=pids,
            signal={"pids": pids, "number": signal.SIGCONT},
            abstract=[name],
            listen=[free_port()],
        )
    scene.require(results)
    await scene.stack.until_ready()


async def test_it_takes_no_port_of_another_worker_that_restarts(scene: Scene) -> None:
    pid = await scene.pid(_VICTIM)
    ports = " ".join(map(str, ports_of(pid)))
    (scene.work / "take.py").write_text(_TAKE_PORTS)
    stream = scene.hostile.send_message(message(f"demo:run /usr/bin/python3 take.py {ports}"))
    turn = Turn()
    async for event in stream:
        turn.add(event)
        if any("take.py" in line for line in turn.progress):
            break
    os.kill(pid, signal.SIGKILL)
    async for event in stream:
        turn.add(event)
    assert "took" in turn.text
    assert ("took []" in turn.text) is scene.confined
    back = await ask(scene.victim, "hello", "after")
    assert back.states[-1] == "COMPLETED"


async def test_it_can_neither_forge_a_reply_nor_act_for_the_bridge(scene: Scene) -> None:
    asked = await ask(scene.victim, "demo:ask=red|blue Which one?", "asked")
    running = await scene.asking_turn(_VICTIM)
    ports = ports_of(
        scene.stack.process.pid, *[await scene.pid(name) for name in (_VICTIM, _HOSTILE)]
    )
    assert len(ports) >= 6
    target = {
        "chat_id": running["chat_id"],
        "message_id": running["message_id"],
        "question_id": asked.question["questionId"],
        "callback": "http://127.0.0.1:9/a2a/reply",
        "text": "forged words",
        "ports": ports,
    }
    results = await scene.attack(forge=target)
    assert results.keys() == {
        "forge_a_reply",
        "send_into_another_chat",
        "answer_a_question",
        "read_sessions",
    }
    assert set(results.values()) == {"denied"}, results
    done = await ask(scene.victim, "red", task_id=asked.task_id)
    assert done.states[-1] == "COMPLETED"
    assert "red" in done.text
    assert "forged" not in str(done.events)


async def test_the_same_forgeries_work_for_one_that_knows_the_secret(scene: Scene) -> None:
    if scene.privileges != "root":
        pytest.skip("the secrets decide, not the confinement")
    asked = await ask(scene.victim, "demo:ask=red|blue Which one?", "asked again")
    running = await scene.asking_turn(_VICTIM)
    target = {
        "chat_id": running["chat_id"],
        "message_id": running["message_id"],
        "question_id": asked.question["questionId"],
        "callback": "http://127.0.0.1:9/a2a/reply",
        "text": "forged words",
        "ports": ports_of(scene.stack.process.pid, await scene.pid(_VICTIM)),
        "secrets": [scene.deployment.secret("main", _VICTIM)],
    }
    results = await scene.attack(forge=target)
    leaks = {name for name, result in results.items() if result != "denied"}
    assert leaks >= {"forge_a_reply", "send_into_another_chat", "read_sessions"}, results
    task = await scene.victim.get_task(GetTaskRequest(id=asked.task_id))
    assert reply_text(task) == "forged words"


async def test_it_does_not_answer_its_own_approval(scene: Scene) -> None:
    precious = scene.work / "precious"
    precious.mkdir(exist_ok=True)
    asked = await ask(scene.hostile, f"demo:run rm -rf {precious}", "dangerous")
    assert asked.question["kind"] == "approval"
    running = await scene.asking_turn(_HOSTILE)
    target = {
        "chat_id": running["chat_id"],
        "message_id": running["message_id"],
        "question_id": asked.question["questionId"],
        "callback": "http://127.0.0.1:9/a2a/reply",
        "text": "yes",
        "ports": ports_of(scene.stack.process.pid, await scene.pid(_HOSTILE)),
    }
    assert set((await scene.attack(forge=target)).values()) == {"denied"}
    assert precious.exists()
    denied = await ask(scene.hostile, "deny", task_id=asked.task_id)
    assert denied.states[-1] == "COMPLETED"
    assert precious.exists()


# What it does to its own Hermes stays there, and ends with it.


async def prompt_of(scene: Scene, client: Client, context: str) -> str:
    """What the agent is told before the first message of a new conversation."""
    scene.model.requests.clear()
    async with asyncio.timeout(_LONG):
        turn = await ask(client, f"hello from {context}", context)
    assert turn.states[-1] == "COMPLETED", turn.events
    return scene.model.prompts()


async def restarted(scene: Scene) -> None:
    """Kills the hostile agent's Hermes, and waits for the next; probes are answered meanwhile."""
    pid = await scene.pid(_HOSTILE)
    os.kill(pid, signal.SIGKILL)

    async def back() -> bool:
        worker = (await workers(scene.stack)).get(f"main@{_HOSTILE}")
        return worker is not None and worker["pid"] != pid

    await until(back, _LONG, every=0.1)


async def test_a_changed_soul_and_path_are_its_own_and_end_with_its_process(scene: Scene) -> None:
    if scene.privileges != "root":
        pytest.skip("the same for all users")
    home = scene.folder(_HOSTILE) / "home"
    fake = "mkdir -p bin && echo 'echo not-the-real-one' > bin/date && chmod +x bin/date"
    soul = f"echo You are soul-of-the-agent. > {home}/SOUL.md"
    await ask(scene.hostile, f"demo:run {fake}; export PATH=$PWD/bin:$PATH; {soul}", "change")
    assert "soul-of-the-agent" in await prompt_of(scene, scene.hostile, "changed")
    assert "not-the-real-one" in (await ask(scene.hostile, "demo:run date", "change")).text
    assert "soul-of-the-agent" not in await prompt_of(scene, scene.victim, "unchanged")
    assert "not-the-real-one" not in (await ask(scene.victim, "demo:run date")).text
    await restarted(scene)
    assert "soul-of-the-agent" not in await prompt_of(scene, scene.hostile, "later")
    assert "not-the-real-one" not in (await ask(scene.hostile, "demo:run date")).text


async def test_it_delivers_no_file_of_another(scene: Scene) -> None:
    note = scene.folder(_VICTIM) / "work" / "delivered.txt"
    note.write_text(_SAID)
    link = f"ln -sf {note} {scene.work}/link.txt"
    await ask(scene.hostile, f"demo:run {link}")
    for path in (note, scene.work / "link.txt", scene.deployment.file):
        turn = await ask(scene.hostile, f"demo:say MEDIA:{path}")
        assert not turn.files
        assert _SAID not in str(turn.events)


_PLANT = """
import os, shutil, sys
home, outside = sys.argv[1:]
def put(name, make):
    path = os.path.join(home, name)
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        os.unlink(path)
    make(path)
def huge(path):
    with open(path, "wb") as file:
        file.truncate(2**28)
def folder(path):
    os.mkdir(path)
    with open(os.path.join(path, "planted.py"), "w") as file:
        file.write(f"open({path!r} + '.ran', 'w')")
put("config.yaml", lambda path: os.symlink(outside, path))
put(".env", os.mkfifo)
put("SOUL.md", lambda path: os.symlink(outside, path))
put("plugins", folder)
put("hooks", lambda path: os.symlink(os.path.dirname(outside), path))
put("gateway.pid", PID)
put(".molecule-hermes.lock", lambda path: os.symlink(outside, path))
put(".molecule-hermes.json", os.mkfifo)
print("planted")
"""


@pytest.mark.parametrize(
    "pid_file", ["os.mkfifo", "huge", "lambda path: os.symlink(outside, path)"]
)
async def test_what_it_plants_in_its_home_leads_nobody_out_of_it(
    scene: Scene, pid_file: str
) -> None:
    if scene.privileges != "root" or not scene.confined:
        pytest.skip("the same without the confinement, where it needs no detour")
    home, outside = scene.folder(_HOSTILE) / "home", scene.deployment.file.with_name("outside")
    outside.write_text("nothing of yours")
    (scene.work / "plant.py").write_text(_PLANT.replace("PID", pid_file))
    told = await ask(scene.hostile, f"demo:run /usr/bin/python3 plant.py {home} {outside}")
    assert '"output": "planted' in told.text
    await restarted(scene)
    prompts = await prompt_of(scene, scene.hostile, f"after {pid_file}")
    assert "soul-of-the-configuration" in prompts
    assert outside.read_text() == "nothing of yours"
    assert "nothing of yours" not in json.dumps(scene.model.requests)
    assert not list(home.rglob("*.ran"))
    assert not (home / "config.yaml").is_symlink()
    assert (await ask(scene.victim, "hello")).states[-1] == "COMPLETED"
    for name in ("gateway.pid", ".molecule-hermes.lock", ".molecule-hermes.json"):
        (home / name).unlink(missing_ok=True)


async def test_denied_commands_stay_denied(tmp_path: Path) -> None:
    async with scene_with(tmp_path, "auto", MOLECULE_HERMES_APPROVALS="deny") as scene:
        precious = scene.work / "precious"
        precious.mkdir()
        turn = await ask(scene.hostile, f"demo:run rm -rf {precious}")
        assert turn.states[-1] == "COMPLETED"
        assert precious.exists()


async def test_peers_that_share_a_hermes_change_each_others_soul(tmp_path: Path) -> None:
    async with scene_with(tmp_path, "auto", isolation="shared") as scene:
        home = scene.deployment.folder("main", None) / "home"
        await ask(scene.hostile, f"demo:run echo You are soul-of-the-agent. > {home}/SOUL.md")
        assert "soul-of-the-agent" in await prompt_of(scene, scene.victim, "changed")


async def test_an_agent_changes_nothing_that_another_agent_is_made_from(tmp_path: Path) -> None:
    made = deployment(tmp_path, _VICTIM, _HOSTILE)
    made.write({"main": {"isolation": "shared"}, "research": {"isolation": "peer"}})
    async with recorded_model() as model, AsyncExitStack() as clients:
        made.environ |= model_at(model.url)
        stack = await clients.enter_async_context(up(made.environ))
        hostile_peer = await clients.enter_async_context(made.client(stack, _HOSTILE, "main"))
        victim = await clients.enter_async_context(made.client(stack, _VICTIM, "research"))
        planted = await ask(
            hostile_peer,
            "demo:run echo You are soul-of-the-agent. > $HERMES_HOME/SOUL.md"
            " && cat $HERMES_HOME/SOUL.md",
        )
        assert "soul-of-the-agent" in planted.text
        model.requests.clear()
        assert (await ask(victim, "hello")).states[-1] == "COMPLETED"
        assert "soul-of-the-agent" not in model.prompts()
