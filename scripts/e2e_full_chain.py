#!/usr/bin/env python3
"""Tests the full chain from scratch: A2A peer → bridge → plugin → Hermes → demo model, and back.

Builds the wheel, installs it into a new virtual environment, and starts `molecule-hermes up` with a
new HERMES_HOME on free ports. Then runs a matrix of peer turns, prints a table and cleans up.
Needs only Python 3.11 or newer. Exit code: 0 if every row passed, otherwise 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
INSTALL_LIMIT = 600
READY_LIMIT = 120


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else "")
    parser.add_argument("--keep", metavar="DIR", help="work in DIR and keep it for inspection")
    parser.add_argument("--inside", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        return asyncio.run(matrix(options.inside))
    if options.keep:
        return full_chain(Path(options.keep).resolve())
    with tempfile.TemporaryDirectory(prefix="full-chain-", ignore_cleanup_errors=True) as folder:
        return full_chain(Path(folder))


def full_chain(folder: Path) -> int:
    python = install(folder)
    environ = environment(folder)
    url = f"http://127.0.0.1:{environ['MOLECULE_HERMES_PORT']}"
    log = folder / "up.log"
    with log.open("wb") as out:
        command = [python.with_name("molecule-hermes"), "up"]
        stack = subprocess.Popen(
            command, env=environ, stdout=out, stderr=out, start_new_session=True
        )
    try:
        step("starting molecule-hermes up", lambda: until_ready(url, stack, log))
        code = subprocess.run(
            [python, __file__, "--inside", url], env=environ, timeout=300, check=False
        ).returncode
    finally:
        ended = stop(stack)
    if ended != 0:
        say(f"FAIL  molecule-hermes up ended with {ended}\n{log.read_text()}")
    return 1 if code or ended else 0


def install(folder: Path) -> Path:
    """Builds the wheel and installs it into a new environment, as a user would."""
    python = folder / "venv" / "bin" / "python"
    if python.exists():
        return python
    folder.mkdir(parents=True, exist_ok=True)
    step("creating a virtual environment", lambda: venv.create(folder / "venv", with_pip=True))
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    wheels = folder / "wheels"
    step("building the wheel", lambda: run([*pip, "wheel", "--no-deps", "-w", wheels, ROOT]))
    wheel = next(wheels.glob("molecule_hermes-*.whl"))
    constraints = ROOT / "constraints.txt"
    step(
        f"installing {wheel.name} and its dependencies (about a minute)",
        lambda: run([*pip, "install", "-c", constraints, wheel]),
    )
    return python


def environment(folder: Path) -> dict[str, str]:
    """Returns an environment without a model key, with an empty home and free ports."""
    (folder / "user").mkdir(exist_ok=True)
    kept = {k: os.environ[k] for k in ("PATH", "LANG", "TMPDIR") if k in os.environ}
    return kept | {
        "HOME": str(folder / "user"),
        "MOLECULE_HERMES_STATE_DIR": str(folder / "state"),
        "MOLECULE_HERMES_PORT": str(free_port()),
        "MOLECULE_A2A_PLATFORM_PORT": str(free_port()),
        "MOLECULE_A2A_CALLBACK_PORT": str(free_port()),
        "HERMES_API_BASE": f"http://127.0.0.1:{free_port()}/v1",
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until_ready(url: str, stack: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + READY_LIMIT
    while time.monotonic() < until:
        if stack.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    raise SystemExit(f"molecule-hermes up did not become ready:\n{log.read_text()}")


def stop(stack: subprocess.Popen[bytes]) -> int:
    if stack.poll() is None:
        stack.send_signal(signal.SIGTERM)
    try:
        return stack.wait(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(stack.pid, signal.SIGKILL)
        return stack.wait()


def run(command: list[Any]) -> None:
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=INSTALL_LIMIT, check=False
    )
    if ended.returncode:
        raise SystemExit(f"{command[0]} failed:\n{ended.stdout[-3000:]}{ended.stderr[-3000:]}")


def step(what: str, work: Callable[[], object]) -> None:
    say(f"… {what}")
    began = time.monotonic()
    work()
    say(f"  done in {time.monotonic() - began:.1f} s")


def say(text: str) -> None:
    print(text, flush=True)


# The rest runs inside the new environment, which has the SDK.

Row = Callable[[Any], Awaitable[None]]


async def matrix(url: str) -> int:
    """Runs every row, even if an earlier one fails."""
    rows: list[tuple[str, AbstractAsyncContextManager[Any], Row]] = []
    for binding in ("JSONRPC", "HTTP+JSON"):
        for version in ("1.0", "0.3"):
            for streaming in (True, False):
                how = "streamed" if streaming else "whole"
                name = f"a turn over {binding} {version}, {how}"
                rows.append((name, connect(url, binding, version, streaming), plain))
    more = (remembers, keeps_apart, runs_a_tool, asks_first, refuses_commands, in_order)
    rows += [(row.__doc__ or "", connect(url), row) for row in (*more, cancels, names_failures)]
    failed = 0
    say(f"{'':4}  {'seconds':>7}  what")
    for name, client, row in rows:
        began = time.monotonic()
        try:
            async with asyncio.timeout(90), client as connected:
                await row(connected)
            mark, why = "ok", ""
        except Exception as error:
            failed += 1
            mark, why = "FAIL", f"  ← {type(error).__name__}: {error}"
        say(f"{mark:4}  {time.monotonic() - began:7.2f}  {name}{why}")
    say(f"{len(rows) - failed} passed, {failed} failed")
    return 1 if failed else 0


def connect(
    url: str, binding: str = "JSONRPC", version: str = "1.0", streaming: bool = True
) -> AbstractAsyncContextManager[Any]:
    from contextlib import asynccontextmanager

    import httpx
    from a2a.client import A2ACardResolver, ClientConfig, ClientFactory

    @asynccontextmanager
    async def connected() -> Any:
        async with httpx.AsyncClient(timeout=90, trust_env=False) as http:
            card = await A2ACardResolver(http, url).get_agent_card()
            wanted = [
                i
                for i in card.supported_interfaces
                if (i.protocol_binding, i.protocol_version) == (binding, version)
            ]
            del card.supported_interfaces[:]
            card.supported_interfaces.extend(wanted)
            config = ClientConfig(
                httpx_client=http, streaming=streaming, supported_protocol_bindings=[binding]
            )
            yield ClientFactory(config).create(card)

    return connected()


async def ask(client: Any, text: str, context: str = "") -> tuple[str, str, str]:
    """Returns the turn's last state, the reply, and the text of the last status message."""
    from molecule_hermes.client.connection import message

    return await seen(client.send_message(message(text, context)))


