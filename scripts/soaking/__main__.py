"""Runs many peers against the real Hermes, kills Hermes now and then, and checks all counts."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import httpx

from .books import Books, table
from .peers import ACTS, FLOOD, WITH_QUESTIONS, Peer, failure_of
from .world import World, faults, world

HANDS = 3
"""Concurrent actions of each peer."""


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


async def soak(options: argparse.Namespace, folder: Path) -> bool:
    dice = random.Random(options.seed)
    names = [*(f"peer{i}" for i in range(options.peers)), "flooder"]
    tokens = {name: f"{dice.getrandbits(128):032x}" for name in names}
    books = Books()
    say(f"starting Hermes and the bridge (seed {options.seed})")
    shared = folder / "shared"
    shared.mkdir()
    stack_folder = folder / "stack"
    async with world(stack_folder, options.transport, tokens, books.heard, shared) as made:
        async with AsyncExitStack() as stack:
            peers = []
            ordinary = WITH_QUESTIONS if options.transport == "plugin" else ACTS
            for name, token in tokens.items():
                acts = FLOOD if name == "flooder" else ordinary
                one = Peer(name, books, made, random.Random(dice.random()), shared, acts=acts)
                peers.append(await stack.enter_async_context(one.connected(token)))
            await _drive(options, made, peers, books, dice)
            say("all peers are done; comparing the counts")
            await _settle(books, peers)
            metrics = await _metrics(made, tokens["peer0"])
        await made.stop()
    return report(books, made, metrics, options)


async def _drive(
    options: argparse.Namespace, made: World, peers: list[Peer], books: Books, dice: random.Random
) -> None:
    until = time.monotonic() + options.minutes * 60
    progress = asyncio.create_task(_progress(made, books))
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(faults(made, dice, until, options.restarts, say))
            for peer in peers:
                for _ in range(HANDS):
                    group.create_task(peer.act(until))
    finally:
        progress.cancel()
        await asyncio.gather(progress, return_exceptions=True)


async def _progress(made: World, books: Books) -> None:
    began = time.monotonic()
    for second in range(10**9):
        sample = made.sample()
        if second and second % 10 == 0 and sample is not None:
            ended = sum(bool(record.told) for record in books.records)
            say(
                f"{time.monotonic() - began:4.0f} s: {len(books.records)} turns sent, {ended} "
                f"ended; Hermes killed {made.hermes_kills} times; the bridge has "
                f"{sample.rss / 2**20:.0f} MiB and {sample.files} open files"
            )
        await asyncio.sleep(max(0.0, began + second + 1 - time.monotonic()))


async def _settle(books: Books, peers: list[Peer]) -> None:
    """Fetches every task once more, and checks that no task is missing or unexpected."""
    for peer in peers:
        mine = [record for record in books.records if record.peer == peer.name]
        for record in mine:
            task = await peer.get(next(iter(record.task_ids), "none"))
            record.settle(task, failure_of(task))
            books.check(record, task, peer.excuses)
        stored, sent = Counter(await peer.all_tasks()), Counter(t for r in mine for t in r.task_ids)
        if stored != sent:
            books.problems.append(f"{peer.name}: {stored - sent} unasked, {sent - stored} lost")


async def _metrics(made: World, token: str) -> Counter[tuple[str, str]]:
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(headers=headers) as http:
        text = (await http.get(made.url + "/metrics")).text
    figures: Counter[tuple[str, str]] = Counter()
    for line in text.splitlines():
        if line.startswith("molecule_hermes_turns_total{"):
            labels, figure = line.rsplit(" ", 1)
            named = dict(pair.split("=") for pair in labels.split("{")[1].rstrip("}").split(","))
            key = named["state"].strip('"').upper(), named["kind"].strip('"')
            figures[key] += int(float(figure))
    return figures


def report(
    books: Books, made: World, metrics: Counter[tuple[str, str]], options: argparse.Namespace
) -> bool:
    print(f"\n{table(books)}\n")
    _compare(books, books.ends(made.began), metrics)
    third, last = made.growth()
    print(f"\nmemory of the bridge: {third:.1f} MiB in the third quarter, {last:.1f} in the last")
    files = [sample.files for sample in made.samples] or [0]
    print(f"open files: {files[len(files) // 2]} half-way, {files[-1]} at the end")
    print(f"Hermes killed {made.hermes_kills} times, the bridge started {made.life} times")
    if options.minutes >= 2 and last > 1.1 * third + 4:
        books.problems.append(f"the memory does not level off: {third:.1f} MiB, then {last:.1f}")
    if files[-1] > max(files[: len(files) // 2], default=0) + 20:
        books.problems.append(f"open files pile up: {files[-1]}")
    if left := made.left_over():
        books.problems.append(f"left running: {left}")
    if made.codes[-1] != 0:
        books.problems.append(f"the bridge ended with {made.codes[-1]}")
    if "Traceback" in made.output:
        books.problems.append(f"a stack trace:\n{made.output[made.output.index('Traceback') :]}")
    for problem in books.problems[:30]:
        print(f"PROBLEM  {problem}")
    print(f"\n{'FAILED' if books.problems else 'all counts agree'}")
    return not books.problems


def _compare(
    books: Books, mine: Counter[tuple[str, str]], theirs: Counter[tuple[str, str]]
) -> None:
    print(f"{'ended as':28}{'peers':>8}{'/metrics':>10}")
    for end in sorted(mine.keys() | theirs.keys()):
        print(f"{' '.join(end).lower():28}{mine[end]:>8}{theirs[end]:>10}")
        if mine[end] != theirs[end]:
            books.problems.append(f"/metrics says {theirs[end]} of {end}, peers {mine[end]}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("minutes", nargs="?", type=float, default=5.0, help="duration (default: 5)")
    parser.add_argument("--seed", type=int, default=None, help="random seed, to repeat a run")
    parser.add_argument(
        "--peers", type=int, default=4, help="number of peers (default: 4), plus one that floods"
    )
    parser.add_argument("--transport", choices=["plugin", "chat"], default="plugin")
    parser.add_argument(
        "--restarts", action="store_true", help="also stop (SIGTERM) and kill the bridge"
    )
    options = parser.parse_args()
    if options.seed is None:
        options.seed = random.randrange(10**6)
    with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as folder:
        return 0 if asyncio.run(soak(options, Path(folder))) else 1


if __name__ == "__main__":
    sys.exit(main())
