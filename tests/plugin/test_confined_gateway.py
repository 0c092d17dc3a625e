"""The real Hermes does its work while it is confined."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from molecule_hermes.hermes.confinement import confinement_for, environment_for, missing
from molecule_hermes.plugin.handover import Confinement, Handover
from tests.support import hostile
from tests.support.gateway import (
    API_KEY,
    SECRET,
    CallbackServer,
    Hermes,
    callback_server,
    running_hermes,
)
from tests.support.privileges import unprivileged
from tests.support.waiting import until

pytestmark = [
    pytest.mark.hermes,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(sys.platform != "linux" or missing() != (), reason="needs Landlock"),
]

_CONFIG = {
    "approvals": {"mode": "off"},
    "terminal": {"timeout": 20},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["as is", "unprivileged"])
async def confined(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[Hermes]:
    through = unprivileged() if request.param == "unprivileged" else []
    worker = tmp_path_factory.mktemp("c")
    home, work, tmp = worker / "home", worker / "home" / "work", worker / "t"
    for folder in (work, tmp):
        folder.mkdir(parents=True)
    (worker.parent / "outside").write_text("nothing of yours")

    def handover(hermes: Hermes) -> Handover:
        ports = (hermes.port, hermes.api_port)
        rules = confinement_for(home, work, tmp, protected=[worker / "state"], ports=ports)
        return Handover(SECRET, API_KEY, confinement=Confinement(rules, require=True))

    env = environment_for(home, work, tmp)
    async with running_hermes(
        home, over=_CONFIG, env=env, handover=handover, through=through
    ) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def callbacks() -> AsyncIterator[CallbackServer]:
    async with callback_server() as server:
        yield server


async def told(hermes: Hermes, callbacks: CallbackServer, content: str, **more: Any) -> str:
    message_id = await hermes.say(callbacks, content, **more)
    _, final = await callbacks.final(message_id, timeout=60)
    (callback,) = callbacks.finals(message_id)
    assert final.status == "completed", callback
    return callback.content


async def call(hermes: Hermes, callbacks: CallbackServer, tool: str, **arguments: Any) -> str:
    return await told(hermes, callbacks, f"demo:call={tool} {json.dumps(arguments)}")


async def test_a_command_runs(confined: Hermes, callbacks: CallbackServer) -> None:
    text = await told(confined, callbacks, "demo:run echo $HOME $TMPDIR; pwd; date >x && wc -l <x")
    assert '"exit_code": 0' in text


async def test_a_command_finds_nothing_outside(confined: Hermes, callbacks: CallbackServer) -> None:
    outside = confined.home.parent.parent / "outside"
    text = await told(confined, callbacks, f"demo:run cat {outside}")
    assert "nothing of yours" not in text
    assert "Permission denied" in text


async def test_code_runs_and_calls_tools(confined: Hermes, callbacks: CallbackServer) -> None:
    code = "from hermes_tools import terminal\nprint(terminal('echo from-$((40 + 2))'))"
    text = await call(confined, callbacks, "execute_code", code=code)
    assert "from-42" in text


async def test_files_are_written_and_read(confined: Hermes, callbacks: CallbackServer) -> None:
    path = str(confined.work / "notes" / "a.txt")
    text = await call(confined, callbacks, "write_file", path=path, content="kept words")
    assert Path(path).read_text().strip() == "kept words"
    text = await call(confined, callbacks, "read_file", path=path)
    assert "kept words" in text
    text = await call(confined, callbacks, "search_files", pattern="kept", path=str(confined.work))
    assert "a.txt" in text


async def test_memory_is_kept(confined: Hermes, callbacks: CallbackServer) -> None:
    await call(confined, callbacks, "memory", action="add", target="memory", content="likes blue")
    assert "likes blue" in (confined.home / "memories" / "MEMORY.md").read_text()


@pytest.mark.parametrize("pty", [False, True])
async def test_a_background_process_runs(
    confined: Hermes, callbacks: CallbackServer, pty: bool
) -> None:
    mark = confined.work / f"done-{pty}"
    text = await call(
        confined, callbacks, "terminal", command=f"date > {mark}", background=True, pty=pty
    )
    assert '"session_id"' in text

    async def done() -> bool:
        return mark.exists()

    await until(done, 20.0)


async def test_hermes_itself_is_refused_nothing(confined: Hermes) -> None:
    told = confined.log + (confined.home / "logs" / "errors.log").read_text()
    assert "PermissionError" not in told
    assert "Errno 13" not in told


async def test_a_tool_finds_no_secret_of_its_own_gateway_and_cannot_act_for_the_bridge(
    confined: Hermes, callbacks: CallbackServer
) -> None:
    (confined.work / "hostile.py").write_text(Path(hostile.__file__).read_text())
    running = await confined.say(callbacks, "demo:slow=0.5 a long story of many words")
    markers = [SECRET[::-1], API_KEY[::-1]]
    assert confined.process is not None
    targets = {
        "markers": markers,
        "scan": {"markers": markers, "pids": [confined.process.pid, os.getpid()]},
        "forge": {
            "chat_id": "another",
            "message_id": running,
            "question_id": "1",
            "callback": callbacks.url,
            "text": "forged",
            "ports": [confined.port, confined.api_port],
        },
        "change": [str(confined.home.parent / "outside")],
    }
    (confined.work / "targets.json").write_text(json.dumps(targets))
    text = await told(confined, callbacks, "demo:run /usr/bin/python3 hostile.py targets.json")
    results = dict(re.findall(r"(\w+): (denied|LEAK.*)", text.replace("\\n", "\n")))
    assert results.keys() >= {"environment", "memory_of_processes", "forge_a_reply", "change"}
    assert set(results.values()) == {"denied"}, text
    assert "forged" not in str(callbacks.of(running))
