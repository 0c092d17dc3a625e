"""Runs every measurement against every server, alternating between them, and reports."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import socket
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import psutil

from . import real_hermes
from .fakes import FakeHermes
from .load import Peers, session
from .report import Row, report
from .servers import BASELINES, BRIDGES

IN_FLIGHT = 2000
_OUT = Path(__file__).resolve().parents[2] / "bench-results"


@dataclass
class Server:
    name: str
    url: str
    process: psutil.Process
    peers: Peers = field(repr=False)


@dataclass
class Figures:
    """The measurements per server; `of` returns the median of the rounds."""

    rounds: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, measure: str, server: str, figure: float) -> None:
        self.rounds.setdefault(measure, {}).setdefault(server, []).append(figure)

    def of(self, measure: str, server: str) -> float:
        return statistics.median(self.rounds[measure][server])


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def running(
    name: str, hermes: FakeHermes, http: aiohttp.ClientSession
) -> AsyncIterator[Server]:
    port = free_port()
    environ = os.environ | {
        "FAKE_CHAT": hermes.chat_url,
        "FAKE_PLUGIN": hermes.plugin_url,
        # The SDK reads this variable at import time; `molecule-hermes` sets it, too.
        "OTEL_INSTRUMENTATION_A2A_SDK_ENABLED": "false",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmark.servers", name, str(port), env=environ
    )
    url = f"http://127.0.0.1:{port}/"
    try:
        await _until_up(url, http, process)
        yield Server(name, url, psutil.Process(process.pid), Peers(url, http))
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()


async def _until_up(
    url: str, http: aiohttp.ClientSession, process: asyncio.subprocess.Process
) -> None:
    async with asyncio.timeout(60):
        while True:
            if process.returncode is not None:
                raise SystemExit(f"bench: a server did not start (exit code {process.returncode})")
            try:
                async with http.get(url):
                    return
            except aiohttp.ClientError:
                await asyncio.sleep(0.05)


async def measure(options: argparse.Namespace) -> tuple[Figures, dict[str, float]]:
    figures = Figures()
    async with AsyncExitStack() as stack:
        hermes = await stack.enter_async_context(FakeHermes().serving())
        http = await stack.enter_async_context(session())
        servers = {}
        for name in (*BASELINES, *BRIDGES):
            say(f"starting {name}")
            servers[name] = await stack.enter_async_context(running(name, hermes, http))
            await servers[name].peers.throughput(1.0)  # warm
        for number in range(1, options.rounds + 1):
            say(f"round {number} of {options.rounds}, Python {platform.python_version()}")
            await one_round(servers, figures, options)
        say("one reply of 2,000 updates on the SDK's SQLite store (slow: once)")
        figures.add(
            "2,000 deltas", "sdk-sqlite", await servers["sdk-sqlite"].peers.streamed("deltas 2000")
        )
        memory = {}
        for name in ("floor", "chat", "plugin"):
            slow = ", for 40 s" if name == "floor" else ""
            say(f"{IN_FLIGHT:,} turns in flight at once{slow}: {name}")
            async with running(name, hermes, http) as server:
                memory[name] = await in_flight(server, hermes)
    return figures, memory


async def one_round(
    servers: dict[str, Server], figures: Figures, options: argparse.Namespace
) -> None:
    for server in servers.values():
        cpu = _cpu(server)
        rate = await server.peers.throughput(options.seconds)
        figures.add("turns/s", server.name, rate)
        figures.add(
            "CPU ms/turn", server.name, (_cpu(server) - cpu) / (rate * options.seconds) * 1e3
        )
    for name, server in servers.items():
        if name not in ("sdk-sqlite", "earlier"):
            figures.add("ms/turn", name, await server.peers.latency(options.turns) * 1e3)
    for name in BRIDGES:
        for _ in range(options.streams):
            for deltas in (2000, 8000):
                took = await servers[name].peers.streamed(f"deltas {deltas}")
                figures.add(f"{deltas:,} deltas", name, took)


def _cpu(server: Server) -> float:
    times = server.process.cpu_times()
    return times.user + times.system


async def in_flight(server: Server, hermes: FakeHermes) -> float:
    """Returns the KiB of memory that each of many concurrent turns takes."""
    for _ in range(20):
        await server.peers.throughput(0.2)
    before = server.process.memory_info().rss
    hermes.gate.clear()
    turns = [asyncio.create_task(server.peers.turn(f"flight {i}", i)) for i in range(IN_FLIGHT)]
    try:
        await _until_idle(server, turns)
        held = server.process.memory_info().rss
        if server.name != "floor" and hermes.held != IN_FLIGHT:
            raise SystemExit(f"bench: {hermes.held} turns are in flight, not {IN_FLIGHT}")
    finally:
        hermes.gate.set()
    await asyncio.gather(*turns)
    return (held - before) / IN_FLIGHT / 1024


async def _until_idle(server: Server, turns: list[asyncio.Task[None]]) -> None:
    """Waits until the server uses no more CPU, because all turns wait for Hermes."""
    used = -1.0
    async with asyncio.timeout(120):
        while (now := _cpu(server)) - used > 0.1:
            used = now
            await asyncio.sleep(2.0)
            for turn in turns:
                if turn.done():
                    turn.result()


def rows(figures: Figures, memory: dict[str, float]) -> list[Row]:
    of = figures.of
    table = []
    for bridge in ("plugin", "chat"):
        rate, long = of("turns/s", bridge), of("2,000 deltas", bridge)
        in_memory = of("2,000 deltas", f"{bridge}-memory")
        alone = of("ms/turn", bridge) / of("ms/turn", "floor")
        updates = of("2,000 deltas", "sdk-sqlite") / long
        longer = of("8,000 deltas", bridge) / long
        held = memory[bridge] / memory["floor"]
        for what, ratio, target in (
            ("turns/s, 32 peers, over the floor", rate / of("turns/s", "floor"), ">= 1"),
            ("turns/s over a client per turn", rate / of("turns/s", "earlier"), ">= 5"),
            ("time per turn, one peer, over the floor", alone, "<= 2"),
            ("2,000 deltas over the same in memory", long / in_memory, "<= 1.5"),
            ("2,000 deltas, faster than one SDK update each on SQLite", updates, ">= 30"),
            ("8,000 deltas over 2,000", longer, "<= 4.5"),
            (f"memory of each of {IN_FLIGHT:,} turns in flight, over the floor", held, "<= 1"),
        ):
            sign, bound = target.split()
            table.append(Row(f"{bridge}: {what}", ratio, float(bound), least=sign == ">="))
    return table


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description=__doc__,
        epilog="The bridge's settings in the environment (MOLECULE_HERMES_…) apply. "
        "The exit code is 1 when a target is missed.",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="run one short round; too short for reliable results",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=3,
        help="number of rounds; the median is reported (default: 3)",
    )
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="seconds of load per server and round"
    )
    parser.add_argument(
        "--turns", type=int, default=200, help="turns of one peer, per server and round"
    )
    parser.add_argument(
        "--streams", type=int, default=10, help="long replies, per server and round"
    )
    parser.add_argument(
        "--out", type=Path, default=_OUT, help="output folder (default: bench-results)"
    )
    parser.add_argument(
        "--hermes",
        action="store_true",
        help="measure the real Hermes with a fake model instead (about eight minutes)",
    )
    options = parser.parse_args()
    if options.hermes:
        found = asyncio.run(real_hermes.measure(say))
        return 0 if real_hermes.report(found, options.out) else 1
    if options.quick:
        options.rounds, options.seconds, options.turns, options.streams = 1, 1.5, 50, 6
    figures, memory = asyncio.run(measure(options))
    table = rows(figures, memory)
    options.out.mkdir(parents=True, exist_ok=True)
    written = {"figures": figures.rounds, "kib_in_flight": memory}
    (options.out / "bench.json").write_text(json.dumps(written, indent=2) + "\n")
    report(figures.rounds, memory, table, options.out)
    return 0 if all(row.met for row in table) else 1


if __name__ == "__main__":
    sys.exit(main())
