#!/usr/bin/env python3
"""Compares the latency of the plugin and of chat completions on one real Hermes.

Starts `molecule-hermes up` (plugin) and `molecule-hermes serve` (chat completions) on the same
Hermes with the demo model, and alternates turns between them. Prints the medians and their ratio of
the time to the first text, of the time from the model's first token to that text (the demo model
reports when it wrote it), and of the whole turn.
Run it with the project's environment: .venv/bin/python scripts/compare_transports.py [TURNS]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import signal
import socket
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import httpx

from molecule_hermes.client.connection import connect, message


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


async def start(environ: dict[str, str], *words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "molecule_hermes",
        *words,
        env=environ,
        stdout=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )


async def until_ready(url: str) -> None:
    async with asyncio.timeout(120), httpx.AsyncClient(timeout=5, trust_env=False) as http:
        while True:
            try:
                if (await http.get(f"{url}/readyz")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.1)


async def turn(url: str, context: str) -> tuple[float, float, float]:
    """Returns seconds to the first text, from the model's first token to it, and to the end."""
    began = time.time()
    first = token = 0.0
    async with connect(url) as client:
        async for event in client.send_message(message("demo:clock", context)):
            if event.HasField("artifact_update") and not first:
                first = time.time()
                token = float(event.artifact_update.artifact.parts[0].text.split()[0])
    return first - began, first - token, time.time() - began


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "turns", type=int, nargs="?", default=30, help="turns per transport (default: 30)"
    )
    turns = parser.parse_args().turns
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="compare-")))
        environ = os.environ | {
            "HOME": str(folder),
            "MOLECULE_HERMES_STATE_DIR": str(folder / "state"),
            "MOLECULE_HERMES_PORT": free_port(),
            "MOLECULE_A2A_PLATFORM_PORT": free_port(),
            "MOLECULE_A2A_CALLBACK_PORT": free_port(),
            "HERMES_API_BASE": f"http://127.0.0.1:{free_port()}/v1",
            # Set explicitly, because `serve` cannot know a key that `up` generates.
            "API_SERVER_KEY": secrets.token_urlsafe(32),
        }
        beside = environ | {
            "HERMES_HOME": str(folder / "state" / "hermes"),
            "MOLECULE_HERMES_STATE_DIR": str(folder / "beside"),
            "MOLECULE_HERMES_PORT": free_port(),
        }
        urls = {
            transport: f"http://127.0.0.1:{env['MOLECULE_HERMES_PORT']}"
            for transport, env in (("plugin", environ), ("chat", beside))
        }
        print("… starting Hermes and two bridges", flush=True)
        for env, words in ((environ, ["up"]), (beside, ["serve", "--transport", "chat"])):
            process = await start(env, *words)
            stack.push_async_callback(process.wait)
            stack.callback(process.send_signal, signal.SIGTERM)
            await until_ready(f"http://127.0.0.1:{env['MOLECULE_HERMES_PORT']}")
        taken: dict[str, list[tuple[float, float, float]]] = {"plugin": [], "chat": []}
        for i in range(turns + 1):
            for transport, url in urls.items():
                figures = await turn(url, f"{transport}-{i % 5}")
                if i:  # the first turn only warms up Hermes
                    taken[transport].append(figures)
            if i % 10 == 0:
                print(f"… {i} of {turns} turns per transport", flush=True)
        report(taken)


def report(taken: dict[str, list[tuple[float, float, float]]]) -> None:
    print(
        f"{'through':12} {'first text':>11} {'token → text':>13} {'whole turn':>11}   (medians, ms)"
    )
    medians = {
        transport: [statistics.median(column) * 1000 for column in zip(*rows, strict=True)]
        for transport, rows in taken.items()
    }
    for transport, figures in medians.items():
        print(f"{transport:12} {figures[0]:11.0f} {figures[1]:13.1f} {figures[2]:11.0f}")
    ratios = [c / p for c, p in zip(medians["chat"], medians["plugin"], strict=True)]
    print(f"{'chat/plugin':12} {ratios[0]:11.2f} {ratios[1]:13.2f} {ratios[2]:11.2f}")


if __name__ == "__main__":
    asyncio.run(main())
