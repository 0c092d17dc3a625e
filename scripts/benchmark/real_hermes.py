"""Measures the real Hermes behind `molecule-hermes up`, with a fake model.

    scripts/bench --hermes [--out DIR]      (about six minutes)

- 64 new conversations at once with a model that takes five seconds: one Hermes for all peers with
  ten turns at once, the same with all at once, and eight peers with a Hermes each
- the first turn after a start, and later ones, in seconds and in CPU time of Hermes, with and
  without its warm-up
- the memory of an idle worker, and of the bridge for each worker
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import socket
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import psutil
from aiohttp import web

from .report import Rounds, Row, show

CONVERSATIONS, PEERS = 64, 8
THINKS = 5.0
_MODEL = "bench-model"
Add = Callable[[str, str, float], None]
"""Takes a measure, what was measured, and the figure."""
_READY = 180.0


@dataclass
class SlowModel:
    """Answers after `thinks` seconds, and notes when each conversation asked first."""

    thinks: float = 0.0
    url: str = ""
    asked: dict[str, float] = field(default_factory=dict)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        said = str(body["messages"][-1]["content"])
        if said.startswith("turn-"):  # not a title or another request of Hermes's own
            self.asked.setdefault(said.split(maxsplit=1)[0], time.monotonic())
            await asyncio.sleep(self.thinks)
        usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
        if not body.get("stream"):
            message = {"role": "assistant", "content": "done"}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return web.json_response(
                {"id": "x", "model": _MODEL, "choices": [choice], "usage": usage}
            )
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        for delta, reason in (({"role": "assistant", "content": "done"}, None), ({}, "stop")):
            chunk = {"id": "x", "object": "chat.completion.chunk", "model": _MODEL, "usage": None}
            chunk["choices"] = [{"index": 0, "delta": delta, "finish_reason": reason}]
            chunk["usage"] = usage if reason else None
            await stream.write(f"data: {json.dumps(chunk)}\n\n".encode())
        await stream.write(b"data: [DONE]\n\n")
        return stream


@asynccontextmanager
async def slow_model() -> AsyncIterator[SlowModel]:
    model = SlowModel()
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/chat/completions", model.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    model.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield model
    finally:
        await runner.cleanup()


@dataclass
class Stack:
    """A running `up`, and what was measured of it."""

    url: str
    process: psutil.Process
    tokens: Sequence[str]
    http: aiohttp.ClientSession

    async def turn(self, number: int, context: str = "") -> float:
        """Sends a message and waits for its task's end; returns the seconds."""
        began = time.monotonic()
        message = {
            "messageId": uuid.uuid4().hex,
            "contextId": context or uuid.uuid4().hex,
            "role": "ROLE_USER",
            "parts": [{"text": f"turn-{uuid.uuid4().hex} hello"}],
        }
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
        headers = {"A2A-Version": "1.0"}
        if self.tokens:
            headers["Authorization"] = f"Bearer {self.tokens[number % len(self.tokens)]}"
        async with self.http.post(self.url, json=body, headers=headers) as response:
            answer = await response.json()
        state = answer["result"]["task"]["status"]["state"]
        if state != "TASK_STATE_COMPLETED":
            raise RuntimeError(f"a turn ended as {state}: {answer['result']['task']['status']}")
        return time.monotonic() - began

    def gateways(self) -> list[psutil.Process]:
        return [p for p in self.process.children() if "hermes" in " ".join(p.cmdline())]

    def cpu(self) -> float:
        """The seconds that all Hermes processes have used."""
        return sum(sum(p.cpu_times()[:2]) for p in self.gateways())

    async def until_quiet(self) -> None:
        """Waits until nothing of Hermes uses the processor any more."""
        quiet = 0
        while quiet < 3:
            before = self.cpu()
            await asyncio.sleep(0.5)
            quiet = quiet + 1 if self.cpu() - before < 0.05 else 0


@asynccontextmanager
async def running(
    model: SlowModel, peers: int = 0, environ: Mapping[str, str] | None = None
) -> AsyncIterator[Stack]:
    """`up` on a new folder, with that many peers."""
    tokens = [f"bench-token-of-peer-{number:04}" for number in range(peers)]
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        variables = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "MOLECULE_HERMES_STATE_DIR": str(folder / "state"),
            "MOLECULE_HERMES_PORT": _free_port(),
            "HERMES_API_BASE": f"http://127.0.0.1:{_free_port()}/v1",
            "MOLECULE_A2A_PLATFORM_PORT": _free_port(),
            "MOLECULE_A2A_CALLBACK_PORT": _free_port(),
            "MOLECULE_HERMES_PEER_TOKENS": ",".join(f"p{n}:{t}" for n, t in enumerate(tokens)),
            "HERMES_CUSTOM_BASE_URL": model.url,
            "HERMES_INFERENCE_MODEL": _MODEL,
            **(environ or {}),
        }
        with (folder / "up.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "molecule_hermes", "up"),
                env=variables,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        http = await stack.enter_async_context(
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(300), connector=_connector())
        )
        url = f"http://127.0.0.1:{variables['MOLECULE_HERMES_PORT']}/"
        try:
            await _until_ready(url, http, process, folder / "up.log")
            yield Stack(url, psutil.Process(process.pid), tokens, http)
        finally:
            if process.returncode is None:
                process.terminate()
            await asyncio.wait_for(process.wait(), 90)