async def seen(stream: Any) -> tuple[str, str, str]:
    from a2a.helpers import get_text_parts
    from a2a.types import TaskState

    state, reply, words = 0, "", ""
    async for event in stream:
        if event.HasField("artifact_update"):
            update = event.artifact_update
            piece = "".join(get_text_parts(update.artifact.parts))
            reply = reply + piece if update.append else piece
        status = event.status_update.status if event.HasField("status_update") else None
        if event.HasField("task"):
            status = event.task.status
            for artifact in event.task.artifacts:
                reply = "".join(get_text_parts(artifact.parts))
        if status is not None:
            state = status.state
            words = " ".join(get_text_parts(status.message.parts))
    return TaskState.Name(state).removeprefix("TASK_STATE_"), reply, words


def expect(ok: bool, what: object) -> None:
    if not ok:
        raise AssertionError(f"got {what}")


async def plain(client: Any) -> None:
    state, reply, _ = await ask(client, "hello there")
    expect(state == "COMPLETED" and "You said: hello there" in reply, (state, reply))


async def remembers(client: Any) -> None:
    """two tasks of one context are one conversation"""
    await ask(client, "my colour is teal", "memory")
    _, reply, _ = await ask(client, "what did I say?", "memory")
    expect("my colour is teal" in reply, reply)


async def keeps_apart(client: Any) -> None:
    """another context does not see that conversation"""
    _, reply, _ = await ask(client, "what did I say?", "another")
    expect("teal" not in reply, reply)


async def runs_a_tool(client: Any) -> None:
    """a tool runs, and its interim text is not the answer"""
    state, reply, _ = await ask(client, "demo:run echo tool-was-here")
    expect(reply.startswith("The tool answered:") and "tool-was-here" in reply, (state, reply))


async def asks_first(client: Any) -> None:
    """a dangerous command waits for approval; the peer denies it, and the turn continues"""
    from molecule_hermes.client.connection import message

    stream = client.send_message(message("demo:run rm -rf /no/such/folder/anywhere", "danger"))
    task_id = (await anext(stream)).task.id
    state, _, words = await seen(stream)
    expect(state == "INPUT_REQUIRED" and "rm -rf" in words, (state, words))
    state, reply, _ = await seen(client.send_message(message("no", task_id=task_id)))
    expect(state == "COMPLETED" and "denied" in reply.lower(), (state, reply))


async def refuses_commands(client: Any) -> None:
    """a slash command is only text"""
    state, reply, _ = await ask(client, "/help")
    expect(state == "COMPLETED" and "You said: /help" in reply, (state, reply))


async def in_order(client: Any) -> None:
    """five concurrent messages in one context get their own answers, in order"""
    from molecule_hermes.client.connection import message

    streams = []
    for i in range(5):
        stream = client.send_message(message(f"question {i}.", "five"))
        await anext(stream)
        streams.append(stream)
    for i, stream in enumerate(streams):
        state, reply, _ = await seen(stream)
        expect(state == "COMPLETED" and f"You said: question {i}." in reply, (state, reply))


async def cancels(client: Any) -> None:
    """a running turn is canceled, and the conversation continues"""
    from a2a.types import CancelTaskRequest

    from molecule_hermes.client.connection import message

    stream = client.send_message(message("demo:slow=0.1 a b c d e f g h i j k l m n", "cancel"))
    task_id = (await anext(stream)).task.id
    async for event in stream:
        if event.HasField("artifact_update"):
            break
    await client.cancel_task(CancelTaskRequest(id=task_id))
    state, _, _ = await seen(stream)
    expect(state == "CANCELED", state)
    state, _, _ = await ask(client, "still there?", "cancel")
    expect(state == "COMPLETED", state)


async def names_failures(client: Any) -> None:
    """the model's failures are reported: a refused key, an empty answer"""
    for directive, word in (("demo:fail=401", "API key"), ("demo:empty", "empty")):
        state, _, words = await ask(client, directive)
        expect(state == "FAILED" and word in words, json.dumps([directive, state, words]))


if __name__ == "__main__":
    sys.exit(main())