def _connector() -> aiohttp.TCPConnector:
    return aiohttp.TCPConnector(limit=0)


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


class _Ended(Exception):
    """`up` has ended; shows what it said."""

    def __init__(self, log: Path) -> None:
        super().__init__(log.read_text(errors="replace"))


async def _until_ready(
    url: str, http: aiohttp.ClientSession, process: asyncio.subprocess.Process, log: Path
) -> None:
    async with asyncio.timeout(_READY):
        while True:
            if process.returncode is not None:
                raise _Ended(log)
            try:
                async with http.get(f"{url}readyz") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)


async def crowd(model: SlowModel, stack: Stack) -> tuple[float, float]:
    """Seconds until all conversations have ended, and until the last has begun."""
    await stack.until_quiet()
    model.asked.clear()
    began = time.monotonic()
    await asyncio.gather(*(stack.turn(number) for number in range(CONVERSATIONS)))
    return time.monotonic() - began, max(model.asked.values()) - began


async def measure(say: Callable[[str], None]) -> Rounds:
    figures: Rounds = {}

    def add(measure: str, of: str, figure: float) -> None:
        figures.setdefault(measure, {}).setdefault(of, []).append(figure)
        say(f"{measure}: {of} {figure:.2f}")

    async with slow_model() as model:
        await _measure_first_turns(model, add)
        await _measure_crowds(model, add)
    return figures


def report(figures: Rounds, out: Path) -> bool:
    """Prints and writes the figures; returns whether all targets are met."""
    table = _table(figures)
    show(figures, table)
    out.mkdir(parents=True, exist_ok=True)
    file = out / "bench-hermes.json"
    about = {"python": platform.python_version(), "cores": os.cpu_count(), "figures": figures}
    file.write_text(json.dumps(about, indent=2) + "\n")
    print(f"\nwritten: {file}")
    return all(row.met for row in table)


async def _measure_first_turns(model: SlowModel, add: Add) -> None:
    model.thinks = 0.0
    for _ in range(3):
        async with running(model) as stack:
            context = uuid.uuid4().hex
            before = stack.cpu()
            add("first turn, s", "first", await stack.turn(0, context))
            add("first turn, CPU s", "first", stack.cpu() - before)
            for _ in range(2):  # the model's client is made in the second turn, too
                await stack.turn(0, context)
            seconds, cpu = [], []
            for _ in range(10):
                before = stack.cpu()
                seconds.append(await stack.turn(0))
                cpu.append(stack.cpu() - before)
            add("first turn, s", "later", statistics.median(seconds))
            add("first turn, CPU s", "later", statistics.mean(cpu))


async def _measure_crowds(model: SlowModel, add: Add) -> None:
    all_at_once = {"MOLECULE_HERMES_MAX_RUNNING": str(CONVERSATIONS)}
    over_chat = {"MOLECULE_A2A_PLATFORM_ENABLED": "false"}
    ways: dict[str, tuple[int, dict[str, str]]] = {
        "ten at once": (0, {}),
        "one Hermes": (0, all_at_once),
        "one Hermes, chat": (0, all_at_once | over_chat),
        "8 workers": (PEERS, all_at_once),
        "8 workers, chat": (PEERS, all_at_once | over_chat),
    }
    for name, (peers, environ) in ways.items():
        model.thinks = 0.0
        async with running(model, peers, environ) as stack:
            alone = stack.process.memory_info().rss
            # Every worker runs, and has had a turn, as one that has been in use for a while.
            await asyncio.gather(*(stack.turn(number) for number in range(max(1, peers))))
            await stack.until_quiet()
            if name == "8 workers":
                _measure_memory(stack, alone, add)
            model.thinks = THINKS
            ended, begun = await crowd(model, stack)
            add(f"{CONVERSATIONS} conversations, s", name, ended)
            add(f"{CONVERSATIONS} conversations, last begun, s", name, begun)


def _measure_memory(stack: Stack, alone: int, add: Add) -> None:
    """`alone` is what the bridge had with the one worker of its start."""
    workers = [process.memory_info().rss for process in stack.gateways()]
    add("memory, MiB", "worker after a turn", statistics.mean(workers) / 2**20)
    more = stack.process.memory_info().rss - alone
    add("memory, MiB", "bridge, each worker", more / (PEERS - 1) / 2**20)


def _table(figures: Rounds) -> list[Row]:
    def of(measure: str, name: str) -> float:
        return statistics.median(figures[measure][name])

    crowds = f"{CONVERSATIONS} conversations, s"
    begun = f"{CONVERSATIONS} conversations, last begun, s"
    first, cpu = "first turn, s", "first turn, CPU s"
    return [
        Row("64 conversations, one Hermes: seconds", of(crowds, "one Hermes"), 26),
        Row("  seconds until the last has begun", of(begun, "one Hermes"), 20),
        Row("  over ten at once", of(crowds, "one Hermes") / of(crowds, "ten at once"), 1),
        Row("64 conversations, 8 workers: seconds", of(crowds, "8 workers"), 20),
        Row("first turn over a later one: seconds", of(first, "first") / of(first, "later"), 2),
        Row("  CPU time", of(cpu, "first") / of(cpu, "later"), 2),
    ]
